"""A batch that runs in stages has the states of whole rows, at every position, and computes what is shared once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from gguf_writing import gguf_file
from marks import Base, slow_but
from pipelines import assert_gradients, build, counted_positions, encoded, features_of, gradients, made
from torch import Tensor

from st_reba.cli.models import describe_model
from st_reba.encode import batch_positions, computed_positions, encode_texts, prefix_of, token_batches
from st_reba.modules import shared_prefix
from st_reba.modules.layout import RowLayout
from st_reba.modules.shared_prefix import BranchLayer

# Two texts of one length, one of a single token, and one that is longer than every window.
TEXTS = ["The bank is steep.", "天", "The bank is stiff.", "The river runs past the old mill and under the bridge."]
QUESTION = 'Text: "{text}" In one word: "'
QUESTIONS = [QUESTION, 'Text: "{text}" Its mood: "', 'Text: "{text}', 'In reverse: "{reversed}" In one word: "']
TOLERANCE = 5e-6
METHODS: dict[str, dict[str, Any]] = {
    "prompteol": {"method": "prompteol", "template": QUESTION},
    "outputs": {"method": "prompteol", "template": QUESTION, "read": "attention"},
    "classical": {"method": "classical", "template": "Write: {text}", "pooled": "all", "pooling": "mean"},
    "echo": {"method": "echo", "template": "Rewrite: {text} Rewritten: {text}", "pooling": "mean"},
    "layers": {"method": "echo", "template": "Rewrite: {text} Rewritten: {text}", "layer": [0, 2]},
    "questions": {"method": "prompteol", "template": QUESTIONS},
    "question outputs": {"method": "prompteol", "template": QUESTIONS, "read": "attention"},
}
BASES = ("llama", "gpt2", "mistral", "gemma2", "gemma3_text", "gpt_oss", "falcon_alibi", "bloom", "qwen3")
# A block of Bloom adds its attention to the states by itself, so its outputs cannot be read.
WITHOUT_OUTPUTS = {("bloom", "outputs"), ("bloom", "question outputs")}
CASES = [(base, method) for base in BASES for method in METHODS if (base, method) not in WITHOUT_OUTPUTS]
QUICK = [
    *(("llama", method) for method in METHODS),
    ("gemma2", "questions"),
    ("bloom", "questions"),
    ("mistral", "echo"),
]


@pytest.fixture(autouse=True)
def _no_stage_is_too_dear(monkeypatch: pytest.MonkeyPatch) -> None:
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


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest, relative to the scale of the wanted states."""
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("name", "method"), slow_but(CASES, *QUICK, rows=True))
def test_shared_rows_have_the_states_of_whole_rows(base: Base, name: str, method: str) -> None:
    model: Any = build(base(name), **METHODS[method])
    with counted_positions(model) as passes:
        shared = states(model)
    with whole_rows():
        whole = states(model)
    assert len(passes) > 1 and difference(shared, whole) <= TOLERANCE


@pytest.mark.parametrize("prefix_length", [1, 5, 6, 7, 60, 200])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_prefix_may_be_of_any_length(base: Base, name: str, prefix_length: int) -> None:
    """Shorter than a window of 6, as long, and longer."""
    model: Any = build(base(name), "prompteol", template="{text} is")
    *_, question = model[0].row_layouts()[0].segments
    frame = RowLayout((tuple(range(10, 10 + prefix_length)), None, question))
    model[0].row_layouts = lambda *args, **fields: (frame,)
    with counted_positions(model) as passes:
        shared = states(model)
    assert passes[0] == prefix_length and len(passes) == 2
    with whole_rows():
        assert difference(shared, states(model)) <= TOLERANCE


def test_what_is_shared_is_computed_once(base: Base) -> None:
    """The prefix once a batch, each text once behind it, and every question behind texts of one length."""
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS[:2])
    frames = model[0].row_layouts()
    prefix_length = len(frames[0].segments[0] + frames[0].segments[1])
    lengths = [len(token_ids) for token_ids in model[0].content(TEXTS)["input_ids"]]
    question_length = max(len(frame.segments[3]) for frame in frames)
    with counted_positions(model) as passes:
        states(model)
    assert passes[0] == prefix_length and passes[1] == len(lengths) * max(lengths)
    assert passes[2:] == [2 * lengths.count(length) * question_length for length in sorted(set(lengths))]


