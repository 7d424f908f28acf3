"""What README and the site say works as it stands: every block of Python, every command, every link."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from st_reba import cli

ROOT = Path(__file__).parents[1]
# tools.md, onnx.md, train.md and explore.md need packages or time of their own: tests of theirs run them. scale.md is
# about many machines, and the results are records of what was run.
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("tutorial", "zh/index", "zh/tutorial", "explanation/methods")),
    *(
        f"docs/how-to/{name}.md"
        for name in ("search", "publish", "tune", "evaluate", "words", "vllm-llamacpp", "bad-embeddings")
    ),
    "skills/st-reba/SKILL.md",
]
# Bases of the pages that are not here: mini, which has 6 layers, stands in for them.
STAND_IN = {"HuggingFaceTB/SmolLM2-135M-Instruct": "mini", "SmolLM2-135M-Instruct.Q4_1.gguf": "mini", "k=9": "k=2"}
STAND_IN |= {"build smollm2": "build mini", "tune smollm2": "tune mini", "qwen2.5-0.5b-q4_k_m.gguf": "mini"}
# What a command of a page needs that is not here: the Hub, mteb's own data, a large model, files of the reader's; and
# a server, which runs until it is stopped.
ELSEWHERE = (
    "st-reba serve",
    "Qwen/",
    "my-org/",
    "-MTEB",
    "MTEB-",
    "llama2-chinese-reba my-org",
    "BASE ",
    "scripts/",
    "demo/",
)


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for written, here in STAND_IN.items():
        text = text.replace(written, here)
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith("# Not run here")]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the pages name."""
    documents = {"猫在窗台上睡着了。": 2019, "股票大跌。": 2021, "今天天气很好。": 2022}
    letters = [f"Dear {n}, the ship number {n} left at {n} o'clock." for n in range(120)]
    words = [f"bank,The bank pays {n}.,A bank lends {n}.,The bank is steep.,My bank shut {n}.,C" for n in range(9)]
    for name, lines in {
        **dict.fromkeys(("texts.txt", "corpus.txt"), documents),
        **dict.fromkeys(("letters.txt", "my_texts.txt", "my_texts/letters.txt"), letters),
        "notes/ships.md": ["# Ships", "", *letters],
        "corpus.jsonl": [f'{{"text": "{text}", "lang": "zh", "year": {year}}}' for text, year in documents.items()],
        "documents.jsonl": [
            f'{{"text": "{line} It is called {n}. Ship {n} is old."}}' for n, line in enumerate(letters)
        ],
        "corrected.jsonl": ['{"id": "1", "text": "股票大涨。"}'],
        "pairs.tsv": ["text1\ttext2\tscore", *(f"text {n}\ttext {n % 7}\t{n % 5}" for n in range(90))],
        "clicks.jsonl": [f'{{"query": "q{n // 2}", "title": "t{n % 90}", "relevance": {n % 2}}}' for n in range(160)],
        "SLPWC_v1.csv": ["word,sentence1,sentence2,sentence3,sentence4,answer", *words],
        "reviews.csv": ["text,label", *(f"{'cats' if n % 2 else 'ships'} number {n},{n % 2}" for n in range(60))],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join([*lines, ""]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("page", PAGES)
def test_commands_and_python(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    if page.startswith("docs/how-to/"):
        assert cli.main(["build", "mini", "my_model", "--method", "reba", "--pooling", "mean"]) == 0
    commands = [line for block in blocks(page, "sh") for line in re.findall(r"^st-reba .*$", block, re.MULTILINE)]
    for command in commands:
        if not any(word in command for word in ELSEWHERE):
            assert cli.main(shlex.split(command, comments=True)[1:]) == 0, f"{command}\n{capsys.readouterr().err}"
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    assert commands or names


def test_links() -> None:
    """README's links lead to files; those between pages are for Sphinx."""
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = [link.partition("#")[0] for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text)]
    assert [link for link in found if not (ROOT / link).is_file()] == [] and len(found) > 9
