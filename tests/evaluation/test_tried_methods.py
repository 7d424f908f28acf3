"""The methods that tune tries, and the passes that they are read from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from st_reba import Method
from st_reba.encode import Role, encode_texts
from st_reba.evaluation import tune_plan
from st_reba.evaluation.readouts import (
    build_on,
    encode_methods,
    group_by_pass,
    load_base,
    readout_of,
)
from st_reba.evaluation.trials import Candidate
from st_reba.evaluation.tried_methods import (
    at_layers,
    published_methods,
    search_methods,
    search_wordings,
    similarity_methods,
)
from st_reba.evaluation.tune_plan import plan_by_views
from st_reba.evaluation.tune_report import ReportEntry
from st_reba.methods import DEFAULT_METHOD
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


def passes_of(methods: list[Method], depth: int = 6) -> list[list[Method]]:
    """The methods of each pass."""
    return list(group_by_pass(methods, depth).values())


def check_vectors(base_folder: str, methods: list[Method], role: Role | None) -> None:
    """Vectors of two layers, and of attention outputs, are those of the models that are built for them."""
    base_model = load_base(base_folder)
    read_methods = [
        method for method in methods if method.read == "attention" or method.layer in (None, 4)
    ]
    vectors = encode_methods(base_model, read_methods, TEXTS, task=role)
    for method in read_methods:
        expected_vectors = encode_texts(build_on(base_model, method), TEXTS, task=role)
        np.testing.assert_allclose(
            vectors[method],
            expected_vectors,
            atol=2e-6,
            err_msg=str(method),
        )


@pytest.mark.parametrize("pass_index", range(17))
def test_passes_for_similarity_give_the_vectors_of_their_methods(
    base_folder: str, pass_index: int
) -> None:
    methods = similarity_methods(6, "LATIN", has_labels=True)
    check_vectors(base_folder, passes_of(methods)[pass_index], None)


@pytest.mark.parametrize("role", ["query", "document"])
def test_passes_for_search_give_the_vectors_of_their_methods(base_folder: str, role: Role) -> None:
    check_vectors(base_folder, search_methods(6, "LATIN"), role)


def test_every_layer_is_read_by_every_pooling() -> None:
    methods = similarity_methods(6, "LATIN", has_labels=True)
    assert len(set(methods)) == len(methods)
    # From all six layers, or those above the half or the third where masks change, by one to four poolings; and one or
    # two ranges of attention outputs.
    method_counts = list(map(len, passes_of(methods)))
    assert method_counts == [8, 13, 7, 12, 3, 3, 4, 4, 24, 6, 3, 4, 7, 7, 7, 7, 7]
    assert list(map(len, passes_of(search_methods(6, "LATIN")))) == [14, 14, 14, 14, 12, 3]


def test_deep_bases_are_read_at_some_layers() -> None:
    masked_methods = at_layers(Method("classical", pooling="mean"), 34, 17)
    layers = [method.layer or 34 for method in masked_methods]
    assert layers == list(range(34, 17, -3))
    assert [method.k for method in masked_methods] == [layer - 17 for layer in layers]


def test_prompts_are_read_from_attention_outputs_too() -> None:
    passes = passes_of(similarity_methods(30, "LATIN", has_labels=True), 30)
    layers_of_pass = {}
    for index, methods in enumerate(passes):
        layers_of_pass[index] = [method.layer for method in methods if method.read == "attention"]
    assert layers_of_pass.pop(0) == [(11, 30), (16, 30)]
    prompts = [index for index, layers in layers_of_pass.items() if layers == [(11, 30)]]
    assert prompts == [1, 2, 12, 13, 14, 15, 16]


@pytest.mark.parametrize("depth", [6, 30, 34])
def test_methods_are_read_from_few_passes(depth: int) -> None:
    labelled_methods = similarity_methods(depth, "LATIN", has_labels=True)
    chinese_methods = similarity_methods(depth, "CJK", has_labels=True)
    passes = [labelled_methods, chinese_methods, similarity_methods(depth, "LATIN")]
    passes.append(search_methods(depth, "LATIN"))
    assert [len(group_by_pass(methods, depth)) for methods in passes] == [17, 15, 8, 6]


def test_the_small_search_is_the_beginning_of_the_whole_one() -> None:
    small_methods = similarity_methods(30, "LATIN", is_small=True)
    assert small_methods == similarity_methods(30, "LATIN")[: len(small_methods)]
    assert len(passes_of(small_methods, 30)) == 5
    assert len(passes_of(search_methods(6, "LATIN", is_small=True))) == 3


def test_published_methods_are_read_from_the_passes() -> None:
    methods = similarity_methods(30, "LATIN", has_labels=True)
    published = published_methods(30, "LATIN", {}).values()
    assert len(group_by_pass([*published, *methods], 30)) == len(passes_of(methods, 30))


def test_the_published_k_is_the_better_one() -> None:
    better_method = Method("classical", pooling="mean", setting="mask0-bidir", k=20)
    published = published_methods(30, "LATIN", {better_method: 0.5})
    assert published["NoSink, MASK0-BIDIR"].k == 20
    assert published_methods(30, "LATIN", {})["NoSink, MASK0-BIDIR"].k == 15


def test_the_prompt_is_in_the_language_of_the_texts() -> None:
    default_pass, prompt_pass, *_ = passes_of(similarity_methods(6, "CJK"))
    assert default_pass[0].template == "prompteol-search-zh"
    assert "一个词" in str(prompt_pass[0].full_template)
    assert passes_of(similarity_methods(6, "CYRILLIC"))[1][0].template is None
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
    passes = passes_of(search_methods(6, "LATIN"))
    wordings = search_wordings("LATIN")
    templates = [methods[0].template for methods in passes]
    assert templates == [*wordings, None, None]


def test_the_default_of_build_is_a_candidate_for_search() -> None:
    default = Method.parse(DEFAULT_METHOD)
    candidates = []
    for method in search_methods(6, "LATIN"):
        if method.template == default.template:
            candidates.append(readout_of(method, 6))
    assert readout_of(default, 6) in candidates


@pytest.mark.parametrize("tried", [True, False])
def test_changed_masks_are_reported_where_they_were_tried(
    base_folder: str, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    reported_names: list[str] = []

    def record_names(base_model: object, items: object, entries: list[ReportEntry]) -> None:
        reported_names.extend(entry.name for entry in entries)

    monkeypatch.setattr(tune_plan, "report_rows", record_names)
    echo = Method("echo", pooling="mean")
    masked = Method("nosink", setting="mask0-bidir", k=3, pooling="mean")
    methods = [echo, masked] if tried else [echo]
    candidates = [Candidate(method, None, 1.0, torch.zeros(9)) for method in methods]
    plan = plan_by_views([f"{text} {number}" for number in range(9) for text in TEXTS], 54, 0)
    plan.report(load_base(base_folder), ReportEntry("chosen", echo), candidates)
    assert ("NoSink, MASK0-BIDIR" in reported_names) == tried
    assert {"chosen", "Echo-2, mean"} <= set(reported_names)
