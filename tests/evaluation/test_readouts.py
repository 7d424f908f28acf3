"""Readouts of one pass, against models that are built for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from marks import slow_but
from pipelines import counted_positions
from sentence_transformers import SentenceTransformer

from st_reba import Method
from st_reba.encode import computed_positions, encode_texts, transformer_of
from st_reba.evaluation import shared_pass
from st_reba.evaluation.encoding import averaging_bar
from st_reba.evaluation.readouts import (
    build_on,
    depth_of,
    encode_methods,
    group_by_pass,
    load_base,
    readout_of,
)
from st_reba.evaluation.shared_pass import Readout, run_pass
from st_reba.evaluation.vectors import Vectors, normalize_rows

TEXTS = [
    "Hello",
    "你好，世界",
    "a man plays the guitar on a quiet street",
    "x",
    "",
    "a man plays the guitar",
]
TWO_TEMPLATES = '"{text} is","{text} means"'
READ_FROM_A_SHARED_PASS = [
    "echo:pooling=mean",
    "echo",
    "reba",
    "reba:pooling=mean",
    "reba:pooling=mean,layer=1",
    "reba:layer=-2",
    "echo:pooling=mean,layer=1",
    "classical",
    "classical:pooling=mean,layer=1",
    "prompteol",
    "prompteol:layer=1",
    "nosink:setting=mask0-bidir,k=1",
    "nosink:setting=mask0-bidir,k=2",
    "nosink:setting=mask0-bidir,k=1,layer=2",
    "echo:pooling=mean,setting=mask0-bidir,k=1",
    "reba:pooling=mean,setting=inplace-bidir,k=1",
    "reba:normalize=false",
    "prompteol:read=attention",
    "prompteol:read=attention,layer=1",
    "echo:read=attention,pooling=mean,layer=[1,2]",
    "prompteol:template=reverseol",
    "prompteol:template=reverseol,read=attention",
    f"prompteol:template=[{TWO_TEMPLATES}],weights=[1,-0.5],equal_norms=false,layer=1",
]
RUN_ALONE = [
    "nosink:setting=inter-bidir,k=1",
    "classical:pooling=cls",
    "classical:pooling=mean,layer=[0,1]",
    "classical:pooling=mean,layer=0",
    "reba:implementation=authors",
    "reba:include_special=true",
    "echo:pooled=repeats,pooling=mean",
    "echo:pooling=mean,layer=1,final_norm=false",
]


def parse_methods(names: list[str]) -> list[Method]:
    return [Method.parse(name) for name in names]


def check_vectors(base_model: SentenceTransformer, methods: list[Method]) -> None:
    """Vectors from shared passes are those of the models."""
    vectors = encode_methods(base_model, methods, TEXTS)
    assert list(vectors) == methods
    for method in methods:
        expected_vectors = build_on(base_model, method).encode(TEXTS)
        tolerance = 2e-6 * np.linalg.norm(expected_vectors, axis=1).max()
        np.testing.assert_allclose(
            vectors[method],
            expected_vectors,
            atol=tolerance,
            rtol=0,
            err_msg=str(method),
        )


@pytest.mark.parametrize(
    "architecture",
    slow_but(["llama", "gpt2", "gemma2"], "llama", "gemma2"),
)
def test_readouts_are_the_vectors_of_their_models(
    base: Callable[..., str], architecture: str
) -> None:
    methods = parse_methods(READ_FROM_A_SHARED_PASS)
    base_model = load_base(base(architecture))
    assert None not in [readout_of(method, depth_of(base_model)) for method in methods]
    check_vectors(base_model, methods)


@pytest.mark.parametrize("architecture", slow_but(["llama"], "llama"))
def test_other_methods_run_alone(base: Callable[..., str], architecture: str) -> None:
    methods = parse_methods(RUN_ALONE)
    base_model = load_base(base(architecture))
    assert {readout_of(method, depth_of(base_model)) for method in methods} == {None}
    check_vectors(base_model, methods)


PROMPT = 'A text that stands for all others: "{text}" In one word: "'
METHODS_WITH_PREFIX = {
    "states": Method("prompteol", template=PROMPT),
    "outputs": Method("prompteol", template=PROMPT, read="attention"),
    "mean": Method("classical", template=PROMPT, pooling="mean"),
    "echo": Method("echo", template="Rewrite this text: {text} Rewritten: {text}", pooling="mean"),
    "questions": Method(
        "prompteol",
        template=(PROMPT, PROMPT.replace("one word", "a word or two")),
    ),
    "by task": Method("prompteol", template={"query": "Query: {text} is", "document": PROMPT}),
}


@pytest.mark.parametrize("name", METHODS_WITH_PREFIX)
def test_a_shared_prefix_runs_once_a_batch_as_in_the_model(
    base: Callable[..., str], name: str
) -> None:
    base_model = load_base(base("llama"))
    method = METHODS_WITH_PREFIX[name]
    model = build_on(base_model, method)
    texts = [f"{text} {row_number}" for row_number, text in enumerate(TEXTS * 8)]
    with counted_positions(model) as model_positions:
        expected_vectors = encode_texts(model, texts)
    readout = readout_of(method, depth_of(model))
    assert readout is not None
    plain_model = build_on(base_model, replace(method, read="states"))
    with counted_positions(plain_model) as pass_positions:
        vectors = run_pass(plain_model, [readout], texts)[readout]
    assert pass_positions == model_positions
    assert len(model_positions) > 1
    # Padding is not counted; a batch that shares nothing would compute twice as many.
    assert sum(pass_positions) < 1.5 * sum(computed_positions(model[0], texts, {}))
    np.testing.assert_allclose(normalize_rows(vectors), expected_vectors, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "readout"),
    [
        ("prompteol:read=attention", Readout(8, "end", 5)),
        ("classical:layer=-8", Readout(1, "last")),
        ("classical:layer=10", None),
        ("classical:layer=-10", None),
        ("echo:read=attention,layer=[1,11]", None),
    ],
)
def test_layers_are_counted_from_either_end(name: str, readout: Readout | None) -> None:
    assert readout_of(Method.parse(name), 8) == readout


def test_attention_outputs_are_read_from_a_range_of_layers() -> None:
    base_model = load_base("mini")
    method = Method(
        "classical",
        pooling="mean",
        read="attention",
        layer=(2, 4),
        normalize=False,
    )
    readout = Readout(4, "mean", 2)
    vectors = run_pass(base_model, [readout], TEXTS)[readout]
    np.testing.assert_allclose(
        vectors,
        build_on(base_model, method).encode(TEXTS),
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("names", "pass_count"),
    [
        (READ_FROM_A_SHARED_PASS[:7], 1),
        (["classical", "nosink:setting=baseline", "classical:max_seq_length=32"], 2),
        (
            [
                "echo",
                "echo:repeats=3",
                "echo:repeats=4",
                "echo:compute_matched=true",
                "echo:template=echo",
            ],
            5,
        ),
        (["nosink:setting=mask0-bidir,k=3", "nosink:setting=mask0-bidir,k=2"], 2),
        (["nosink:setting=mask0-bidir,k=3", "nosink:setting=mask0-bidir,k=3,m=2"], 2),
        (
            [
                "nosink:setting=mask0-bidir,k=4",
                "nosink:setting=mask0-bidir,k=2,layer=4",
                "classical:layer=2",
            ],
            1,
        ),
        (
            [
                "nosink:setting=inplace-bidir,k=3",
                "nosink:setting=mask0-bidir,k=3",
                "classical:layer=3",
            ],
            2,
        ),
        (["prompteol", "classical:template=prompteol,layer=3", "classical"], 2),
        (RUN_ALONE[:3], 3),
        (
            [
                "prompteol:template=reverseol",
                "prompteol:template=reverseol,read=attention",
                "prompteol",
            ],
            2,
        ),
        (["prompteol:template=contrastive", "prompteol:template=contrastive,weights=[1,0]"], 2),
    ],
)
def test_methods_share_a_pass_if_and_only_if_input_and_masks_agree(
    names: list[str], pass_count: int
) -> None:
    groups = group_by_pass(parse_methods(names), 6)
    assert len(groups) == pass_count
    grouped_names = [str(method) for group in groups.values() for method in group]
    assert sorted(grouped_names) == sorted(map(str, parse_methods(names)))


def test_no_texts_have_no_vectors() -> None:
    method = Method("echo")
    assert encode_methods(load_base("mini"), [method], [])[method].shape == (0, 192)


def test_states_of_all_layers_that_are_read_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base_model = load_base("mini")
    readouts = [Readout(3, "mean"), Readout(6, "mean"), Readout(6, "last"), Readout(6, "mean", 4)]
    shared = shared_pass.SharedPass(base_model, readouts, for_words=False)
    row_length = len(transformer_of(base_model).preprocess(["a cat"])["input_ids"][0])
    reading_count = 3
    monkeypatch.setattr(shared_pass, "_MAX_NUMBERS", 3 * row_length * shared.width * reading_count)
    assert list(map(len, shared.plan_batches(["a cat"] * 7, 4096, {}))) == [3, 3, 1]


def test_vectors_depend_on_neither_batch_nor_repetition() -> None:
    base_model = load_base("mini")
    methods = parse_methods(["reba:pooling=mean", "reba", "echo"])
    expected_vectors = encode_methods(base_model, methods, TEXTS)
    for method in methods:
        small_batches = encode_methods(
            base_model,
            [method],
            [*TEXTS[::-1], *TEXTS],
            batch_tokens=32,
        )
        repeated = np.concatenate(
            [
                expected_vectors[method][::-1],
                expected_vectors[method],
            ]
        )
        np.testing.assert_allclose(small_batches[method], repeated, atol=1e-6)


@pytest.fixture(scope="module")
def deep_base(base: Callable[..., str]) -> SentenceTransformer:
    return load_base(base("deep"))


WORD_TEXT = TEXTS[2]


def encode_ranges(
    base_model: SentenceTransformer, name: str, ranges: list[tuple[int, int]]
) -> Vectors:
    """Vectors of ranges of the text's tokens, by a method."""
    method = Method.parse(f"{name},normalize=false")
    return encode_methods(
        base_model,
        [method],
        [WORD_TEXT] * len(ranges),
        token_ranges=ranges,
    )[method]


