"""Every block of docs/how-to/tools.md in a fresh process, where st_reba is imported and where it is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consumer_texts import PAGE_NAMES, PROMPTS, QUESTIONS, ROOT, TEXTS
from isolated import run_job
from tools_job import SECTIONS

import st_reba

PAGE = (ROOT / "docs" / "how-to" / "tools.md").read_text(encoding="utf-8")


def code_blocks_by_section() -> dict[str, list[str]]:
    """Of the sections that have any."""
    _, *titles_and_texts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    blocks_by_section: dict[str, list[str]] = {}
    for title, text in zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True):
        code_blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if code_blocks:
            blocks_by_section[title] = code_blocks
    return blocks_by_section


CODE_BLOCKS = code_blocks_by_section()
# By the copied code where st_reba is not there; sentence-transformers, which loads for all of them,
# by the plugin too.
RUNS = [(section, "copied code") for section in SECTIONS if section != "mteb"]
RUNS.append(("sentence-transformers and FAISS", "plugin"))
# Tools whose blocks say which task a text has, as a model with a template for each needs it.
TELL_THE_TASK = ("LangChain", "Haystack")


def without_trust(code_block: str) -> str:
    changed_block, change_count = re.subn(
        r'(trust_remote_code"?(?:=|: ))True', r"\1False", code_block
    )
    assert change_count
    return changed_block


def results_of(
    section: str,
    route: str,
    model_parents: dict[str, Path],
    folder: Path,
) -> dict[str, Any]:
    """For each model, what tools_job.py tells of a section; some tools get one model alone, that with prompts."""
    code_blocks = CODE_BLOCKS[section]
    if route == "plugin":
        code_blocks = [without_trust(code_block) for code_block in code_blocks]
    model_names = ["echo"]
    if section in TELL_THE_TASK:
        model_names = ["echo", "default"]
    if section.startswith("sentence-transformers"):
        model_names = list(model_parents)
    parents = {name: str(model_parents[name]) for name in model_names}
    job = {
        "section": section,
        "plugin": route == "plugin",
        "blocks": code_blocks,
        "names": PAGE_NAMES,
        "model_parents": parents,
    }
    results: dict[str, Any] = run_job(
        "tools_job.py", job, folder, HF_MODULES_CACHE=str(folder / "code")
    )
    return results


def nearest_rows(queries: Any, documents: Any) -> list[list[int]]:
    """The ten rows of documents that exact search finds for each query."""
    exact_queries = np.asarray(queries, dtype=np.float64)
    exact_documents = np.asarray(documents, dtype=np.float64)
    scores = exact_queries @ exact_documents.T
    rows = np.argsort(-scores, axis=1)[:, :11]
    sorted_scores = np.take_along_axis(scores, rows, axis=1)
    assert np.diff(-sorted_scores).min() > 1e-6, "too close to each other to be ranked"
    return rows[:, :10].tolist()  # type: ignore[no-any-return]


def test_every_section_is_run() -> None:
    assert list(CODE_BLOCKS) == ["The model", *SECTIONS]


def test_no_block_is_hidden_by_another_word_after_its_backticks() -> None:
    block_languages = re.findall(r"^\s*(?:```|~~~)(.*)$", PAGE, re.MULTILINE)[::2]
    assert set(block_languages) == {"python", "sh"}
    assert block_languages.count("python") == sum(map(len, CODE_BLOCKS.values()))


def test_the_first_section_defines_what_the_others_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code_block,) = CODE_BLOCKS["The model"]
    names: dict[str, Any] = {}
    exec(compile(code_block, "tools.md", "exec"), names)
    assert set(PAGE_NAMES) <= set(names)
    assert names["model"].prompts == st_reba.build("mini", "reba", prompts=PROMPTS).prompts
    assert (tmp_path / "my_model" / "modules.json").is_file()


@pytest.mark.parametrize(("section", "route"), RUNS)
def test_vectors_and_ranking(
    section: str,
    route: str,
    model_parents: dict[str, Path],
    model_vectors: Any,
    tmp_path: Path,
) -> None:
    for name, result in results_of(section, route, model_parents, tmp_path).items():
        for texts, task, tool_vectors in result["encoded"]:
            expected = model_vectors(name, texts, task)
            np.testing.assert_allclose(
                tool_vectors,
                expected,
                atol=1e-6,
                rtol=0,
                err_msg=f"{name}, {task}",
            )
        (texts, document_task, _), (questions, query_task, _) = result["encoded"][:2]
        assert (texts, questions) == (TEXTS, QUESTIONS)
        query_vectors = model_vectors(name, questions, query_task)
        document_vectors = model_vectors(name, texts, document_task)
        expected_texts: list[list[str]] = []
        for rows in nearest_rows(query_vectors, document_vectors):
            expected_texts.append([texts[row] for row in rows])
        assert result["nearest"] == expected_texts
        assert result["nearest_on_page"] == expected_texts[0][:3]


def test_mteb(model_parents: dict[str, Path], model_vectors: Any, tmp_path: Path) -> None:
    """Pairs are encoded without a prompt, questions and texts with theirs."""
    from scipy.stats import spearmanr

    first_texts, second_texts, scores = zip(*PAGE_NAMES["pairs"], strict=True)
    for name, result in results_of("mteb", "copied code", model_parents, tmp_path).items():
        first_vectors = model_vectors(name, list(first_texts), "plain")
        second_vectors = model_vectors(name, list(second_texts), "plain")
        cosines = (first_vectors * second_vectors).sum(axis=1)
        correlation = spearmanr(scores, cosines).statistic
        assert result["OwnPairs"] == pytest.approx(correlation, abs=1e-6)
        query_vectors = model_vectors(name, QUESTIONS, "query")
        document_vectors = model_vectors(name, TEXTS, "document")
        gains: list[float] = []
        for rows, relevant_rows in zip(
            nearest_rows(query_vectors, document_vectors),
            PAGE_NAMES["relevant"],
            strict=True,
        ):
            gains.append(ndcg(rows, relevant_rows))
        assert result["OwnSearch"] == pytest.approx(np.mean(gains), abs=1e-5)


def ndcg(rows: list[int], relevant_rows: list[int]) -> float:
    discounts = 1 / np.log2(np.arange(10) + 2)
    gain = (np.isin(rows, relevant_rows) * discounts).sum()
    return float(gain / discounts[: len(relevant_rows)].sum())


def test_prompts_are_not_idle(model_vectors: Any) -> None:
    """Else nothing that is tested of them means anything."""
    plain_vectors = model_vectors("echo", TEXTS, "plain")
    document_vectors = model_vectors("echo", TEXTS, "document")
    assert np.abs(plain_vectors - document_vectors).max() > 1e-3
