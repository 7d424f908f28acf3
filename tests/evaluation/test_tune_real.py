"""Real runs: the scores of real models, and recipes that build them again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from oracle import loaded
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.evaluation import PairTask, read_task, tune


@pytest.mark.slow
def test_a_real_run(tmp_path: Path) -> None:
    words = ["the", "cat", "dog", "rain", "bank", "river", "runs", "今天", "天气", "很好", "银行", "公园", "散步"]
    chance = random.Random(0)
    with (tmp_path / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(40):
            first = chance.choices(words, k=6)
            kept = chance.randrange(7)
            second = first[:kept] + chance.choices(words, k=6 - kept)
            row = {"text1": " ".join(first), "text2": " ".join(second), "score": kept}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    path, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    report = tune("mini", path, out, seed=1, device="cpu", show_progress_bar=False, say=lambda line: None)
    task = read_task(path, seed=1)
    assert isinstance(task, PairTask)
    # The unconverted model, by transformers alone.
    plain, tokenizer = loaded("mini")

    def mean(text: str) -> Any:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            hidden = plain(torch.tensor([[tokenizer.bos_token_id, *ids]])).last_hidden_state[0]
        return hidden[1:].mean(dim=0).double().numpy()

    def cosine(a: Any, b: Any) -> float:
        return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))

    cosines = [cosine(mean(a), mean(b)) for a, b, _ in task.validation]
    wanted = spearmanr(cosines, [score for _, _, score in task.validation]).statistic
    assert report.baseline.validation == pytest.approx(wanted, abs=1e-3)
    # Models that are built for one trial, and the recipe's, score what was written down.
    for key in (("inplace-bidir", 4, None), ("mask0-bidir", 2, None), report.chosen.key):
        trial = next(trial for trial in report.trials if trial.key == key)
        options = {"method": "nosink", "setting": key[0], "k": key[1]}
        if trial == report.chosen:
            options = yaml.safe_load((out / "recipe.yaml").read_text(encoding="utf-8"))
        model: Any = st_reba.build(**{"base": "mini", "device": "cpu", **options})
        assert str(model[0].stage("nosink").plan.resolve(6)) == trial.stack
        scores = task.score(model)
        assert (scores.validation, scores.heldout) == pytest.approx((trial.validation, trial.heldout))
        assert scores.validation != report.baseline.validation
    again = tune("mini", path, out, seed=1, device="cpu", show_progress_bar=False, say=lambda line: None)
    assert again == report


def test_a_sentence_transformers_model_keeps_its_pooling(tmp_path: Path) -> None:
    transformer = Transformer(str(EMBEDDED["mini"]), model_kwargs={"dtype": "float32"})
    SentenceTransformer(modules=[transformer, Pooling(192, "lasttoken")], device="cpu").save_pretrained(
        str(tmp_path / "base")
    )
    pairs = tuple((f"一 {n}", f"two {n % 7} 三 {n % 3}", float(n % 5)) for n in range(10))
    task = PairTask("few", pairs, pairs)
    base, out = tmp_path / "base", tmp_path / "out"
    report = tune(base, task, out, pooling=None, device="cpu", show_progress_bar=False, say=lambda line: None)
    assert report.command == "" and "pooling" not in report.recipe and report.recipe["base"] == str(base)
    model: Any = st_reba.build(out / "recipe.yaml", device="cpu")
    assert str(model[0].stage("nosink").plan.resolve(6)) == report.chosen.stack and model[1].pooling_mode == "lasttoken"
    assert task.score(model).validation == pytest.approx(report.chosen.validation)