def token_count_of(base_model: SentenceTransformer) -> int:
    return len(transformer_of(base_model).tokenize_content([WORD_TEXT])["input_ids"][0])


def encode_single_tokens(base_model: SentenceTransformer, name: str) -> Vectors:
    single_tokens = [(token, token + 1) for token in range(token_count_of(base_model))]
    return encode_ranges(base_model, name, single_tokens)


@pytest.mark.parametrize("name", ["echo", "reba"])
def test_mean_and_last_of_one_token_are_equal(deep_base: SentenceTransformer, name: str) -> None:
    means = encode_single_tokens(deep_base, f"{name}:pooling=mean")
    last_vectors = encode_single_tokens(deep_base, f"{name}:pooling=last")
    np.testing.assert_allclose(means, last_vectors, atol=1e-4)
    # The premise: tokens differ.
    assert np.abs(means[1] - means[2]).max() > 0.01


@pytest.mark.parametrize(
    "name", ["echo:pooling=mean", "echo:pooling=last", "reba:pooling=mean", "reba:pooling=last"]
)
def test_the_range_of_all_tokens_is_the_text(deep_base: SentenceTransformer, name: str) -> None:
    method = Method.parse(f"{name},normalize=false")
    expected_vectors = encode_methods(deep_base, [method], [WORD_TEXT])[method]
    whole_range = [(0, token_count_of(deep_base))]
    np.testing.assert_allclose(
        encode_ranges(deep_base, name, whole_range),
        expected_vectors,
        atol=1e-4,
    )


