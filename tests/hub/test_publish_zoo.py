"""scripts/publish_zoo.py: several recipes, one after the other, and again."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from server import Hub

ROOT = Path(__file__).parents[2]
BLOCKED = "minicpm4-0.5b-echo"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish_zoo", ROOT / "scripts" / "publish_zoo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """``run(argument, …)``: the status and what was printed; golden vectors are checked by other tests."""
    monkeypatch.setattr("st_reba.hub.push.verify_fresh", lambda folder: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = script.main(list(arguments))
        return status, *capsys.readouterr()

    return run


def rows(printed: str) -> dict[str, list[str]]:
    """Of the table at the end: name → what became of it, split at wide spaces."""
    lines = printed.splitlines()
    start = max(
        index for index, line in enumerate(lines) if line.startswith(("[", "  ", "Published", "Unchanged", "Nothing"))
    )
    found = [line.split("  ") for line in lines[start + 1 : -1]]
    return {name.strip(): [word.strip() for word in words if word.strip()] for name, *words in found}


@pytest.mark.slow
def test_published_then_unchanged(hub: Hub, run: Callable[..., tuple[int, str, str]]) -> None:
    names = ["mini-reba", "mini-echo"]
    status, printed, _ = run(*names, "--org", "org", "--private")
    assert status == 0 and printed.endswith("2 of 2 done\n")
    heads = {name: hub.repos[f"org/{name}"].branches["main"] for name in names}
    assert rows(printed) == {name: ["published", heads[name][:12]] for name in names}
    assert all(hub.repos[f"org/{name}"].private for name in names) and hub.count("commit") == 2
    for name in names:
        card = hub.repos[f"org/{name}"].files()["README.md"].data.decode()
        assert f"model_name: {name}\n" in card and f'SentenceTransformer("org/{name}"' in card
    status, printed, _ = run(*names, "--org", "org")
    assert status == 0 and rows(printed) == {name: ["unchanged", heads[name][:12]] for name in names}
    assert hub.count("commit") == 2
    status, printed, _ = run("mini-echo", "--org", "org", "--revision", "v2")
    assert status == 0 and set(hub.repos["org/mini-echo"].branches) == {"main", "v2"}


def test_one_that_fails_stops_no_other(hub: Hub, run: Callable[..., tuple[int, str, str]]) -> None:
    status, printed, told = run(BLOCKED, "mini-echo", "--org", "org")
    assert status == 1 and printed.endswith("1 of 2 done\n")
    assert told.count("failed: ") == 1 and "openbmb/MiniCPM4-0.5B" in told
    found = rows(printed)
    assert found[BLOCKED][0].startswith("failed: ") and found["mini-echo"][0] == "published"
    assert set(hub.repos) == {"org/mini-echo"}


def test_what_cannot_be_meant_is_refused_first(
    hub: Hub, script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {
        ("mini-echo", "no-such", "--org", "org"): "no recipes of the zoo: no-such (all names: st-reba zoo)",
        ("mini-echo",): "--org",
        ("--org", "org"): "name recipes, or give --all-ready",
        ("mini-echo", "--all-ready", "--org", "org"): "name recipes, or give --all-ready",
    }
    monkeypatch.delenv("HF_TOKEN")
    for arguments, message in {**refused, ("mini-echo", "--org", "org"): "there is no token"}.items():
        with pytest.raises(SystemExit) as ended:
            script.main(list(arguments))
        assert ended.value.code == 2 and message in capsys.readouterr().err, arguments
    assert hub.seen == []


def test_a_dry_run_sends_nothing(
    hub: Hub, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    status, printed, _ = run("mini-echo", "--org", "org", "--dry-run")
    assert status == 0 and rows(printed) == {"mini-echo": ["not sent"]}
    assert hub.repos == {}
