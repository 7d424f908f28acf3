"""The example that trains: what it learns, how it goes on after a stop, and how what it saves is loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from marks import Base
from packaging.version import Version
from transformers.integrations.peft import MIN_PEFT_VERSION

from st_reba import load
from st_reba.hub import verify

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import train_echo  # noqa: E402

# transformers 5.24 came out before the PEFT it asks for. `scripts/test --consumers` and `--oldest` have others.
pytestmark = pytest.mark.skipif(
    Version(version("peft")) < Version(MIN_PEFT_VERSION), reason=f"no adapter is loaded without PEFT {MIN_PEFT_VERSION}"
)
# 5.6 is the first to know the names that an adapter of a model without a head has.
needs_own_adapters = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"), reason="an embedder's adapter is loaded without its weights"
)
TEXTS = ["The bank is closed.", "今天的天气很好。"]
WORDS = ["river", "mill", "bridge", "dog", "house", "boat", "weather", "book", "train", "tea", "student", "rice"]
FAST = ["--batch-size", "4", "--rank", "4", "--save-steps", "3", "--lr", "0.01", "--max-seq-length", "200"]


@pytest.fixture(scope="module")
def train(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``train(out, *more_settings)``: nine steps, in parts as GradCache does.

    Pairs of sentences are on one thing, or on two.
    """
    lines = ["sentence1\tsentence2\tscore"]
    for number, word in enumerate(WORDS):
        lines.append(f"The {word} is near.\tI can see the {word}.\t5")
        lines.append(f"The {word} is near.\tI can see the {WORDS[number - 1]}.\t{number % 2}")
    pairs_file = tmp_path_factory.mktemp("data") / "pairs.tsv"
    pairs_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = ["--dev", str(pairs_file), "--steps", "9", "--mini-batch-size", "3", *FAST]

    def run_example(out: Path, *more_settings: str) -> dict[str, Any]:
        report: dict[str, Any] = train_echo.main([base("llama"), str(pairs_file), str(out), *settings, *more_settings])
        return report

    return run_example


@pytest.fixture(scope="module")
def echo(train: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("trained") / "echo"
    return out, train(out)


def test_losses_fall_and_pairs_are_told_apart(echo: tuple[Path, dict[str, Any]]) -> None:
    out, report = echo
    losses = report["losses"]
    assert report["pairs"] == len(WORDS)
    assert report["steps"] == len(losses) == 9
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    correlation_before = report["before"]["dev_spearman_cosine"]
    assert report["after"]["dev_spearman_cosine"] > correlation_before + 0.05


@needs_own_adapters
def test_resumed_training_has_the_same_losses_and_vectors(
    echo: tuple[Path, dict[str, Any]],
    train: Any,
    tmp_path: Path,
) -> None:
    out, report = echo
    checkpoint = Path("echo-checkpoints", "checkpoint-6")
    shutil.copytree(out.parent / checkpoint, tmp_path / checkpoint)
    resumed_report = train(tmp_path / "echo", "--resume")
    assert resumed_report["losses"] == pytest.approx(report["losses"], abs=1e-6)
    resumed_vectors = load(tmp_path / "echo").encode(TEXTS)
    np.testing.assert_allclose(resumed_vectors, load(out).encode(TEXTS), atol=1e-6)


@needs_own_adapters
@pytest.mark.slow
def test_an_adapter_loads_by_every_route(echo: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """It is stored without the base's weights, and loads with st_reba and with the code that it carries."""
    out, _ = echo
    assert not list(out.glob("model*.safetensors"))
    assert (out / "adapter_model.safetensors").is_file()
    assert "The weights were fine-tuned" in (out / "README.md").read_text(encoding="utf-8")
    assert verify(out).ok
    script = (
        "import json, sys; sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[1], device='cpu', trust_remote_code=True)\n"
        "print(json.dumps(model.encode_query(json.loads(sys.argv[2])).tolist()))\n"
    )
    command = [sys.executable, "-c", script, str(out), json.dumps(TEXTS)]
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    process = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    vectors = json.loads(process.stdout.splitlines()[-1])
    np.testing.assert_allclose(vectors, load(out).encode_query(TEXTS), atol=1e-6)


def test_every_second_row_of_pairs_with_scores_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sts.txt"
    file.write_text("1||a||b||5\n2||c||d||3.5\n3||e||f||4\n", encoding="utf-8")
    rows = train_echo.read_data(str(file), "0/2")
    assert rows.to_dict() == {"query": ["a", "e"], "positive": ["b", "f"], "score": [5.0, 4.0]}
    assert train_echo.select_positives(rows, 5).to_dict() == {"query": ["a"], "positive": ["b"]}


def test_triplets_are_read_under_the_names_of_the_example(tmp_path: Path) -> None:
    file = tmp_path / "triplets.jsonl"
    file.write_text('{"anchor": "a", "positive": "b", "negative": "c"}\n' * 12, encoding="utf-8")
    triplets = train_echo.read_data(str(file), "1/6")
    assert triplets.column_names == ["query", "positive", "negative"]
    assert len(triplets) == 2


def test_a_file_without_pairs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="query and positive are needed"):
        train_echo.read_data(str(file), "0/1")


@pytest.mark.slow
def test_the_example_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    trained_sums: list[float] = []
    for name, parameter in names["model"].named_parameters():
        if "lora_B" in name:
            trained_sums.append(float(parameter.abs().sum()))
    assert max(trained_sums) > 0


def test_every_option_that_the_documentation_names_is_one() -> None:
    text = (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")
    options = {"--nproc-per-node"}  # torchrun's
    for action in train_echo.make_parser()._actions:
        options.update(action.option_strings)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text)) <= options
