"""Every block of docs/how-to/tools.md in a fresh process, where st_reba is imported and where it is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given import GIVEN, PROMPTS, QUESTIONS, ROOT, TEXTS, answer
from tools import SECTIONS

import st_reba

PAGE = (ROOT / "docs" / "how-to" / "tools.md").read_text(encoding="utf-8")
TITLED = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
BLOCKS = {
    title: blocks
    for title, text in zip(TITLED[1::2], TITLED[2::2], strict=True)
    if (blocks := re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
}
# By the copied code where st_reba is not there; sentence-transformers, which loads for all of them, by the plugin too.
RUNS = [(each, "flag") for each in SECTIONS if each != "mteb"] + [("sentence-transformers and FAISS", "plugin")]


def told(section: str, route: str, places: dict[str, Path], folder: Path) -> dict[str, Any]:
    """For each model, what tools.py tells of a section; tools but the first get the one with prompts."""
    blocks = BLOCKS[section]
    if route == "plugin":
        changed = [re.subn(r'(trust_remote_code"?(?:=|: ))True', r"\1False", block) for block in blocks]
        assert all(count for _, count in changed)
        blocks = [block for block, _ in changed]
    job = {"section": section, "plugin": route == "plugin", "blocks": blocks, "given": GIVEN}
    every = section.startswith("sentence-transformers")
    job["places"] = {name: str(place) for name, place in places.items() if every or name == "echo"}
    found: dict[str, Any] = answer("tools.py", job, folder, HF_MODULES_CACHE=str(folder / "code"))
    return found


def nearest(queries: Any, documents: Any) -> list[list[int]]:
    """The ten rows of documents that exact search finds for each query."""
    scores = np.asarray(queries, dtype=np.float64) @ np.asarray(documents, dtype=np.float64).T
    rows = np.argsort(-scores, axis=1)[:, :11]
    assert np.diff(-np.take_along_axis(scores, rows, axis=1)).min() > 1e-6, "too close to each other to be ranked"
    return rows[:, :10].tolist()  # type: ignore[no-any-return]


def test_every_block_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first section defines what the others go on from; another word after the backticks would hide a block."""
    monkeypatch.chdir(tmp_path)
    (block,) = BLOCKS["The model"]
    names: dict[str, Any] = {}
    exec(compile(block, "tools.md", "exec"), names)
    assert set(GIVEN) <= set(names) and names["model"].prompts == st_reba.build("mini", "reba", prompts=PROMPTS).prompts
    assert (tmp_path / "my_model" / "modules.json").is_file()
    assert list(BLOCKS) == ["The model", *SECTIONS]
    opened = re.findall(r"^\s*(?:```|~~~)(.*)$", PAGE, re.MULTILINE)[::2]
    assert set(opened) == {"python", "sh"} and opened.count("python") == sum(map(len, BLOCKS.values()))


@pytest.mark.parametrize(("section", "route"), RUNS)
def test_vectors_and_ranking(section: str, route: str, places: dict[str, Path], vectors: Any, tmp_path: Path) -> None:
    for name, each in told(section, route, places, tmp_path).items():
        for texts, how, found in each["is"]:
            np.testing.assert_allclose(found, vectors(name, texts, how), atol=1e-6, rtol=0, err_msg=f"{name}, {how}")
        (texts, document, _), (questions, query, _) = each["is"][:2]
        assert (texts, questions) == (TEXTS, QUESTIONS)
        rows = nearest(vectors(name, questions, query), vectors(name, texts, document))
        assert each["found"] == [[texts[row] for row in found] for found in rows]
        assert each["shown"] == each["found"][0][:3]


def test_mteb(places: dict[str, Path], vectors: Any, tmp_path: Path) -> None:
    """Pairs are encoded without a prompt, questions and texts with theirs."""
    from scipy.stats import spearmanr

    first, second, scores = zip(*GIVEN["pairs"], strict=True)
    for name, each in told("mteb", "flag", places, tmp_path).items():
        cosines = (vectors(name, list(first), "plain") * vectors(name, list(second), "plain")).sum(axis=1)
        assert each["OwnPairs"] == pytest.approx(spearmanr(scores, cosines).statistic, abs=1e-6)
        rows = nearest(vectors(name, QUESTIONS, "query"), vectors(name, TEXTS, "document"))
        gains = [ndcg(row, relevant) for row, relevant in zip(rows, GIVEN["relevant"], strict=True)]
        assert each["OwnSearch"] == pytest.approx(np.mean(gains), abs=1e-5)


def ndcg(row: list[int], relevant: list[int]) -> float:
    discounts = 1 / np.log2(np.arange(10) + 2)
    return float((np.isin(row, relevant) * discounts).sum() / discounts[: len(relevant)].sum())


def test_prompts_are_not_idle(vectors: Any) -> None:
    """Else nothing that is tested of them means anything."""
    assert np.abs(vectors("echo", TEXTS, "plain") - vectors("echo", TEXTS, "document")).max() > 1e-3