@pytest.mark.parametrize("name", ["echo:pooling=mean", "reba:pooling=mean"])
def test_the_mean_of_a_range_is_over_its_tokens(deep_base: SentenceTransformer, name: str) -> None:
    expected_vectors = encode_single_tokens(deep_base, name)[1:3].mean(axis=0)
    np.testing.assert_allclose(
        encode_ranges(deep_base, name, [(1, 3)])[0],
        expected_vectors,
        atol=2e-5,
    )


@pytest.mark.parametrize("name", ["echo:pooling=last", "reba:pooling=last"])
def test_the_last_token_of_a_range_is_taken(deep_base: SentenceTransformer, name: str) -> None:
    expected_vectors = encode_single_tokens(deep_base, name)[2]
    np.testing.assert_allclose(
        encode_ranges(deep_base, name, [(1, 3)])[0],
        expected_vectors,
        atol=2e-5,
    )


def test_a_base_stays_as_it_is_and_shares_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    base_model = load_base("mini")
    expected_vectors = base_model.encode(TEXTS)
    model = build_on(base_model, Method("reba", layer=3))
    assert next(model.parameters()).data_ptr() == next(base_model.parameters()).data_ptr()
    check_masks = Mock()
    monkeypatch.setattr("st_reba.assembly.check_masks", check_masks)
    encode_methods(base_model, parse_methods(["reba", "nosink:setting=mask0-bidir,k=2"]), TEXTS)
    assert check_masks.called
    assert depth_of(base_model) == 6
    np.testing.assert_array_equal(base_model.encode(TEXTS), expected_vectors)


