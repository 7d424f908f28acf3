"""Numbers of the page against the float64 oracle and plain Python."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from oracle import assert_close, oracle
from reference import reba, reba_weights, reba_word
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    Transformer,
)

import st_reba
from st_reba.explore import compute
from st_reba.explore.compute import (
    MAX_CHARACTERS,
    MAX_POSITIONS,
    Refused,
    look,
    tokens_of,
)

TEXT = "他在银行取了钱，then went home."


@pytest.mark.parametrize(
    ("method", "repeats"), [("reba", 2), ("reba", 3), ("echo:pooling=mean", 1)]
)
def test_weights_are_those_of_backward_attention(method: str, repeats: int) -> None:
    """Whatever the model's own number of copies, which stays."""
    model = st_reba.build("mini", method)
    vector_before = model.encode(TEXT)
    inside = look(model, TEXT, repeats)
    row, hidden, matrix = oracle("mini", TEXT, (None,) * repeats)
    assert inside.copies == list(row.copy_of)
    assert len(inside.maps.tokens) == len(row.ids)
    assert_close(inside.rows, reba_weights(matrix, row))
    mean_weights = torch.tensor(inside.weights([]))
    assert_close(mean_weights @ hidden / row.n, reba(hidden, matrix, row, "mean"))
    last_weights = torch.tensor(inside.weights([row.n - 1]))
    assert_close(last_weights @ hidden, reba(hidden, matrix, row, "last"))
    word_tokens = tokens_of(model, TEXT, " 取了 ")
    first_copy = row.positions(1)
    assert [inside.maps.tokens[first_copy[token]] for token in word_tokens] == [
        "取",
        "了",
    ]
    word_weights = torch.tensor(inside.weights(word_tokens))
    assert_close(word_weights @ hidden, reba_word(hidden, matrix, row, word_tokens))
    np.testing.assert_array_equal(model.encode(TEXT), vector_before)


def test_attention_is_that_of_the_copies_after_the_prompt() -> None:
    model = st_reba.build(
        "mini",
        "reba",
        prompts={"query": "query: "},
        default_prompt_name="query",
    )
    inside = look(model, "天气", 3)
    assert inside.copies[-6:] == [1, 1, 2, 2, 3, 3]
    assert "".join(inside.maps.tokens[1:-6]) == "query:␣"
    layer_count = len(inside.maps.layers)
    assert layer_count == len(inside.sinks) == compute.passes_of(model) == 6
    first_layer = inside.maps.layers[0].matrix
    assert first_layer.shape == (len(inside.copies), len(inside.copies))
    assert inside.sinks[0].sink == pytest.approx(first_layer[1:, 0].mean(), abs=1e-6)


@pytest.mark.parametrize(
    ("method", "options", "copies"),
    [
        ("echo", {"template": "echo", "pooling": "mean"}, (2, False)),
        ("reba", {"repeats": 3}, (3, True)),
        ("prompteol", {}, (1, False)),
    ],
)
def test_a_template_fixes_the_number_of_copies(
    method: str, options: dict[str, object], copies: tuple[int, bool]
) -> None:
    assert compute.copies_of(st_reba.build("mini", method, **options)) == copies


def test_a_template_keeps_its_copies() -> None:
    model = st_reba.build("mini", "echo", template="echo", pooling="mean")
    inside = look(model, TEXT, 4)
    template = (
        "Rewrite the following paragraph: ",
        None,
        ". The rewritten paragraph: ",
        None,
    )
    row, _, matrix = oracle("mini", TEXT, template)
    assert inside.copies == list(row.copy_of)
    assert_close(inside.rows, reba_weights(matrix, row))


def test_a_pipeline_made_by_hand_keeps_its_copies() -> None:
    model = st_reba.build("mini", "echo", repeats=3)
    model[0].recipe = None
    assert compute.copies_of(model) == (3, False)
    assert max(look(model, "天气", 2).copies) == 3


def test_a_layer_that_runs_twice_is_shown_twice() -> None:
    model = st_reba.build("mini", "nosink", setting="extra-bidir", k=2)
    assert compute.passes_of(model) == 8
    assert len(look(model, "天气", 2).maps.layers) == 8


def test_ensembles_and_other_models_cannot_be_looked_at() -> None:
    assert not compute.can_look(st_reba.build("mini", "prompteol", template="metaeol"))
    mini_folder = Path(st_reba.__file__).parent / "mini"
    modules = [Transformer(str(mini_folder)), Pooling(192, "mean")]
    assert not compute.can_look(SentenceTransformer(modules=modules))


CAT_TEXTS = ["Ships sail.", "a cat", "The cat sleeps on the sofa.", "a cat"]


@pytest.fixture(scope="module")
def prompted_model() -> SentenceTransformer:
    """Vectors that are not of length 1, and two prompts."""
    prompts = {"query": "query: ", "document": "passage: "}
    return st_reba.build("mini", "reba", normalize=False, prompts=prompts)


def cosine(vector: ArrayLike, other_vector: ArrayLike) -> float:
    lengths = np.linalg.norm(vector) * np.linalg.norm(other_vector)
    return float(np.dot(vector, other_vector) / lengths)


def test_similarities_are_cosines(prompted_model: SentenceTransformer) -> None:
    vectors = prompted_model.encode(CAT_TEXTS).astype(float)
    expected: list[list[float]] = []
    for vector in vectors:
        expected.append([cosine(vector, other_vector) for other_vector in vectors])
    np.testing.assert_allclose(compute.similarities(prompted_model, CAT_TEXTS), expected, atol=1e-6)


