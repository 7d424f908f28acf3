"""A batch that runs in stages has the states of whole rows, at every position, and computes what is shared once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import families
import peft
import pytest
import torch
import transformers
from gguf_writing import gguf_file
from marks import Base, slow_but
from oracle import assert_close, relative_error
from pipelines import (
    assert_gradients,
    build,
    build_pipeline,
    counted_positions,
    encoded,
    features_of,
    gradients,
)
from torch import Tensor

from st_reba.cli.models import describe_model
from st_reba.encode import (
    computed_positions,
    encode_texts,
    input_lengths,
    prefix_of,
    token_batches,
)
from st_reba.modules import shared_prefix
from st_reba.modules.layout import RowLayout
from st_reba.modules.shared_prefix import BranchLayer

# Two texts of one length, one of a single token, and one that is longer than every window.
TEXTS = [
    "The bank is steep.",
    "天",
    "The bank is stiff.",
    "The river runs past the old mill and under the bridge.",
]
QUESTION = 'Text: "{text}" In one word: "'
QUESTIONS = [
    QUESTION,
    'Text: "{text}" Its mood: "',
    'Text: "{text}',
    'In reverse: "{reversed}" In one word: "',
]
TOLERANCE = 5e-6
REWRITE = "Rewrite: {text} Rewritten: {text}"
METHODS: dict[str, dict[str, Any]] = {
    "prompteol": {"method": "prompteol", "template": QUESTION},
    "outputs": {
        "method": "prompteol",
        "template": QUESTION,
        "read": "attention",
    },
    "classical": {
        "method": "classical",
        "template": "Write: {text}",
        "pooled": "all",
        "pooling": "mean",
    },
    "echo": {"method": "echo", "template": REWRITE, "pooling": "mean"},
    "layers": {"method": "echo", "template": REWRITE, "layer": [0, 2]},
    "questions": {"method": "prompteol", "template": QUESTIONS},
    "question outputs": {
        "method": "prompteol",
        "template": QUESTIONS,
        "read": "attention",
    },
}
BASES = (
    "llama",
    "gpt2",
    "mistral",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "falcon_alibi",
    "bloom",
    "qwen3",
)
# A block of Bloom adds its attention to the states by itself, so its outputs cannot be read.
WITHOUT_OUTPUTS = {("bloom", "outputs"), ("bloom", "question outputs")}
CASES = [case for case in product(BASES, METHODS) if case not in WITHOUT_OUTPUTS]
QUICK = [
    *(("llama", method) for method in METHODS),
    ("gemma2", "questions"),
    ("bloom", "questions"),
    ("mistral", "echo"),
]


@pytest.fixture(autouse=True)
def _stages_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", 1)


@contextmanager
def whole_rows() -> Iterator[None]:
    """Inside, no row shares anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shared_prefix.STAGE_COST, "cpu", 10**9)
        yield


def states(model: Any, texts: list[str] | None = None, **layout: Any) -> Tensor:
    """Hidden states of all rows, [B, T, d]."""
    features = dict(model[0].preprocess(TEXTS if texts is None else texts, **layout))
    with torch.inference_mode():
        token_embeddings: Tensor = model[0].eval()(features)["token_embeddings"]
    return token_embeddings


def assert_shares(model: Any) -> None:
    """Rows run in several stages, and have the states of rows that run whole."""
    with counted_positions(model) as passes:
        shared_states = states(model)
    with whole_rows():
        whole_states = states(model)
    assert len(passes) > 1
    assert_close(shared_states, whole_states, TOLERANCE)


@pytest.mark.parametrize(("base_name", "method"), slow_but(CASES, *QUICK, rows=True))
def test_shared_rows_have_the_states_of_whole_rows(base: Base, base_name: str, method: str) -> None:
    assert_shares(build(base(base_name), **METHODS[method]))


@pytest.mark.parametrize("prefix_length", [1, 5, 6, 7, 60, 200])
@pytest.mark.parametrize("base_name", ["llama", "gemma3_text"])
def test_a_prefix_may_be_of_any_length(base: Base, base_name: str, prefix_length: int) -> None:
    """Shorter than a window of 6, as long, and longer."""
    model: Any = build(base(base_name), "prompteol", template="{text} is")
    *_, question = model[0].row_layouts()[0].segments
    prefix = tuple(range(10, 10 + prefix_length))
    row_layout = RowLayout((prefix, None, question))
    model[0].row_layouts = lambda *args, **fields: (row_layout,)
    with counted_positions(model) as passes:
        shared_states = states(model)
    assert passes[0] == prefix_length
    assert len(passes) == 2
    with whole_rows():
        assert_close(shared_states, states(model), TOLERANCE)


