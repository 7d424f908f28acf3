"""The command line: help without heavy libraries, one line for every error, and its status."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import Mock, call

import pytest
import typer
from huggingface_hub import utils as hub
from transformers.utils import logging as transformers_logging

from st_reba.cli import app, main
from st_reba.cli.app import parse_pairs, silence_loading
from st_reba.evaluation.tune import tune
from st_reba.explore import DEFAULT_MODELS, launch
from st_reba.modules.version import __version__
from st_reba.serve import serve
from st_reba.serve.app import EmbeddingServer

GROUP: Any = typer.main.get_command(app)
COMMANDS = sorted(GROUP.commands)
HELP_SCRIPT = """
import json, sys
from st_reba.cli import main
for command in sys.argv[1:]:
    main([*command.split(), '--help'])
heavy_libraries = {'torch', 'transformers', 'numpy', 'pandas', 'faiss'}
print(json.dumps(sorted(heavy_libraries & set(sys.modules))))
"""
SERVER_LIMITS = {"batch_size": 32, "max_body": 4, "max_tokens": 300_000, "queue": 8192}
# Every option with a default that is a text, a number or True.
DEFAULTS: dict[str, dict[str, object]] = {
    "compare": {"seed": 0},
    "evaluate": {"seed": 0},
    "search": {"result_count": 10},
    "serve": {"host": "127.0.0.1", "port": 8080} | SERVER_LIMITS,
    "explore": {"host": "127.0.0.1", "port": 7860},
    "encode": {"input": "-"},
    "index": {"factory": "auto"},
    "tune": {"purpose": "similarity", "sample": 1000, "seed": 0},
}


def print_help(*commands: str) -> str:
    """What a process of its own prints: the help of commands, and the heavy libraries that it imported."""
    command_line = [sys.executable, "-c", HELP_SCRIPT, *commands]
    return subprocess.run(command_line, capture_output=True, text=True, check=True).stdout


def test_without_arguments_the_help_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_the_package_runs_as_a_program() -> None:
    command_line = [sys.executable, "-m", "st_reba", "--version"]
    output = subprocess.run(command_line, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["st-reba", __version__]


def test_a_name_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="--prompt 'query=b': query is given twice"):
        parse_pairs(["query=a", "document=c", "query=b"], "--prompt")


def test_the_commands_are_few() -> None:
    assert len(COMMANDS) <= 16


def test_help_of_every_command_needs_no_heavy_library() -> None:
    output = print_help("", *COMMANDS)
    assert output.count("Usage: st-reba") == 1 + len(COMMANDS)
    assert json.loads(output.splitlines()[-1]) == []


@pytest.mark.parametrize("has_bars", [True, False])
def test_downloads_keep_their_bars(has_bars: bool) -> None:
    was_disabled = hub.are_progress_bars_disabled()
    try:
        if has_bars:
            hub.enable_progress_bars()
        else:
            hub.disable_progress_bars()
        silence_loading()
        assert hub.are_progress_bars_disabled() is not has_bars
        assert not transformers_logging.is_progress_bar_enabled()
        loading_logger = logging.getLogger("sentence_transformers.util.file_io")
        assert not loading_logger.isEnabledFor(logging.WARNING)
    finally:
        transformers_logging.enable_progress_bar()
        if was_disabled:
            hub.disable_progress_bars()
        else:
            hub.enable_progress_bars()


def test_version_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["st-reba", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"st-reba {__version__}\n"


def test_main_prepares_streams(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert sys.stdout.errors == "backslashreplace"
    assert sys.stderr.errors == "backslashreplace"


def test_main_silences_bitsandbytes() -> None:
    assert main(["--version"]) == 0
    assert not logging.getLogger("bitsandbytes").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    "error_class", [ValueError, OSError, ImportError, RuntimeError, MemoryError]
)
def test_expected_errors_are_one_line(
    error_class: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raise_in_zoo(monkeypatch, error_class("a\nb"))
    assert main(["zoo"]) == 1
    assert capsys.readouterr() == ("", "st-reba: a b\n")


def test_words_of_an_error_have_at_most_300_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_in_zoo(monkeypatch, ValueError(f"{'a' * 300} {'b' * 301}"))
    assert main(["zoo"]) == 1
    assert capsys.readouterr().err == f"st-reba: {'a' * 300} {'b' * 300}…\n"


@pytest.mark.parametrize(("error_number", "status"), [(errno.ENAMETOOLONG, 2), (errno.EACCES, 1)])
def test_an_error_of_a_file_names_its_option(
    error_number: int,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = OSError(error_number, "it is not good", "x")
    monkeypatch.setattr("st_reba.index.Index.open", Mock(side_effect=error))
    assert main(["search", "a", "query", "--model", "x"]) == status
    assert capsys.readouterr().err == "st-reba: --model x: it is not good\n"


@pytest.mark.parametrize("error_class", [KeyboardInterrupt, typer.Abort])
def test_a_stop_from_the_keyboard_has_its_status(
    error_class: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raise_in_zoo(monkeypatch, error_class())
    assert main(["zoo"]) == 130
    assert capsys.readouterr() == ("", "st-reba: Stopped.\n")


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_zoo(monkeypatch, TypeError())
    with pytest.raises(TypeError):
        main(["zoo"])


def raise_in_zoo(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    # The package's attribute st_reba.recipe is a function.
    monkeypatch.setattr(import_module("st_reba.recipe"), "zoo", Mock(side_effect=error))


@pytest.mark.parametrize(
    ("command", "message", "printed", "exit_status"),
    [
        (
            "build mini out",
            "out holds a model. Give overwrite=True (--overwrite), or another folder.",
            "out holds a model. Give --overwrite, or another folder.",
            1,
        ),
        (
            "build mini out",
            "code; trust_remote_code=True runs it",
            "code; --trust-remote-code runs it",
            1,
        ),
        ("build mini out", "device='tpu' is not known", "--device 'tpu' is not known", 2),
        (
            "build mini out",
            "layer=99 is too high; give layer=12",
            "layer=99 is too high; give layer=12",
            1,
        ),
        (
            "index a b --add",
            "no column; name one with text_column",
            "no column; name one with --text-column",
            1,
        ),
        (
            "index a b --add",
            "batch_tokens=0 must be a whole number",
            "--batch-tokens 0 must be a whole number",
            2,
        ),
        ("index a b --add", "replace it with upsert", "replace it with --upsert", 1),
        ("index a b --add", "path='' is blank", "INDEX '' is blank", 1),
        (
            "compare a b c",
            "out (--out): there is no folder 'x'",
            "--out: there is no folder 'x'",
            2,
        ),
        ("compare a b c", "option='x' is not known", "--vary 'x' is not known", 2),
        (
            "compare a b c --vary k=1,2",
            "k=1 (--vary): no method takes it",
            "--vary k=1: no method takes it",
            2,
        ),
        (
            "compare a b c",
            "seed=0.5 (--seed) must be a whole number",
            "--seed 0.5 must be a whole number",
            2,
        ),
        (
            "compare a b c",
            "template= D (--vary): no method takes it",
            "template= D (--vary): no method takes it",
            1,
        ),
        (
            "index a b --add",
            "save it, or name its encoding, as encoding='utf-16-le'",
            "save it, or name its encoding, as --encoding 'utf-16-le'",
            1,
        ),
        (
            "build a b",
            "save it, or name its encoding, as encoding='gb18030' (Chinese) or encoding='cp1252' (Europe)",
            "save it",
            1,
        ),
        (
            "index a b --add --model x",
            "'x' could not be loaded: no",
            "--model 'x' could not be loaded: no",
            2,
        ),
        ("search a q", "k=0 must be a whole number", "--top 0 must be a whole number", 2),
        (
            "search a q",
            "folder/device=x/text_column.csv is damaged",
            "folder/device=x/text_column.csv is damaged",
            1,
        ),
    ],
)
def test_messages_name_options(
    command: str,
    message: str,
    printed: str,
    exit_status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    functions = (
        "recipe.find_recipe",
        "index.Index.open",
        "evaluation.run.compare",
        "evaluation.run.curve",
    )
    for function in functions:
        monkeypatch.setattr(f"st_reba.{function}", Mock(side_effect=ValueError(message)))
    assert main(command.split()) == exit_status
    assert capsys.readouterr().err.splitlines()[-1] == f"st-reba: {printed}"


def test_no_flag_is_on_and_only_these_options_have_a_default() -> None:
    defaults: dict[str, dict[str, object]] = {}
    for command_name, command in GROUP.commands.items():
        for parameter in command.params:
            if type(parameter.default) in (int, str) or parameter.default is True:
                defaults.setdefault(command_name, {})[parameter.name] = parameter.default
    assert defaults == DEFAULTS


def test_numbers_have_a_least_value_and_ports_a_largest() -> None:
    bounds: dict[str, tuple[object, object]] = {}
    for command in app.registered_commands:
        for name, annotation in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(annotation, "__metadata__", ()):
                if option.min is not None:
                    bounds[name] = (option.min, option.max)
    at_least_one = ["item_limit", "result_count", "workers", "batch_tokens", *SERVER_LIMITS]
    assert bounds == dict.fromkeys(at_least_one, (1, None)) | {
        "sample": (50, None),
        "seed": (0, None),
        "port": (0, 65535),
    }


@pytest.mark.parametrize(
    ("command", "functions"),
    [("serve", [serve, EmbeddingServer]), ("explore", [launch]), ("tune", [tune])],
)
def test_defaults_are_those_of_python(command: str, functions: list[Any]) -> None:
    python_defaults: dict[str, object] = {}
    for function in functions:
        for name, parameter in signature(function).parameters.items():
            python_defaults[name] = parameter.default
    assert DEFAULTS[command].items() <= python_defaults.items()


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("models", "build mini out"),
        ("models", "info a/b"),
        ("models", "verify a/b"),
        ("models", "push a b/c"),
        ("search", "search a b"),
        ("vectors", "encode a/b a.txt --batch-tokens 1"),
        ("vectors", "index a.txt out --model a/b --workers 1"),
        ("evaluate", "compare mini a.tsv echo --limit 1"),
        ("evaluate", "evaluate a/b toy"),
        ("evaluate", "tune mini a.txt out"),
    ],
)
def test_commands_that_load_a_model_silence_the_libraries(
    module: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a\n", encoding="utf-8")
    silence = Mock(side_effect=ValueError("silenced"))
    monkeypatch.setattr(f"st_reba.cli.{module}.silence_loading", silence)
    assert main(command.split()) == 1
    assert capsys.readouterr().err == "st-reba: silenced\n"


@pytest.fixture
def server_calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Records the calls of the functions that serve, which do nothing."""
    recorder = Mock()
    monkeypatch.setattr("st_reba.serve.serve", recorder.serve)
    monkeypatch.setattr("st_reba.explore.launch", recorder.launch)
    monkeypatch.setattr("st_reba.cli.serve.silence_loading", recorder.silence_loading)
    return recorder


