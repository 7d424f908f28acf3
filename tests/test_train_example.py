"""The example that trains: what it learns, how it goes on after a stop, and how what it saves is loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from marks import Base
from packaging.version import Version
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from transformers.integrations.peft import MIN_PEFT_VERSION

import st_reba
from st_reba import load
from st_reba.hub import verify

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import train_echo  # noqa: E402

# transformers 5.24 came out before the PEFT it asks for. `scripts/test --consumers` and `--oldest`
# have others.
pytestmark = pytest.mark.skipif(
    Version(version("peft")) < Version(MIN_PEFT_VERSION),
    reason=f"no adapter is loaded without PEFT {MIN_PEFT_VERSION}",
)
# 5.6 is the first to know the names that an adapter of a model without a head has.
needs_own_adapters = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason="an embedder's adapter is loaded without its weights",
)
TEXTS = ["The bank is closed.", "今天的天气很好。"]
WORDS = [
    *("river", "mill", "bridge", "dog", "house", "boat"),
    *("weather", "book", "train", "tea", "student", "rice"),
]
STEPS = 9
FAST_OPTIONS = [
    *("--steps", str(STEPS)),
    *("--mini-batch-size", "3"),
    *("--batch-size", "4"),
    *("--rank", "4"),
    *("--save-steps", "3"),
    *("--lr", "0.01"),
    *("--max-seq-length", "200"),
]
Report = dict[str, Any]


def write_pairs(pairs_file: Path) -> None:
    """Pairs of sentences on one thing, or on two."""
    lines = ["sentence1\tsentence2\tscore"]
    for index, word in enumerate(WORDS):
        other_word = WORDS[index - 1]
        lines.append(f"The {word} is near.\tI can see the {word}.\t5")
        lines.append(f"The {word} is near.\tI can see the {other_word}.\t{index % 2}")
    pairs_file.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def train(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Report]:
    """``train(folder, *options)``: nine steps, in parts as GradCache does."""
    pairs_file = tmp_path_factory.mktemp("data") / "pairs.tsv"
    write_pairs(pairs_file)

    def run(folder: Path, *options: str) -> Report:
        arguments = [
            base("llama"),
            str(pairs_file),
            str(folder),
            "--dev",
            str(pairs_file),
        ]
        report: Report = train_echo.main([*arguments, *FAST_OPTIONS, *options])
        return report

    return run


@pytest.fixture(scope="module")
def trained_model(
    train: Callable[..., Report], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("trained") / "echo"
    return folder, train(folder)


def test_losses_fall_and_similarities_rise(
    trained_model: tuple[Path, Report],
) -> None:
    _, report = trained_model
    losses = report["losses"]
    assert report["pairs"] == len(WORDS)
    assert report["steps"] == len(losses) == STEPS
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    correlation_before = report["before"]["dev_spearman_cosine"]
    correlation_after = report["after"]["dev_spearman_cosine"]
    assert correlation_after > correlation_before + 0.05


@needs_own_adapters
def test_training_goes_on_from_a_checkpoint_to_the_same_losses_and_vectors(
    trained_model: tuple[Path, Report],
    train: Callable[..., Report],
    tmp_path: Path,
) -> None:
    folder, report = trained_model
    checkpoint = folder.with_name("echo-checkpoints") / "checkpoint-6"
    shutil.copytree(checkpoint, tmp_path / "echo-checkpoints" / "checkpoint-6")
    resumed_report = train(tmp_path / "echo", "--resume")
    assert resumed_report["losses"] == pytest.approx(report["losses"], abs=1e-6)
    resumed_vectors = load(tmp_path / "echo").encode(TEXTS)
    np.testing.assert_allclose(resumed_vectors, load(folder).encode(TEXTS), atol=1e-6)


@needs_own_adapters
@pytest.mark.slow
def test_an_adapter_is_saved_without_the_weights_of_its_base(
    trained_model: tuple[Path, Report],
) -> None:
    folder, _ = trained_model
    assert not list(folder.glob("model*.safetensors"))
    assert (folder / "adapter_model.safetensors").is_file()
    assert "The weights were fine-tuned" in (folder / "README.md").read_text(encoding="utf-8")
    assert verify(folder).ok


ENCODE_WITHOUT_THE_PACKAGE = """
import json, sys
sys.modules["st_reba"] = None
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True)
texts = json.loads(sys.argv[2])
print(json.dumps(model.encode_query(texts).tolist()))
"""


@needs_own_adapters
@pytest.mark.slow
def test_an_adapter_loads_with_the_code_that_it_carries(
    trained_model: tuple[Path, Report], tmp_path: Path
) -> None:
    folder, _ = trained_model
    completed = subprocess.run(
        [
            sys.executable,
            "-c",
            ENCODE_WITHOUT_THE_PACKAGE,
            str(folder),
            json.dumps(TEXTS),
        ],
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    *_, last_line = completed.stdout.splitlines()
    expected = load(folder).encode_query(TEXTS)
    np.testing.assert_allclose(json.loads(last_line), expected, atol=1e-6)


@pytest.fixture
def read_data(tmp_path: Path) -> Callable[..., Any]:
    """``read_data(file_name, content, part)``: what the example reads of a file."""

    def read(file_name: str, content: str, part: str = "0/1") -> Any:
        data_file = tmp_path / file_name
        data_file.write_text(content, encoding="utf-8")
        return train_echo.read_data(str(data_file), part)

    return read


def test_a_part_of_scored_pairs_is_read(read_data: Callable[..., Any]) -> None:
    rows = read_data("sts.txt", "1||a||b||5\n2||c||d||3.5\n3||e||f||4\n", "0/2")
    assert rows.to_dict() == {
        "query": ["a", "e"],
        "positive": ["b", "f"],
        "score": [5.0, 4.0],
    }


def test_positives_are_the_pairs_of_a_score(
    read_data: Callable[..., Any],
) -> None:
    rows = read_data("sts.txt", "1||a||b||5\n2||c||d||3.5\n3||e||f||4\n", "0/2")
    assert train_echo.select_positives(rows, 5).to_dict() == {
        "query": ["a"],
        "positive": ["b"],
    }


def test_triplets_are_read(read_data: Callable[..., Any]) -> None:
    line = '{"anchor": "a", "positive": "b", "negative": "c"}\n'
    triplets = read_data("triplets.jsonl", line * 12, "1/6")
    assert triplets.column_names == ["query", "positive", "negative"]
    assert len(triplets) == 2


def test_a_file_without_pairs_is_refused(read_data: Callable[..., Any]) -> None:
    with pytest.raises(SystemExit, match="query and positive are needed"):
        read_data("a.csv", "text,label\na,1\n")


PAGE = (ROOT / "docs" / "how-to" / "train.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("is_saved_first", [False, pytest.param(True, marks=needs_own_adapters)])
def test_an_adapter_needs_a_base_in_a_folder(is_saved_first: bool, tmp_path: Path) -> None:
    """A base whose upper layers were left out is in none until the model is saved."""
    model = st_reba.build("mini", "classical", layer=3, pooling="mean", dtype="float32")
    if is_saved_first:
        model.save_pretrained(str(tmp_path / "untrained"))
        model = load(tmp_path / "untrained", dtype="float32")
    model.add_adapter(
        LoraConfig(
            task_type="FEATURE_EXTRACTION", target_modules="all-linear", init_lora_weights=False
        )
    )
    if is_saved_first:
        model.save_pretrained(str(tmp_path / "trained"))
        loaded_model = SentenceTransformer(str(tmp_path / "trained"), device="cpu")
        assert np.allclose(loaded_model.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
        return
    with pytest.raises(ValueError, match="An adapter is saved without its base"):
        model.save_pretrained(str(tmp_path / "trained"))
    with pytest.raises(ValueError, match="An adapter is saved without its base"):
        model.train()(model.preprocess(TEXTS))


@pytest.mark.slow
def test_the_example_in_the_documentation_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code_block = PAGE.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code_block, names)
    trained_weights = [
        weight for name, weight in names["model"].named_parameters() if "lora_B" in name
    ]
    assert any(bool(weight.any()) for weight in trained_weights)


def test_the_documentation_names_no_option_that_is_not_there() -> None:
    options: set[str] = {"--nproc-per-node"}
    for action in train_echo.make_parser()._actions:
        options.update(action.option_strings)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", PAGE)) <= options