def test_what_is_shared_is_computed_once(base: Base) -> None:
    """The prefix once per batch, each text once after it, and every question after texts of one length."""
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS[:2])
    row_layouts = model[0].row_layouts()
    token_lists = model[0].tokenize_content(TEXTS)["input_ids"]
    text_lengths = [len(token_ids) for token_ids in token_lists]
    question_length = max(len(row_layout.segments[3]) for row_layout in row_layouts)
    with counted_positions(model) as passes:
        states(model)
    prefix_pass, text_pass, *question_passes = passes
    assert prefix_pass == prefix_length_of(model)
    assert text_pass == len(text_lengths) * max(text_lengths)
    expected_passes: list[int] = []
    for length in sorted(set(text_lengths)):
        expected_passes.append(2 * text_lengths.count(length) * question_length)
    assert question_passes == expected_passes


def prefix_length_of(model: Any) -> int:
    """Positions before the text: the tokenizer's special tokens, and the template's words."""
    special_tokens, words, *_ = model[0].row_layouts()[0].segments
    return len(special_tokens) + len(words)


def test_a_prefix_runs_once_for_all_batches_of_an_encode(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    prefix_length = prefix_length_of(model)
    with counted_positions(model) as passes:
        model.encode(TEXTS, batch_size=2)
    assert len(passes) == 3
    assert passes.count(prefix_length) == 1
    with counted_positions(model) as passes:
        model.encode(TEXTS, batch_size=2)
    assert passes.count(prefix_length) == 1


def add_in_place(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.add_(0.1)


def replace_data(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data + 0.1


def add_to_data(weight: torch.nn.Parameter) -> None:
    """Without a trace in the weight."""
    weight.data.add_(0.1)


@pytest.mark.parametrize("template", [QUESTION, QUESTIONS])
@pytest.mark.parametrize(
    ("change_weight", "without_gradients"),
    [
        (add_in_place, torch.inference_mode),
        (replace_data, torch.inference_mode),
        (add_to_data, torch.no_grad),
    ],
)
def test_a_prefix_runs_again_where_weights_have_changed(
    base: Base,
    change_weight: Callable[[torch.nn.Parameter], None],
    without_gradients: Callable[[], AbstractContextManager[None]],
    template: Any,
) -> None:
    """Without a change of mode between two batches."""
    model: Any = build(base("llama"), "prompteol", template=template).eval()
    features = dict(model[0].preprocess(TEXTS))
    with without_gradients():
        original_states = model[0](features)["token_embeddings"]
        change_weight(model[0].model.layers[0].self_attn.k_proj.weight)
        changed_states = model[0](features)["token_embeddings"]
        with whole_rows():
            whole_states = model[0](features)["token_embeddings"]
    assert relative_error(original_states, whole_states) > 1e-3
    assert_close(changed_states, whole_states, TOLERANCE)


def test_a_prefix_runs_again_where_adapters_are_switched_off(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    peft.inject_adapter_in_model(
        peft.LoraConfig(target_modules=["k_proj"], init_lora_weights=False), model[0].model
    )
    features = dict(model.eval()[0].preprocess(TEXTS))
    with torch.inference_mode():
        adapted_states = model[0](features)["token_embeddings"]
        model[0].model.layers[0].self_attn.k_proj.enable_adapters(False)
        plain_states = model[0](features)["token_embeddings"]
        with whole_rows():
            whole_states = model[0](features)["token_embeddings"]
    assert relative_error(adapted_states, whole_states) > 1e-3
    assert_close(plain_states, whole_states, TOLERANCE)


@pytest.mark.parametrize("template", [QUESTION, QUESTIONS[:1] * 2], ids=["one question", "two"])
def test_positions_are_counted_as_they_are_computed(base: Base, template: Any) -> None:
    """In a batch of one length, but for what all texts share; memory is bounded by more than these."""
    texts = ["a b", "b a"]
    model: Any = build(base("llama"), "prompteol", template=template)
    with counted_positions(model) as passes:
        encode_texts(model, texts)
    _, *passes_after_prefix = passes
    assert sum(computed_positions(model[0], texts, {})) == sum(passes_after_prefix)
    assert sum(input_lengths(model[0], texts, {}, is_batched=True).positions) > sum(
        passes_after_prefix
    )
    with whole_rows(), counted_positions(model) as passes:
        encode_texts(model, texts)
    assert sum(input_lengths(model[0], texts, {}, is_batched=False).positions) == sum(passes)


TEMPLATES: list[Any] = [
    QUESTION,
    "A long beginning that all of the texts of a batch have in common: {text}",
    "{text} In one word:",
    REWRITE,
    {"query": "Query: {text}", "document": QUESTION},
    QUESTIONS[:2],
    QUESTIONS,
    [QUESTION, "Another beginning: {text}"],
]


def random_texts(random_state: Random) -> list[str]:
    """Texts of all lengths."""
    texts: list[str] = []
    for _ in range(40):
        words = random_state.choices("abcdef", k=random_state.randint(1, 30))
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("template_index", range(len(TEMPLATES)))
def test_passes_see_what_is_counted_a_prefix_per_batch_and_bounded_padding(
    base: Base, template_index: int
) -> None:
    template = TEMPLATES[template_index]
    method = "echo" if template == REWRITE else "prompteol"
    model: Any = build(base("llama"), method, template=template)
    row_layouts = model[0].row_layouts()
    prefixes = {prefix_of(row_layout) for row_layout in row_layouts}
    prefix_lengths = [len(prefix) for prefix in prefixes]
    later_lengths = [row_layout.overhead - len(prefix_of(row_layout)) for row_layout in row_layouts]
    question_padding = len(later_lengths) * max(later_lengths) - sum(later_lengths)
    random_state = Random(template_index)
    for _ in range(3):
        texts = random_texts(random_state)
        text_counts = computed_positions(model[0], texts, {})
        with counted_positions(model) as passes:
            encode_texts(model, texts, batch_tokens=600)
        lower_bound = sum(text_counts)
        upper_bound = 0
        for batch in token_batches(
            input_lengths(model[0], texts, {}, is_batched=True).positions, 600
        ):
            longest = max(text_counts[row] for row in batch)
            lower_bound += sum(prefix_lengths)
            upper_bound += sum(prefix_lengths) + len(batch) * (longest + question_padding)
        assert lower_bound <= sum(passes) <= upper_bound
        # Whole rows see more, where more than special tokens is shared; a count of them would be
        # too high.
        if min(prefix_lengths) > 4:
            assert sum(passes) < sum(input_lengths(model[0], texts, {}, is_batched=False).positions)


@pytest.mark.parametrize(
    ("build_options", "encode_options"),
    [
        (
            {"method": "classical", "pooling": "mean"},
            {"prompt": "Find what is like this: "},
        ),
        (
            {
                "method": "echo",
                "template": "On {topic}: {instruction} {text} Again: {text}",
            },
            {"prompt": "Find", "topic": "rivers"},
        ),
    ],
    ids=["bare text", "fields"],
)
def test_a_prompt_and_fields_are_a_prefix_too(
    base: Base, build_options: dict[str, Any], encode_options: dict[str, Any]
) -> None:
    """Given at encode, where the template has a field for them or the text stands bare."""
    model = build(base("llama"), **build_options)
    with counted_positions(model) as passes:
        shared_vectors = encoded(model, TEXTS, **encode_options)
    assert len(passes) == 2
    with whole_rows():
        whole_vectors = encoded(model, TEXTS, **encode_options)
    assert_close(shared_vectors, whole_vectors, TOLERANCE)


def test_a_batch_of_other_code_may_mix_prefixes(base: Base) -> None:
    """The rows themselves are compared, whatever code made them; rows that do not share a prefix run whole."""
    by_task = {
        "query": "Query: {text} is",
        "document": "Document of some length: {text} is",
    }
    model: Any = build(base("llama"), "prompteol", template=by_task)
    query_rows = model[0].preprocess(TEXTS[:2], task="query")
    document_rows = model[0].preprocess(TEXTS[:2], task="document")
    width = max(query_rows["input_ids"].shape[1], document_rows["input_ids"].shape[1])
    mixed_rows: dict[str, Any] = {}
    for name in ("input_ids", "attention_mask", "copy_ids"):
        mixed_rows[name] = torch.cat(
            [
                pad_to(query_rows[name], width),
                pad_to(document_rows[name], width),
            ]
        )
    with torch.inference_mode():
        mixed_states = model[0].eval()(mixed_rows)["token_embeddings"]
        with whole_rows():
            query_states = model[0](dict(query_rows))["token_embeddings"]
            document_states = model[0](dict(document_rows))["token_embeddings"]
    assert_close(mixed_states[:2, : query_states.shape[1]], query_states, TOLERANCE)
    assert_close(mixed_states[2:, : document_states.shape[1]], document_states, TOLERANCE)


def pad_to(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


@pytest.mark.parametrize(
    ("pipeline", "template"),
    [
        ("reba template", "Write of this: {text} Again: {text}"),
        ("chunk last", None),
        ("mask0", "Write of this: {text}"),
        ("inter", "Write of this: {text}"),
        ("rerouted", "Write of this: {text}"),
    ],
)
def test_rows_run_whole_where_attention_is_shown_or_masked(
    base: Base, pipeline: str, template: str | None
) -> None:
    model: Any = build_pipeline(base("llama"), pipeline, template=template)
    assert not model[0].can_share()
    with counted_positions(model) as passes:
        encoded(model, TEXTS)
    assert min(passes) >= len(TEXTS) * 2


def test_rows_run_whole_where_gradients_are_wanted(base: Base) -> None:
    """Training after inference finds nothing that inference left."""
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    fresh_model: Any = build(base("llama"), "prompteol", template=QUESTION)
    encoded(model, TEXTS)
    with counted_positions(model) as passes:
        weight_gradients = gradients(model.train(), features_of(model, TEXTS))
    assert len(passes) == 1
    expected_gradients = gradients(fresh_model.train(), features_of(fresh_model, TEXTS))
    assert_gradients(weight_gradients, expected_gradients)


def test_rows_share_anew_after_training(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    encoded(model, TEXTS)
    gradients(model.train(), features_of(model, TEXTS))
    model[0].model.get_input_embeddings().weight.data.mul_(1.5)
    changed_vectors = encoded(model.eval(), TEXTS)
    with whole_rows():
        assert_close(changed_vectors, encoded(model, TEXTS), TOLERANCE)


@pytest.mark.parametrize(
    ("text_count", "extra_cost", "pass_count"),
    [(1, None, 1), (2, 0, 2), (2, 1, 1)],
    ids=["one text", "worth it", "not worth it"],
)
def test_a_few_positions_are_not_worth_a_stage(
    base: Base,
    monkeypatch: pytest.MonkeyPatch,
    text_count: int,
    extra_cost: int | None,
    pass_count: int,
) -> None:
    """One text has nothing to share; two save one prefix."""
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    if extra_cost is not None:
        prefix_length = features_of(model)["spans"][0].start
        monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", prefix_length + extra_cost)
    with counted_positions(model) as passes:
        encoded(model, TEXTS[:text_count])
    assert len(passes) == pass_count


def test_one_text_shares_with_its_own_questions(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS[:2])
    prefix_length = features_of(model)["spans"][0].start
    monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", prefix_length + 1)
    with counted_positions(model) as passes:
        encoded(model, TEXTS[3:])
    assert len(passes) == 2


def test_questions_that_end_with_the_text_share_it(base: Base) -> None:
    """All rows are equal, and no text is longer: one row of the batch is another whole."""
    model = build(base("llama"), "prompteol", template=["Topic of: {text}", "Topic of: {reversed}"])
    assert_close(encoded(model, ["a"] * 80), encoded(model, ["a"])[[0] * 80], TOLERANCE)


@pytest.mark.parametrize("base_name", ["llama", "gemma3_text"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_rows_share_with_any_attention_implementation(
    base: Base, base_name: str, implementation: str
) -> None:
    options = {"attn_implementation": implementation}
    model: Any = build(base(base_name), "prompteol", template=QUESTIONS, model_kwargs=options)
    with whole_rows():
        whole_states = states(model)
    assert model[0].can_share()
    assert_close(states(model), whole_states, TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_shared_rows_of_16_bits_are_as_close_to_float32_as_whole_rows(
    base: Base, dtype: str
) -> None:
    exact_states = states(build(base("llama"), "prompteol", template=QUESTION))
    model: Any = build(base("llama"), "prompteol", template=QUESTION, dtype=dtype)
    with whole_rows():
        rounding = relative_error(states(model).float(), exact_states)
    assert model[0].can_share()
    assert relative_error(states(model).float(), exact_states) <= 2 * rounding


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
@pytest.mark.parametrize("base_name", ["llama", "gemma3_text"])
def test_rows_share_with_quantized_weights(base: Base, base_name: str, quantization: str) -> None:
    pytest.importorskip("bitsandbytes")
    options: dict[str, Any] = {"quantization": quantization, "dtype": "float32"}
    assert_shares(build(base(base_name), "prompteol", template=QUESTIONS, **options))


def test_threads_share_nothing_with_each_other(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS)
    expected_states = states(model)
    with ThreadPoolExecutor(4) as pool:
        for thread_states in pool.map(lambda _: states(model), range(8)):
            assert torch.equal(thread_states, expected_states)


@pytest.mark.parametrize("template", [QUESTION, QUESTIONS])
def test_copied_code_shares_alike(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: Any
) -> None:
    """The file that travels with a model, without the package's own sections."""
    model: Any = build(base("llama"), "prompteol", template=template)
    model.save_pretrained(str(tmp_path))
    spec: Any = importlib.util.spec_from_file_location("copied_code", tmp_path / "st_reba.py")
    code: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "copied_code", code)
    spec.loader.exec_module(code)
    code.STAGE_COST["cpu"] = 1
    copied_transformer = code.RepeatTransformer.load(str(tmp_path), backend="torch")
    with counted_positions([copied_transformer]) as passes:
        copied_states = states([copied_transformer])
    assert len(passes) > 1
    assert torch.equal(copied_states, states(model))


@pytest.mark.skipif(not hasattr(transformers, "GgufConfig"), reason="no GGUF file is made dense")
@pytest.mark.parametrize("weight_type", ["F32", "Q8_0"])
def test_a_gguf_file_shares_like_a_folder(tmp_path: Path, weight_type: str) -> None:
    base_file = gguf_file(tmp_path, weight_type)
    assert_shares(build(str(base_file), "prompteol", template=QUESTIONS))


@pytest.mark.slow
def test_a_compiled_decoder_shares(base: Base) -> None:
    """Traced by torch, without its compiler, which takes minutes."""
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS[:2])
    with whole_rows():
        whole_states = states(model)
    with counted_positions(model) as passes:
        model[0].model = torch.compile(model[0].model, backend="eager", dynamic=True)
        shared_states = states(model)
    torch._dynamo.reset()
    assert len(passes) > 1
    assert_close(shared_states, whole_states, TOLERANCE)


def test_a_model_that_keeps_other_states_is_not_shared(tmp_path: Path) -> None:
    """It is tried when a model is built, and what is saved says so."""
    families.save("mamba", tmp_path)
    model: Any = build(str(tmp_path), "prompteol", template=QUESTION)
    assert not model[0].can_share()
    assert describe_model("", model)["prompt computed"] == "with every text"
    assert states(model).isfinite().all()
    saved_folder = str(tmp_path / "saved")
    model.save_pretrained(saved_folder)
    assert model[0].load_config(saved_folder)["shares_prefix"] is False


def count_from_zero(layer: BranchLayer) -> int:
    return 0


def join_keys_of_first_row(layer: BranchLayer, earlier_keys: Tensor, added_keys: Tensor) -> Tensor:
    first_row = earlier_keys[:1, :, : layer.start].expand(len(added_keys), -1, -1, -1)
    return torch.cat([first_row, added_keys], dim=2)


def join_last_keys(layer: BranchLayer, earlier_keys: Tensor, added_keys: Tensor) -> Tensor:
    """Those before the end, padding among them."""
    last_keys = earlier_keys[:, :, -layer.start :][layer.source_rows]
    return torch.cat([last_keys, added_keys], dim=2)


def join_without_first_key(layer: BranchLayer, earlier_keys: Tensor, added_keys: Tensor) -> Tensor:
    source_keys = earlier_keys[:, :, : layer.start][layer.source_rows].clone()
    source_keys[:, :, 0] = 0
    return torch.cat([source_keys, added_keys], dim=2)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "positions from 0": ("get_seq_length", count_from_zero),
    "another text's keys": ("join", join_keys_of_first_row),
    "keys of padding": ("join", join_last_keys),
    "a key is lost": ("join", join_without_first_key),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_at_build_finds_a_fault(
    base: Base, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Then rows run whole."""
    method_name, faulty_method = FAULTS[fault]
    monkeypatch.setattr(BranchLayer, method_name, faulty_method)
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS)
    assert not model[0].can_share()
    assert describe_model("", model)["prompt computed"] == "with every text"
    with counted_positions(model) as passes:
        encoded(model, TEXTS)
    assert len(passes) == 1