SERVER_WORDS = ["--index", "i", "--host", "h", "--port", "0", "--dtype", "float16"]
SERVER_OPTIONS: Mapping[str, Any] = {
    "index": Path("i"),
    "host": "h",
    "port": 0,
    "device": None,
    "dtype": "float16",
    "trust_remote_code": False,
}


def test_serve_hands_on_its_options(server_calls: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    assert main(["serve", "m", "--name", "n", "--queue", "5", *SERVER_WORDS]) == 0
    limits = SERVER_LIMITS | {"queue": 5}
    served = call.serve("m", name="n", limits=limits, **SERVER_OPTIONS)
    assert server_calls.mock_calls == [call.silence_loading(), served]
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_explore_hands_on_its_options(server_calls: Mock) -> None:
    assert main(["explore", "--open", *SERVER_WORDS]) == 0
    launched = call.launch(DEFAULT_MODELS, open_browser=True, **SERVER_OPTIONS)
    assert server_calls.mock_calls == [call.silence_loading(), launched]


@pytest.mark.parametrize(
    ("command", "help_command"),
    [
        ("nothing", "st-reba"),
        ("build", "st-reba build"),
        ("build mini out --nothing", "st-reba build"),
        ("onnx a b --task c", "st-reba onnx"),
    ],
)
def test_wrong_usage_names_the_help(
    command: str, help_command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.endswith(f" Help: {help_command} --help\n")
