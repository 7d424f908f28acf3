"""The pieces of scripts/demo, on mini and a few sentences."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from transformers.utils import logging as transformers_logging

DEMO_SCRIPT = Path(__file__).parents[1] / "scripts" / "demo.py"
OWN_QUESTION = "Where is the Hub?"


def import_demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("demo", DEMO_SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    demo_module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo_module)
    spec.loader.exec_module(demo_module)
    return demo_module


def select_sentences(demo_module: ModuleType) -> list[str]:
    """The lines of the sentences that answer the demo's questions, and some more."""
    answer_ids: set[str] = set()
    for question in demo_module.ANSWERED_QUESTIONS:
        answer_ids.update(question.answer_ids)
    other_lines: list[str] = []
    answering_lines: list[str] = []
    all_sentences = demo_module.SENTENCES.read_text(encoding="utf-8")
    for sentence_line in all_sentences.splitlines():
        record = json.loads(sentence_line)
        if record["id"] in answer_ids:
            answering_lines.append(sentence_line)
        else:
            other_lines.append(sentence_line)
    assert len(answering_lines) == len(answer_ids)
    return [*answering_lines, *other_lines[:9]]


@pytest.fixture
def audible_libraries() -> Iterator[None]:
    """What the demo silences is as loud as before."""
    libraries = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    former_levels = [library.level for library in libraries]
    yield
    for library, former_level in zip(libraries, former_levels, strict=True):
        library.setLevel(former_level)
    transformers_logging.enable_progress_bar()


@pytest.fixture
def demo(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    audible_libraries: None,
) -> ModuleType:
    """The demo without SmolLM2, with fewer sentences, and with a page of its own."""
    demo_module = import_demo(monkeypatch)
    sentence_file = tmp_path / "sentences.jsonl"
    selected_lines = select_sentences(demo_module)
    sentence_file.write_text(
        "\n".join(selected_lines),
        encoding="utf-8",
    )
    page_folder = tmp_path / "pages"
    page_folder.mkdir()
    (page_folder / "publish.md").write_text("# Publish\n\nPut a model on the Hub.\n")

    def refuse_download(base_name: str) -> Path:
        raise OSError(f"base={base_name!r}: there is no network.")

    monkeypatch.setattr(demo_module, "SENTENCES", sentence_file)
    monkeypatch.setattr(demo_module, "DOCUMENTS", page_folder)
    monkeypatch.setattr(demo_module, "PAGE_NAMES", ["publish.md"])
    monkeypatch.setattr("st_reba.packaged.packaged_gguf", refuse_download)
    return demo_module


def test_without_a_network_the_demo_runs_on_mini_and_says_so(
    demo: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.main([], tmp_path / "demo")
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "base='smollm2': there is no network.\nThe demo goes on with mini" in captured.out
    assert demo.MINI.caution in captured.out
    assert demo.SMOLLM2.caution not in captured.out
    output_lines = captured.out.splitlines()
    for question in demo.QUESTIONS:
        heading = f"{question.text}   (in the {question.index_name})"
        heading_row = output_lines.index(heading)
        result_lines = output_lines[heading_row + 1 : heading_row + 4]
        for search_mode, result_line in zip(demo.MODES, result_lines, strict=True):
            assert result_line.startswith(f"  {search_mode}")
    assert "  words    publish.md: # Publish Put a model on the Hub." in output_lines


@pytest.mark.slow
def test_a_second_run_takes_what_is_there_until_a_page_changes(
    demo: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.main([OWN_QUESTION], tmp_path / "demo")
    first_output = capsys.readouterr().out
    assert "Indexing" in first_output
    demo.main([OWN_QUESTION], tmp_path / "demo")
    second_output = capsys.readouterr().out
    assert "from an earlier run" in second_output
    assert f"{OWN_QUESTION}   (in the sentences)" in second_output
    (demo.DOCUMENTS / "publish.md").write_text("# Serve\n")
    demo.main([OWN_QUESTION], tmp_path / "demo")
    third_output = capsys.readouterr().out
    assert "Indexing" in third_output


def test_the_rank_of_an_answer_is_that_of_the_first_right_one(demo: ModuleType) -> None:
    assert demo.rank_of_answer(["a", "b", "c"], ["c", "b"]) == 2
    with pytest.raises(ValueError, match="none of x"):
        demo.rank_of_answer(["a"], ["x"])