@pytest.mark.parametrize(("method_length", "length"), [(None, 32), (16, 16)])
def test_the_length_is_the_bases_unless_the_method_has_another(
    method_length: int | None, length: int
) -> None:
    base_model = load_base("mini", max_seq_length=32)
    transformer = transformer_of(build_on(base_model, Method("reba", max_seq_length=method_length)))
    assert transformer.tokenizer.model_max_length == length
    assert transformer.recipe is not None
    assert transformer.recipe["max_seq_length"] == length


@pytest.mark.parametrize(
    "method",
    [Method("echo"), Method("echo", pooled="repeats")],
    ids=["shared", "alone"],
)
def test_progress_counts_positions(method: Method) -> None:
    base_model = load_base("mini")
    counts: list[int] = []
    encode_methods(base_model, [method], TEXTS, batch_tokens=16, progress=counts.append)
    assert sum(counts) == sum(computed_positions(build_on(base_model, method)[0], TEXTS, {}))


@pytest.mark.bars
def test_a_progress_bar_is_shown_on_demand() -> None:
    assert not averaging_bar(1, True).disable
    assert averaging_bar(1, False).disable


@pytest.mark.parametrize(
    "readout",
    [
        Readout(7, "mean"),
        Readout(0, "mean"),
        Readout(2, "median"),
    ],
    ids=["too deep", "layer 0", "unknown pooling"],
)
def test_readouts_that_cannot_be_are_refused(readout: Readout) -> None:
    with pytest.raises(ValueError, match="give a layer from 1 to 6"):
        run_pass(load_base("mini"), [readout], ["a"])


@pytest.mark.parametrize(
    ("method", "token_range"),
    [
        (Method("echo"), (0, 5)),
        (Method("echo"), (1, 1)),
        (Method("classical", pooling="cls"), (0, 1)),
        (Method("prompteol", template="reverseol"), (0, 1)),
    ],
    ids=["too long", "empty", "runs alone", "two templates"],
)
def test_words_without_a_vector_are_refused(method: Method, token_range: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="token_ranges|words have no vector"):
        encode_methods(
            load_base("mini"),
            [method],
            ["a"],
            token_ranges=[token_range],
        )
