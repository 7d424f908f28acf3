"""tune and auto with prompts: they stand before the texts of all that is tried."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import st_reba
from st_reba.encode import transformer_of
from st_reba.evaluation import tune_plan
from st_reba.evaluation.items import TaskItems
from st_reba.evaluation.kinds.views import views_of
from st_reba.evaluation.readouts import group_by_pass, load_base
from st_reba.evaluation.trials import Trials
from st_reba.evaluation.tried_methods import similarity_methods
from st_reba.evaluation.tune import tune

PEOPLE = ["a man", "the old woman", "my neighbour", "a black cat"]
ACTIONS = ["plays the guitar", "reads a long letter", "is buying bread", "walks home late"]
PLACES = ["in the street", "near the river", "on a Sunday morning", "behind the school"]
TEXTS = list(map(" ".join, product(PEOPLE, ACTIONS, PLACES)))
# The methods of each pass for similarity, without labels, on a base of six layers.
PASSES = list(group_by_pass(similarity_methods(6, "LATIN"), 6).values())
SAYING: dict[str, Any] = {"prompts": {"say": "Say: "}, "default_prompt_name": "say"}


@pytest.fixture(scope="module")
def base_folder(base: Callable[..., str]) -> str:
    return base("deep")


def test_candidates_are_tried_with_the_prompts_of_their_models(base_folder: str) -> None:
    base_model = load_base(base_folder, **SAYING)
    text_views = views_of(TEXTS[:40])
    for candidate in Trials(base_model, TaskItems(text_views), [None]).score_pass(PASSES[3])[:2]:
        model = st_reba.build(base_folder, candidate.method, **SAYING)
        vectors = torch.from_numpy(model.encode(list(text_views.texts)))
        scores = text_views.task_kind.score_items(text_views, vectors)
        np.testing.assert_allclose(candidate.item_scores, scores, atol=1e-3)


def test_prompts_count_as_work_where_no_prefix_is_shared(base_folder: str) -> None:
    text_views = TaskItems(views_of(TEXTS[:20]))
    position_counts: list[int] = []
    for prompt_options in ({}, SAYING):
        base_model = load_base(base_folder, **prompt_options)
        transformer_of(base_model).shares_prefix = False
        position_counts.append(text_views.count_positions(base_model, base_model))
    prompt_length = len(transformer_of(base_model).tokenize_content(["Say: "])["input_ids"][0])
    assert position_counts[1] - position_counts[0] == prompt_length * text_views.text_count


def test_auto_keeps_the_prompts_of_a_recipe(
    base_folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tune_plan, "similarity_methods", lambda *arguments, **options: PASSES[3])
    recipe = tmp_path / "prompted.yaml"
    recipe.write_text(f"base: {base_folder}\nprompts: {{query: 'Find: '}}\n", encoding="utf-8")
    model = st_reba.build(recipe, "auto", texts=TEXTS[:60])
    assert model.prompts["query"] == "Find: "


def test_saved_prompts_take_room(base_folder: str) -> None:
    texts = TaskItems(views_of(TEXTS))
    short_prompt = PASSES[1][0]
    narrow_base = load_base(base_folder, max_seq_length=64)
    assert Trials(narrow_base, texts, [None]).find_refusal(short_prompt) is None
    long_prompt = {"say": "Say it. " * 11}
    prompted_base = load_base(
        base_folder, max_seq_length=64, prompts=long_prompt, default_prompt_name="say"
    )
    refusal = Trials(prompted_base, texts, [None]).find_refusal(short_prompt)
    assert "leaves no room" in (refusal or "")


def test_other_prompts_are_other_passes(base_folder: str) -> None:
    text_views = TaskItems(views_of(TEXTS))
    keys = set[str]()
    for prompt_options in ({}, SAYING):
        base_model = load_base(base_folder, **prompt_options)
        keys.add(Trials(base_model, text_views, [None]).pass_key(PASSES[3]))
    assert len(keys) == 2


def test_a_default_prompt_which_no_recipe_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="default_prompt_name='say' .*Drop it"):
        tune("mini", TEXTS, tmp_path / "out", **SAYING)
