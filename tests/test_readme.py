"""The README's code runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from st_reba import cli

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "1 0." in capsys.readouterr().out


@pytest.mark.slow
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("猫在窗台上睡着了。\n股票大跌。\n", encoding="utf-8")
    Path("corpus.jsonl").write_text('{"text": "猫在窗台上睡着了。"}\n{"text": "股票大跌。"}\n', encoding="utf-8")
    Path("corrected.jsonl").write_text('{"id": "1", "text": "股票大涨。"}\n', encoding="utf-8")
    pairs = [f"text {n}\ttext {n % 7}\t{n % 5}\n" for n in range(90)]
    Path("pairs.tsv").write_text("text1\ttext2\tscore\n" + "".join(pairs), encoding="utf-8")
    words = [
        f"bank,The bank pays {n}.,A bank lends {n}.,The bank is steep {n}.,My bank shut {n}.,C\n" for n in range(9)
    ]
    Path("SLPWC_v1.csv").write_text("word,sentence1,sentence2,sentence3,sentence4,answer\n" + "".join(words))
    reviews = [f"{'cats' if n % 2 else 'ships'} number {n},{n % 2}\n" for n in range(60)]
    Path("reviews.csv").write_text("text,label\n" + "".join(reviews))
    hub = ("Qwen/", "push llama2-chinese-reba", "C-MTEB")
    commands = re.findall(r"^st-reba .*$", README, re.MULTILINE)
    commands = [line for line in commands if not any(word in line for word in hub)]
    assert len(commands) == 23
    for command in commands:
        assert cli.main(shlex.split(command, comments=True)[1:]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert '"rank": 1' in out and out.count("* the others are compared with it") == 2
    assert Path("found/recipe.yaml").is_file() and Path("composed/recipe-fast.yaml").is_file()
    assert "accuracy cosine" in out and "cosine_spearman" in out
    assert Path("maps/attention.png").is_file() and Path("report/report.md").is_file()
