"""The command line: help that is quick, one line for every error, and its status."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import typer
from huggingface_hub import utils as hub
from transformers.utils import logging as transformers_logging

from st_reba.cli import app, main
from st_reba.cli.app import quiet
from st_reba.explore import DEFAULT

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_help_needs_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) <= 16 and main([]) == 0 and "Commands:" in capsys.readouterr().out
    script = (
        "import json, sys; from st_reba.cli import main; [main([*each.split(), '--help']) for each in sys.argv[1:]]; "
        "print(json.dumps(sorted({'torch', 'transformers', 'numpy', 'pandas', 'faiss'} & set(sys.modules))))"
    )
    for names in ([""], COMMANDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert json.loads(run.stdout.splitlines()[-1]) == [] and run.stdout.count("Usage: st-reba") == len(names)
        assert len(names) > 1 or after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.4


@pytest.mark.parametrize("shown", [True, False])
def test_downloads_keep_their_bars(shown: bool) -> None:
    before = hub.are_progress_bars_disabled()
    try:
        (hub.enable_progress_bars if shown else hub.disable_progress_bars)()
        quiet()
        assert hub.are_progress_bars_disabled() is not shown and not transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.enable_progress_bar()
        (hub.disable_progress_bars if before else hub.enable_progress_bars)()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("st-reba ")


def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [kind("a\nb") for kind in (ValueError, OSError, ImportError, RuntimeError)]
    errors.append(ValueError("overwrite=True (--overwrite), or trust_remote_code=True"))
    zoo = Mock(side_effect=[*errors, KeyboardInterrupt, typer.Abort, TypeError])
    monkeypatch.setattr(import_module("st_reba.recipe"), "zoo", zoo)
    assert [main(["zoo"]) for _ in errors] == [1] * 5
    said = "st-reba: a b\n" * 4 + "st-reba: --overwrite, or --trust-remote-code\n"
    assert capsys.readouterr() == ("", said)
    assert [main(["zoo"]) for _ in "ab"] == [130, 130]  # of the first, typer itself says nothing
    with pytest.raises(TypeError):
        main(["zoo"])


def test_flags_are_off() -> None:
    group: Any = typer.main.get_command(app)
    options = [(name, one) for name, command in group.commands.items() for one in command.params]
    assert not [(name, one.name) for name, one in options if one.default is True]


def test_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock()
    for name in ("serve.serve", "explore.launch", "cli.serve.quiet"):
        monkeypatch.setattr(f"st_reba.{name}", getattr(found, name.rpartition(".")[2]))
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    place = ["--index", "i", "--host", "h", "--port", "0", "--dtype", "float16"]
    assert main(["serve", "m", "--name", "n", "--queue", "5", *place]) == main(["explore", "--open", *place]) == 0
    options: dict[str, Any] = {"index": Path("i"), "host": "h", "port": 0}
    options |= {"device": None, "dtype": "float16", "trust_remote_code": False}
    limits = {"batch_size": 32, "max_body": 4, "max_tokens": 300_000, "queue": 5}
    served = call.serve("m", name="n", limits=limits, **options)
    launched = call.launch(DEFAULT, open_browser=True, **options)
    assert found.mock_calls == [call.quiet(), served, call.quiet(), launched]
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["build"], ["build", "mini", "out", "--nothing"], ["onnx", "a", "b", "--task", "c"]]
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 1 and "--help" in shown.err
