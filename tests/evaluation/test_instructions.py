"""Instructions before texts: the papers' lists, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from st_reba.evaluation.instructions import Instructions, read_instructions
from st_reba.evaluation.mteb_tasks import find_tasks, suites


@pytest.mark.parametrize("name", ["nosink", "echo"])
def test_the_papers_instructions_name_tasks_of_mteb(name: str) -> None:
    given = read_instructions(name)
    names = {part.metadata.name for each in find_tasks(["MTEB-56"]) for part in each.parts}
    assert set(given.tasks) <= names and "{instruction}" in given.query
    model: Any = [None]
    if name == "echo":
        assert set(given.tasks) == names
        assert given.of("SummEval") == "Given a news summary, retrieve other semantically similar summaries"
    else:
        assert set(suites()["MTEB-15"].names) <= set(given.tasks)
        assert given.before("ArguAna", "query", model) == (
            "Instruct: Given a claim, find documents that refute the claim.\nQuery: "
        )
        assert given.of("ArguAna", "document") is None


def test_instructions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("STSB: 相似吗？\nArguAna: {query: Ask., document: 'a{b}'}\n", encoding="utf-8")
    given = read_instructions(str(path))
    model: Any = [None]
    assert given.name.startswith("mine-") and given.before("ArguAna", "document", model) == "a{b}"
    assert given.of("STSB") == "相似吗？" and given.of("ArguAna", "query") == "Ask."
    assert given.concerning(["BQ"]) == {} and set(given.concerning(["BQ", "STSB"])["tasks"]) == {"STSB"}
    path.write_text("STSB: another\n'*': any\n", encoding="utf-8")
    other = read_instructions(str(path))
    assert other.name != given.name and (other.of("STSB"), other.of("BQ")) == ("another", "any")
    assert other.concerning(["BQ"])["tasks"] == {"BQ": "any"}
    for text, message in (
        ("", "holds no tasks"),
        ("- a\n", "holds no tasks"),
        ("STSB: 5\n", "must be a text"),
        ("STSB: {question: a}\n", "must be a text"),
        ("STSB: ''\n", "must be a text"),
        ("tasks: {STSB: a}\nform: b\n", "'form' is not known"),
        ("tasks: {STSB: a}\nquery: b\n", r"with \{instruction} in it"),
        ("STSB: [\n", "not a YAML file"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_instructions(str(path))
    with pytest.raises(FileNotFoundError, match="neither one of"):
        read_instructions("nosnik")
    assert read_instructions("none") == Instructions()