def test_a_prefix_runs_once_for_all_batches_of_an_encode(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    prefix_length = len(model[0].row_layouts()[0].segments[0] + model[0].row_layouts()[0].segments[1])
    with counted_positions(model) as passes:
        model.encode(TEXTS, batch_size=2)
    assert len(passes) == 3 and passes.count(prefix_length) == 1
    with counted_positions(model) as passes:
        model.encode(TEXTS, batch_size=2)
    assert passes.count(prefix_length) == 1


def add_in_place(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.add_(0.1)


def replace_data(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data + 0.1


@pytest.mark.parametrize("template", [QUESTION, QUESTIONS])
@pytest.mark.parametrize("change", [add_in_place, replace_data])
def test_a_prefix_runs_again_where_weights_have_changed(
    base: Base, change: Callable[[torch.nn.Parameter], None], template: Any
) -> None:
    """Without a change of mode between two batches."""
    model: Any = build(base("llama"), "prompteol", template=template).eval()
    features = dict(model[0].preprocess(TEXTS))
    with torch.no_grad():
        before = model[0](features)["token_embeddings"]
        change(model[0].model.layers[0].self_attn.k_proj.weight)
        after = model[0](features)["token_embeddings"]
        with whole_rows():
            whole = model[0](features)["token_embeddings"]
    assert difference(before, whole) > 1e-3
    assert difference(after, whole) <= TOLERANCE


def test_positions_are_counted_as_they_are_computed(base: Base) -> None:
    """In a batch of one length, but for what all texts share; memory is bounded by more than these."""
    texts = ["a b", "b a"]
    for template in (QUESTION, QUESTIONS[:1] * 2):
        model: Any = build(base("llama"), "prompteol", template=template)
        with counted_positions(model) as passes:
            encode_texts(model, texts)
        assert sum(computed_positions(model[0], texts, {})) == sum(passes[1:])
        assert sum(batch_positions(model[0], texts, {})) > sum(passes[1:])
        with whole_rows(), counted_positions(model) as passes:
            encode_texts(model, texts)
        assert sum(batch_positions(model[0], texts, {}, whole=True)) == sum(passes)


LAYOUTS: list[Any] = [
    QUESTION,
    "A long beginning that all of the texts of a batch have in common: {text}",
    "{text} In one word:",
    "Rewrite: {text} Rewritten: {text}",
    {"query": "Query: {text}", "document": QUESTION},
    QUESTIONS[:2],
    QUESTIONS,
    [QUESTION, "Another beginning: {text}"],
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_what_is_counted_is_what_passes_see(base: Base, number: int) -> None:
    """Of texts of all lengths: what passes see is the count, a prefix for each batch, and padding, which is bounded."""
    template = LAYOUTS[number]
    method = "echo" if isinstance(template, str) and template.count("{text}") > 1 else "prompteol"
    model: Any = build(base("llama"), method, template=template)
    frames = model[0].row_layouts()
    prefixes = {prefix_of(frame) for frame in frames}
    behind_prefix = [frame.overhead - len(prefix_of(frame)) for frame in frames]
    question_padding = sum(max(behind_prefix) - length for length in behind_prefix)
    random_state = Random(number)
    for _ in range(3):
        texts = [" ".join(random_state.choices("abcdef", k=random_state.randint(1, 30))) for _ in range(40)]
        counts = computed_positions(model[0], texts, {})
        with counted_positions(model) as passes:
            encode_texts(model, texts, batch_tokens=600)
        least, most = sum(counts), 0
        for batch in token_batches(batch_positions(model[0], texts, {}), 600):
            shared_once = sum(map(len, prefixes))
            longest = max(counts[row] for row in batch)
            least += shared_once
            most += shared_once + len(batch) * (longest + question_padding)
        assert least <= sum(passes) <= most
        # Whole rows see more, where more than special tokens is shared; a count of them would be too high.
        if min(map(len, prefixes)) > 4:
            assert sum(passes) < sum(batch_positions(model[0], texts, {}, whole=True))


def test_a_prompt_and_fields_are_a_prefix_too(base: Base) -> None:
    """Given at encode, where the template has a field for them or the text stands bare."""
    bare: Any = build(base("llama"), "classical", pooling="mean")
    with_fields: Any = build(base("llama"), "echo", template="On {topic}: {instruction} {text} Again: {text}")
    layouts: list[tuple[Any, dict[str, Any]]] = [
        (bare, {"prompt": "Find what is like this: "}),
        (with_fields, {"prompt": "Find", "topic": "rivers"}),
    ]
    for model, layout in layouts:
        with counted_positions(model) as passes:
            shared = encoded(model, TEXTS, **layout)
        with whole_rows():
            assert difference(shared, encoded(model, TEXTS, **layout)) <= TOLERANCE
        assert len(passes) == 2


def test_a_batch_of_other_code_may_mix_prefixes(base: Base) -> None:
    """Its rows are looked at, whoever made them; what they do not share runs whole."""
    by_task = {"query": "Query: {text} is", "document": "Document of some length: {text} is"}
    model: Any = build(base("llama"), "prompteol", template=by_task)
    features = model[0].preprocess(TEXTS[:2], task="query")
    others = model[0].preprocess(TEXTS[:2], task="document")
    width = max(features["input_ids"].shape[1], others["input_ids"].shape[1])
    mixed: dict[str, Any] = {
        name: torch.cat(
            [torch.nn.functional.pad(some[name], (0, width - some[name].shape[1])) for some in (features, others)]
        )
        for name in ("input_ids", "attention_mask", "copy_ids")
    }
    with torch.inference_mode():
        found = model[0].eval()(dict(mixed))["token_embeddings"]
        for rows, some in ((found[:2], features), (found[2:], others)):
            with whole_rows():
                wanted = model[0](dict(some))["token_embeddings"]
            assert difference(rows[:, : wanted.shape[1]], wanted) <= TOLERANCE


@pytest.mark.parametrize("name", ["reba template", "chunk last", "mask0", "inter", "rerouted"])
def test_rows_run_whole_where_attention_is_shown_or_masked(base: Base, name: str) -> None:
    template = None if name == "chunk last" else "Write of this: {text}" + " Again: {text}" * (name == "reba template")
    model: Any = made(base("llama"), name, template=template)
    assert not model[0].can_share()
    with counted_positions(model) as passes:
        encoded(model, TEXTS)
    assert min(passes) >= len(TEXTS) * 2


def test_rows_run_whole_where_gradients_are_wanted(base: Base) -> None:
    """Training after inference finds nothing that inference left."""
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    fresh: Any = build(base("llama"), "prompteol", template=QUESTION)
    encoded(model, TEXTS)
    with counted_positions(model) as passes:
        found = gradients(model.train(), features_of(model, TEXTS))
    assert len(passes) == 1
    assert_gradients(found, gradients(fresh.train(), features_of(fresh, TEXTS)))
    embeddings = model[0].model.get_input_embeddings().weight
    embeddings.data.mul_(1.5)
    changed = encoded(model.eval(), TEXTS)
    with whole_rows():
        assert difference(changed, encoded(model, TEXTS)) <= TOLERANCE


def test_a_few_positions_are_not_worth_a_stage(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text has nothing to share but with its own questions; two save one prefix."""
    model: Any = build(base("llama"), "prompteol", template=QUESTION)
    prefix_length = features_of(model)["spans"][0].start
    for stage_cost, texts, pass_count in (
        (1, TEXTS[:1], 1), (prefix_length, TEXTS[:2], 2), (prefix_length + 1, TEXTS[:2], 1),
    ):  # fmt: skip
        monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", stage_cost)
        with counted_positions(model) as passes:
            encoded(model, texts)
        assert len(passes) == pass_count
    several: Any = build(base("llama"), "prompteol", template=QUESTIONS[:2])
    monkeypatch.setitem(shared_prefix.STAGE_COST, "cpu", prefix_length + 1)
    with counted_positions(several) as passes:
        encoded(several, TEXTS[3:])
    assert len(passes) == 2


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_any_attention_implementation(base: Base, implementation: str) -> None:
    options = {"attn_implementation": implementation}
    for name in ("llama", "gemma3_text"):
        model: Any = build(base(name), "prompteol", template=QUESTIONS, model_kwargs=options)
        with whole_rows():
            whole = states(model)
        assert model[0].can_share() and difference(states(model), whole) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(base: Base, dtype: str) -> None:
    """As close to float32 as whole rows are."""
    exact = states(build(base("llama"), "prompteol", template=QUESTION))
    model: Any = build(base("llama"), "prompteol", template=QUESTION, dtype=dtype)
    with whole_rows():
        rounding = difference(states(model).float(), exact)
    assert model[0].can_share() and difference(states(model).float(), exact) <= 2 * rounding


def test_threads_share_nothing_with_each_other(base: Base) -> None:
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS)
    wanted = states(model)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: states(model), range(8)):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("template", [QUESTION, QUESTIONS])
def test_copied_code_shares_alike(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: Any) -> None:
    """The file that travels with a model, without the package's own sections."""
    model: Any = build(base("llama"), "prompteol", template=template)
    model.save_pretrained(str(tmp_path))
    spec: Any = importlib.util.spec_from_file_location("copied_code", tmp_path / "st_reba.py")
    code: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "copied_code", code)
    spec.loader.exec_module(code)
    code.STAGE_COST["cpu"] = 1
    copied = code.RepeatTransformer.load(str(tmp_path), backend="torch")
    with counted_positions([copied]) as passes:
        found = states([copied])
    assert len(passes) > 1 and torch.equal(found, states(model))


@pytest.mark.skipif(not hasattr(transformers, "GgufConfig"), reason="no GGUF file is made dense")
@pytest.mark.parametrize("weight_type", ["F32", "Q8_0"])
def test_a_gguf_file_shares_like_a_folder(tmp_path: Path, weight_type: str) -> None:
    base_file = gguf_file(tmp_path, weight_type)
    model: Any = build(str(base_file), "prompteol", template=QUESTIONS)
    with counted_positions(model) as passes:
        shared_states = states(model)
    with whole_rows():
        whole_states = states(model)
    assert len(passes) > 1 and difference(shared_states, whole_states) <= TOLERANCE


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
    assert len(passes) > 1 and difference(shared_states, whole_states) <= TOLERANCE


def test_a_model_that_keeps_other_states_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried when a model is built, and what is saved says so."""
    import families

    families.save("mamba", tmp_path)
    model: Any = build(str(tmp_path), "prompteol", template=QUESTION)
    assert not model[0].can_share() and describe_model("", model)["prompt computed"] == "with every text"
    assert states(model).isfinite().all()
    model.save_pretrained(str(tmp_path / "saved"))
    assert model[0].load_config(str(tmp_path / "saved"))["shares_prefix"] is False


def _from_zero(layer: BranchLayer) -> int:
    return 0


def _with_key_of_first_row(layer: BranchLayer, earlier: Tensor, added: Tensor) -> Tensor:
    first_row = earlier[:1, :, : layer.start].expand(len(added), -1, -1, -1)
    return torch.cat([first_row, added], dim=2)


def _with_last_keys(layer: BranchLayer, earlier: Tensor, added: Tensor) -> Tensor:
    """Those before the end, padding among them."""
    return torch.cat([earlier[:, :, -layer.start :][layer.source_rows], added], dim=2)


def _without_first_key(layer: BranchLayer, earlier: Tensor, added: Tensor) -> Tensor:
    kept = earlier[:, :, : layer.start][layer.source_rows].clone()
    kept[:, :, 0] = 0
    return torch.cat([kept, added], dim=2)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "positions from 0": ("get_seq_length", _from_zero),
    "another text's keys": ("join", _with_key_of_first_row),
    "keys of padding": ("join", _with_last_keys),
    "a key is lost": ("join", _without_first_key),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_at_build_finds_a_fault(base: Base, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Then rows run whole."""
    name, wrong = FAULTS[fault]
    monkeypatch.setattr(BranchLayer, name, wrong)
    model: Any = build(base("llama"), "prompteol", template=QUESTIONS)
    assert not model[0].can_share() and describe_model("", model)["prompt computed"] == "with every text"
    with counted_positions(model) as passes:
        encoded(model, TEXTS)
    assert len(passes) == 1
