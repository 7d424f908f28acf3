"""The passes that tune tries, and the method behind each readout."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import numpy as np
import pytest

from st_reba import Method
from st_reba.encode import Role, encode_texts
from st_reba.evaluation.readouts import build_on, group_by_pass, load_base, readout_of
from st_reba.evaluation.shared_pass import Readout, run_pass
from st_reba.evaluation.tried_passes import (
    Pass,
    published_methods,
    search_passes,
    search_wordings,
    similarity_passes,
)
from st_reba.evaluation.vectors import normalize_rows
from st_reba.methods import DEFAULT
from st_reba.prompts import TEMPLATES

TEXTS = [
    "a man plays the guitar in the street",
    "a man plays the guitar near the river",
    "the old woman reads a long letter",
    "my neighbour is buying bread",
    "a black cat walks home late on a Sunday morning",
    "the teacher sings without a word",
]


@pytest.fixture(scope="module")
def base_folder(base: Callable[..., str]) -> str:
    return base("deep")


def check_readouts(base_folder: str, tried_pass: Pass, layers: set[int], role: Role | None) -> None:
    """Readouts of a pass are the vectors of the models that are built for them."""
    base_model = load_base(base_folder)
    readouts = [readout for readout in tried_pass.readouts(6) if readout.layer in layers]
    vectors = run_pass(
        build_on(base_model, tried_pass.method),
        readouts,
        TEXTS,
        task=role,
    )
    for readout in readouts:
        method = tried_pass.method_of_readout(readout, 6)
        expected_vectors = encode_texts(build_on(base_model, method), TEXTS, task=role)
        unit_vectors = normalize_rows(vectors[readout])
        np.testing.assert_allclose(
            unit_vectors,
            expected_vectors,
            atol=2e-6,
            err_msg=str(method),
        )


@pytest.mark.parametrize("pass_index", range(15))
def test_similarity_readouts_are_the_vectors_of_their_methods(
    base_folder: str, pass_index: int
) -> None:
    tried_pass = similarity_passes(6, "LATIN", has_labels=True)[pass_index]
    check_readouts(base_folder, tried_pass, {3, 6}, None)


@pytest.mark.parametrize("role", ["query", "document"])
def test_search_readouts_are_the_vectors_of_their_methods(base_folder: str, role: Role) -> None:
    for tried_pass in search_passes(6, "LATIN"):
        check_readouts(base_folder, tried_pass, {4, 6}, role)


@pytest.mark.parametrize("pass_index", range(15))
def test_every_layer_is_read_by_every_pooling(pass_index: int) -> None:
    tried_pass = similarity_passes(6, "LATIN", has_labels=True)[pass_index]
    readouts = tried_pass.readouts(6)
    layer_count = 6 - (tried_pass.first_masked_layer or 0)
    expected_count = layer_count * len(tried_pass.poolings) + len(tried_pass.first_output_layers)
    assert len(readouts) == len(set(readouts)) == expected_count


def test_deep_bases_are_read_at_some_layers() -> None:
    masked_pass = similarity_passes(34, "LATIN")[4]
    layers = list(map(attrgetter("layer"), masked_pass.readouts(34)))
    assert layers == list(range(34, 17, -3))


def test_prompts_are_read_from_attention_outputs_too() -> None:
    passes = similarity_passes(30, "LATIN", has_labels=True)
    prompt_passes = [
        index for index, tried_pass in enumerate(passes) if tried_pass.first_output_layers
    ]
    assert prompt_passes == [0, 1, 2, 12, 13, 14, 15, 16]
    assert passes[1].readouts(30)[-1] == Readout(30, "end", 11)


def test_similarity_passes_differ() -> None:
    passes = similarity_passes(30, "LATIN", has_labels=True)
    assert len(set(map(attrgetter("method"), passes))) == len(passes)


def test_the_small_search_is_the_beginning_of_the_whole_one() -> None:
    assert similarity_passes(30, "LATIN", is_small=True) == similarity_passes(30, "LATIN")[:5]
    assert len(search_passes(6, "LATIN", is_small=True)) == 3


def test_published_methods_are_read_from_the_passes() -> None:
    passes = similarity_passes(30, "LATIN", has_labels=True)
    published = published_methods(30, "LATIN", {}).values()
    pass_methods = list(map(attrgetter("method"), passes))
    assert len(group_by_pass([*published, *pass_methods], 30)) == len(passes)


def test_the_published_k_is_the_better_one() -> None:
    better_method = Method("classical", pooling="mean", setting="mask0-bidir", k=20)
    published = published_methods(30, "LATIN", {better_method: 0.5})
    assert published["NoSink, MASK0-BIDIR"].k == 20
    assert published_methods(30, "LATIN", {})["NoSink, MASK0-BIDIR"].k == 15


def test_the_prompt_is_in_the_language_of_the_texts() -> None:
    default_pass, prompt_pass = similarity_passes(6, "CJK")[:2]
    assert default_pass.method.template == "prompteol-search-zh"
    assert "一个词" in prompt_pass.method.full_template
    assert similarity_passes(6, "CYRILLIC")[1].method.template is None
    assert published_methods(6, "CJK", {})["PromptEOL"].template == "prompteol-zh"
    assert published_methods(6, "LATIN", {})["PromptEOL"].template is None


def test_named_templates_for_search_are_tried_in_their_language() -> None:
    english_wordings = search_wordings("LATIN")
    assert "prompteol-search" in english_wordings
    assert "prompteol-search-zh" not in english_wordings
    assert "prompteol-search-zh" in search_wordings("CJK")


def test_search_wordings_tell_queries_from_documents() -> None:
    for wording in search_wordings("LATIN")[:-1]:
        template = TEMPLATES[wording] if isinstance(wording, str) else wording
        assert template["query"] != template["document"]


def test_every_search_wording_is_a_pass() -> None:
    passes = search_passes(6, "LATIN")
    wordings = search_wordings("LATIN")
    templates = list(map(attrgetter("method.template"), passes))
    assert templates[: len(wordings)] == wordings
    assert len(set(map(attrgetter("method"), passes))) == len(passes) == len(wordings) + 2


def test_the_default_of_build_is_a_candidate_for_search() -> None:
    default = Method.parse(DEFAULT)
    default_readout = readout_of(default, 6)
    candidates = []
    for tried_pass in search_passes(6, "LATIN"):
        if tried_pass.method.template == default.template:
            candidates += tried_pass.readouts(6)
    assert default_readout in candidates
