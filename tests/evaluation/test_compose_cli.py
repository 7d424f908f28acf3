"""The command st-reba tune --compose: a small search end to end, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from composing_data import rows_of, write_rows

from st_reba.cli import main, parser

SPACE = """\
templates: [null]
kinds: []
pooled: [mean]
layers: [2, 6]
filters: [center]
"""


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "pairs.jsonl", rows_of("pairs", 200))


@pytest.mark.slow
def test_a_search_from_the_command_line(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SPACE)
    common = ["tune", "mini", "pairs.jsonl", "out", "--compose", "--space", "small.yaml", "--device", "cpu"]
    common += ["--limit", "160", "--seed", "2", "--speed", "0.4", "--minutes", "30"]
    assert main(common) == 0
    told = capsys.readouterr().out
    assert "Base: mini, 6 layers; 2 of 2 arms" in told and "Build it: st-reba build out/recipe.yaml OUT" in told
    assert main([*common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["classical", "echo", "fast", "composed"]
    assert found["recipes"]["composed"]["base"] == "mini" and found["arms"] == 2
    # The command in the report runs the same again.
    command = next(line for line in Path("out/report.md").read_text().splitlines() if line.startswith("st-reba"))
    assert "--space out/space.yaml" in command and "--speed 0.4" in command
    assert main([*shlex.split(command)[1:], "--device", "cpu"]) == 0
    assert "going on after 2 arms" in capsys.readouterr().out
    assert main(["build", "out/recipe.yaml", "model", "--device", "cpu"]) == 0
    # Another space is another run.
    Path("small.yaml").write_text(SPACE.replace("center", "standardize"))
    assert main(common) == 2
    assert "out: another run is there: space.filters was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--compose --everything", "--everything belongs to the search for k and k0, while the composed one"),
        ("--compose --pooling mean", "--pooling belongs to the search for k and k0, while --compose tries"),
        ("--compose --m 1", "--m belongs to the search for k and k0"),
        ("--compose --train x.csv", "--train belongs to the search for k and k0: where --compose learns from labels"),
        ("--compose --prompt Hi", "--prompt belongs to the search for k and k0: --compose runs texts by themselves"),
        ("--compose --batch-size 64", "--batch-size belongs to the search for k and k0, while --compose fills"),
        ("--compose --subtoken last", "--subtoken belongs to the search for k and k0: tags are not searched"),
        ("--compose --word-separator _", "--word-separator belongs to the search for k and k0: tags"),
        ("--minutes 3", "--minutes belongs to the composed search. Add --compose, or drop --minutes"),
        ("--tokens 3", "--tokens belongs to the composed search"),
        ("--speed 0.5", "--speed belongs to the composed search"),
        ("--space x.yaml", "--space belongs to the composed search"),
        ("--compose --space gone.yaml", "space='gone.yaml': no such file. Write one: docs/COMPOSING.md"),
        ("--compose --kind tags", "tags are read from lines of a word"),
        ("--compose --column text1", "--column 'text1': write ROLE=NAME"),
        ("--kind triples", "no columns for anchor, positive, negative"),
        ("--compose --limit 20", "among many methods needs 40 at the least"),
    ],
)
def test_what_does_not_go_together_is_named(
    options: str, message: str, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "mini", str(pairs), str(tmp_path / "out"), *options.split()]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_triples_and_rankings_need_the_composed_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("triples", "ranking"):
        path = write_rows(tmp_path / f"{kind}.jsonl", rows_of(kind, 60))
        assert main(["tune", "mini", str(path), str(tmp_path / "out"), "--kind", kind]) == 2
        assert f"holds {kind}, which only the composed search takes: st-reba tune --compose" in capsys.readouterr().err


@pytest.mark.parametrize("options", ["--minutes 0", "--tokens 1.5", "--speed x", "--kind ner", "--minutes inf"])
def test_wrong_numbers(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["tune", "mini", "a", "b", "--compose", *options.split()])
    assert options.split()[0] in capsys.readouterr().err