def test_results_are_ranked_by_cosine_and_ties_keep_their_order(
    prompted_model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query and documents have their prompts."""
    query = "Where is the cat?"
    query_vector = prompted_model.encode_query(query).astype(float)
    scored_texts: list[tuple[float, int, str]] = []
    for index, vector in enumerate(prompted_model.encode_document(CAT_TEXTS).astype(float)):
        score = round(cosine(query_vector, vector), 6)
        scored_texts.append((-score, index, CAT_TEXTS[index]))
    scored_texts.sort()
    monkeypatch.setattr(compute, "MAX_RESULTS", 3)
    hits = compute.ranked(prompted_model, query, CAT_TEXTS)
    assert [text for _, text in hits] == [text for _, _, text in scored_texts[:3]]
    scores = [score for score, _ in hits]
    expected_scores = [-negative_score for negative_score, _, _ in scored_texts[:3]]
    np.testing.assert_allclose(scores, expected_scores, atol=2e-6)


@pytest.mark.parametrize(
    ("base", "method", "called_functions"),
    [
        ("mini", None, ["build"]),
        ("a/base", None, ["load_file_path", "build"]),
        ("a/b", st_reba.Method(), ["build"]),
        ("a/b", None, ["load_file_path", "load"]),
        ("my model", None, ["load_file_path", "load"]),
    ],
)
def test_saved_models_are_loaded_as_they_are(
    base: str,
    method: st_reba.Method | None,
    called_functions: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Mock()
    recorder.load_file_path.return_value = None if base == "a/base" else "modules.json"
    for function in ("load", "build", "load_file_path"):
        monkeypatch.setattr(compute, function, getattr(recorder, function))
    monkeypatch.setattr(compute, "describe_unserved_tasks", Mock(return_value={}))
    monkeypatch.chdir(tmp_path)
    Path("my model").mkdir()
    model = compute.open_model(base, method, device="cpu")
    assert [name for name, _, _ in recorder.mock_calls] == called_functions
    last_function = called_functions[-1]
    assert model is getattr(recorder, last_function).return_value
    arguments = (base, method) if last_function == "build" else (base,)
    assert recorder.mock_calls[-1] == getattr(call, last_function)(*arguments, device="cpu")


def test_a_field_that_the_page_cannot_fill_is_refused() -> None:
    method = st_reba.Method.parse("echo:template=echo-instruct")
    with pytest.raises(ValueError, match=r"mini: .* the template's {instruction} has no value"):
        compute.open_model("mini", method)
    compute.open_model(
        "mini", st_reba.Method.parse("echo:template=echo-instruct,instruction=Find.")
    )


def test_lines_are_stripped_and_blank_ones_left_out() -> None:
    assert compute.lines_of(" a \n\n b", least=1, most=2) == ["a", "b"]
    longest_line = "长" * MAX_CHARACTERS
    assert compute.lines_of(longest_line, least=1, most=1) == [longest_line]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("\n", "too_few", {"count": 0, "least": 1}),
        ("a\nb\nc", "too_many", {"count": 3, "most": 2}),
        (
            "a\n" + "长" * (MAX_CHARACTERS + 1),
            "too_long",
            {"number": 2, "count": MAX_CHARACTERS + 1, "most": MAX_CHARACTERS},
        ),
    ],
)
def test_lines_beyond_the_bounds_are_refused(text: str, key: str, values: dict[str, int]) -> None:
    with pytest.raises(Refused) as refused:
        compute.lines_of(text, least=1, most=2)
    assert refused.value.key == key
    assert refused.value.values == values


def test_a_query_is_a_line_and_not_blank_or_long() -> None:
    assert compute.query_of(" a\n b") == "a b"
    longest_query = "长" * MAX_CHARACTERS
    assert compute.query_of(longest_query) == longest_query
    with pytest.raises(Refused) as refused:
        compute.query_of("\n ")
    assert refused.value.key == "no_query"
    with pytest.raises(Refused) as refused:
        compute.query_of("长" * (MAX_CHARACTERS + 1))
    assert refused.value.key == "long_query"
    assert refused.value.values == {"count": MAX_CHARACTERS + 1, "most": MAX_CHARACTERS}


@pytest.mark.parametrize(
    ("max_length", "token_count", "key", "values"),
    [
        (41, 21, "cut", {"count": 21, "kept": 20}),
        (
            None,
            MAX_POSITIONS // 2,
            "too_many_positions",
            {"count": MAX_POSITIONS + 1, "most": MAX_POSITIONS},
        ),
    ],
)
def test_a_text_that_does_not_fit_is_refused(
    max_length: int | None, token_count: int, key: str, values: dict[str, int]
) -> None:
    model = st_reba.build("mini", "reba", max_seq_length=max_length)
    with pytest.raises(Refused) as refused:
        look(model, "天" * token_count, 2)
    assert refused.value.key == key
    assert refused.value.values == values


def test_a_text_that_fits_just_is_shown() -> None:
    model = st_reba.build("mini", "reba", max_seq_length=41)
    assert len(look(model, "天" * 20, 2).copies) == 41


@pytest.mark.parametrize("word", ["狗", " "])
def test_a_word_that_is_not_in_the_text_is_refused(word: str) -> None:
    model = st_reba.build("mini", "reba")
    with pytest.raises(Refused, match="no_word"):
        tokens_of(model, TEXT, word)
