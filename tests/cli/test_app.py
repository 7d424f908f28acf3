"""The command line: help that is quick, one line for every error, and its status."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import typer
from huggingface_hub import utils as hub
from transformers.utils import logging as transformers_logging

from st_reba.cli import app, main
from st_reba.cli.app import silence_loading
from st_reba.evaluation.tune import tune
from st_reba.explore import DEFAULT_MODELS, launch
from st_reba.modules.version import __version__
from st_reba.serve import serve
from st_reba.serve.app import EmbeddingServer

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
        silence_loading()
        assert hub.are_progress_bars_disabled() is not shown and not transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.enable_progress_bar()
        (hub.disable_progress_bars if before else hub.enable_progress_bars)()


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["st-reba", "--version"])
    assert main() == 0 and capsys.readouterr().out == f"st-reba {__version__}\n"
    assert sys.stdout.errors == sys.stderr.errors == "backslashreplace"
    assert not logging.getLogger("bitsandbytes").isEnabledFor(logging.ERROR)


def test_errors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [kind("a\nb") for kind in (ValueError, OSError, ImportError, RuntimeError, MemoryError)]
    zoo = Mock(side_effect=[*errors, KeyboardInterrupt, typer.Abort, TypeError])
    monkeypatch.setattr(import_module("st_reba.recipe"), "zoo", zoo)
    assert [main(["zoo"]) for _ in errors] == [1] * 5
    assert capsys.readouterr() == ("", "st-reba: a b\n" * 5)
    assert [main(["zoo"]) for _ in "ab"] == [130, 130]
    assert capsys.readouterr() == ("", "st-reba: Stopped.\n" * 2)
    with pytest.raises(TypeError):
        main(["zoo"])


@pytest.mark.parametrize(
    ("command", "message", "wanted", "status"),
    [
        ("build mini out", "out holds a model. Give overwrite=True (--overwrite), or another folder.",
         "out holds a model. Give --overwrite, or another folder.", 1),
        ("build mini out", "code; trust_remote_code=True runs it", "code; --trust-remote-code runs it", 1),
        ("build mini out", "device='tpu' is not known", "--device 'tpu' is not known", 2),
        ("build mini out", "layer=99 is too high; give layer=12", "layer=99 is too high; give layer=12", 1),
        ("index a b --add", "no column; name one with text_column", "no column; name one with --text-column", 1),
        ("index a b --add", "batch_tokens=0 must be a whole number", "--batch-tokens 0 must be a whole number", 2),
        ("index a b --add", "replace it with upsert", "replace it with --upsert", 1),
        ("index a b --add", "path='' is blank", "INDEX '' is blank", 1),
        ("compare a b c", "out (--out): there is no folder 'x'", "--out: there is no folder 'x'", 2),
        ("compare a b c", "option='x' is not known", "--vary 'x' is not known", 2),
        ("compare a b c --vary k=1,2", "k=1 (--vary): no method takes it", "--vary k=1: no method takes it", 2),
        ("index a b --add", "save it, or name its encoding, as encoding='utf-16-le'",
         "save it, or name its encoding, as --encoding 'utf-16-le'", 1),
        ("build a b", "save it, or name its encoding, as encoding='gb18030' (Chinese) or encoding='cp1252' (Europe)",
         "save it", 1),
        ("index a b --add --model x", "'x' could not be loaded: no", "--model 'x' could not be loaded: no", 2),
        ("search a q", "k=0 must be a whole number", "--top 0 must be a whole number", 2),
        ("search a q", "/tmp/device=x/text_column.csv is damaged", "/tmp/device=x/text_column.csv is damaged", 1),
    ],
)  # fmt: skip
def test_messages_name_options(
    command: str, message: str, wanted: str, status: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = "st_reba.evaluation.run"
    for target in ("st_reba.recipe.recipe_for", "st_reba.index.Index.open", f"{run}.compare", f"{run}.curve"):
        monkeypatch.setattr(target, Mock(side_effect=ValueError(message)))
    assert main(command.split()) == status and capsys.readouterr().err.splitlines()[-1] == f"st-reba: {wanted}"


def test_defaults() -> None:
    """No flag is on, and what has a default in Python has the same here."""
    group: Any = typer.main.get_command(app)
    options = {(name, one.name): one.default for name, command in group.commands.items() for one in command.params}
    limits = {"batch_size": 32, "max_body": 4, "max_tokens": 300_000, "queue": 8192}
    wanted: dict[str, dict[str, Any]] = {
        "compare": {"seed": 0}, "evaluate": {"seed": 0}, "search": {"top": 10},
        "serve": {"host": "127.0.0.1", "port": 8080, **limits}, "explore": {"host": "127.0.0.1", "port": 7860},
        "encode": {"input": "-"}, "index": {"factory": "auto"},
        "tune": {"purpose": "similarity", "sample": 1000, "seed": 0},
    }  # fmt: skip
    found = {name: value for name, value in options.items() if type(value) in (int, str) or value is True}
    assert found == {(command, name): value for command, each in wanted.items() for name, value in each.items()}
    for command, functions in {"serve": (serve, EmbeddingServer), "explore": (launch,), "tune": (tune,)}.items():
        own = {name: one.default for each in functions for name, one in signature(each).parameters.items()}
        assert wanted[command].items() <= own.items()


@pytest.mark.parametrize(
    "command",
    [
        "models build mini out", "models info a/b", "models verify a/b", "models push a b/c", "vectors search a b",
        "vectors encode a/b a.txt --batch-tokens 1", "vectors index a.txt out --model a/b --workers 1",
        "evaluate compare mini a.tsv echo --limit 1", "evaluate evaluate a/b toy", "evaluate tune mini a.txt out",
    ],
)  # fmt: skip
def test_what_loads_is_quiet(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a\n", encoding="utf-8")
    module, *arguments = command.split()
    monkeypatch.setattr(f"st_reba.cli.{module}.silence_loading", Mock(side_effect=ValueError("hushed")))
    assert main(arguments) == 1 and capsys.readouterr().err == "st-reba: hushed\n"


def test_what_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Mock()
    for name in ("serve.serve", "explore.launch", "cli.serve.silence_loading"):
        monkeypatch.setattr(f"st_reba.{name}", getattr(found, name.rpartition(".")[2]))
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    place = ["--index", "i", "--host", "h", "--port", "0", "--dtype", "float16"]
    assert main(["serve", "m", "--name", "n", "--queue", "5", *place]) == main(["explore", "--open", *place]) == 0
    options: dict[str, Any] = {"index": Path("i"), "host": "h", "port": 0}
    options |= {"device": None, "dtype": "float16", "trust_remote_code": False}
    limits = {"batch_size": 32, "max_body": 4, "max_tokens": 300_000, "queue": 5}
    served = call.serve("m", name="n", limits=limits, **options)
    launched = call.launch(DEFAULT_MODELS, open_browser=True, **options)
    assert found.mock_calls == [call.silence_loading(), served, call.silence_loading(), launched]
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize("command", ["nothing", "build", "build mini out --nothing", "onnx a b --task c"])
def test_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    shown, known = capsys.readouterr(), [name for name in COMMANDS if command.startswith(name)]
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert shown.err.endswith(f" Help: {' '.join(['st-reba', *known])} --help\n")
