"""What README and the site say works as it stands: every block of Python, every command, every link."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from st_reba import cli

ROOT = Path(__file__).parents[1]
# tools.md, onnx.md, train.md and explore.md need packages or time of their own: tests of theirs run
# them. scale.md is about many machines, and the results are records of what was run.
PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/zh/index.md",
    "docs/zh/tutorial.md",
    "docs/explanation/methods.md",
    "docs/how-to/search.md",
    "docs/how-to/publish.md",
    "docs/how-to/tune.md",
    "docs/how-to/evaluate.md",
    "docs/how-to/words.md",
    "docs/how-to/vllm-llamacpp.md",
    "docs/how-to/bad-embeddings.md",
    "skills/st-reba/SKILL.md",
]
# Bases of the pages that are not here: mini, which has 6 layers, stands in for them.
STAND_IN = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "mini",
    "SmolLM2-135M-Instruct.Q4_1.gguf": "mini",
    "qwen2.5-0.5b-q4_k_m.gguf": "mini",
    "build smollm2": "build mini",
    "tune smollm2": "tune mini",
    "k=9": "k=2",
}
# What a command of a page needs that is not here: the Hub, mteb's own data, a large model, files of
# the reader's; and a server, which runs until it is stopped.
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
    for written, stand_in in STAND_IN.items():
        text = text.replace(written, stand_in)
    all_blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for block in all_blocks if not block.startswith("# Not run here")]


def example_files() -> dict[str, list[str]]:
    """Lines of the files that the pages name."""
    year_of_text = {"猫在窗台上睡着了。": 2019, "股票大跌。": 2021, "今天天气很好。": 2022}
    texts = list(year_of_text)
    letters: list[str] = []
    documents: list[str] = []
    for number in range(120):
        letter = f"Dear {number}, the ship number {number} left at {number} o'clock."
        letters.append(letter)
        documents.append(f'{{"text": "{letter} It is called {number}. Ship {number} is old."}}')
    corpus: list[str] = []
    for text, year in year_of_text.items():
        corpus.append(f'{{"text": "{text}", "lang": "zh", "year": {year}}}')
    senses = ["word,sentence1,sentence2,sentence3,sentence4,answer"]
    for n in range(9):
        senses.append(
            f"bank,The bank pays {n}.,A bank lends {n}.,The bank is steep.,My bank shut {n}.,C"
        )
    pairs = ["text1\ttext2\tscore"]
    pairs += [f"text {number}\ttext {number % 7}\t{number % 5}" for number in range(90)]
    clicks: list[str] = []
    for n in range(160):
        clicks.append(f'{{"query": "q{n // 2}", "title": "t{n % 90}", "relevance": {n % 2}}}')
    reviews = ["text,label"]
    for number in range(30):
        reviews += [f"ships number {2 * number},0", f"cats number {2 * number + 1},1"]
    return {
        "texts.txt": texts,
        "corpus.txt": texts,
        "letters.txt": letters,
        "my_texts.txt": letters,
        "my_texts/letters.txt": letters,
        "notes/ships.md": ["# Ships", "", *letters],
        "corpus.jsonl": corpus,
        "documents.jsonl": documents,
        "corrected.jsonl": ['{"id": "1", "text": "股票大涨。"}'],
        "pairs.tsv": pairs,
        "clicks.jsonl": clicks,
        "SLPWC_v1.csv": senses,
        "reviews.csv": reviews,
    }


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that the pages name."""
    for name, lines in example_files().items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("page", PAGES)
def test_commands_and_python_of_a_page_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    if page.startswith("docs/how-to/"):
        assert cli.main(["build", "mini", "my_model", "--method", "reba", "--pooling", "mean"]) == 0
    commands: list[str] = []
    for block in blocks(page, "sh"):
        commands += re.findall(r"^st-reba .*$", block, re.MULTILINE)
    for command in commands:
        if not any(words in command for words in ELSEWHERE):
            arguments = shlex.split(command, comments=True)[1:]
            assert cli.main(arguments) == 0, f"{command}\n{capsys.readouterr().err}"
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    assert commands or names


def test_links_of_the_readme_lead_to_files() -> None:
    """Those between pages are for Sphinx."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose)
    assert len(links) > 9
    for link in links:
        assert (ROOT / link.partition("#")[0]).is_file(), link
