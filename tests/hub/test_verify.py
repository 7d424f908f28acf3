"""hub.verify: vectors and code of a folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    CNN,
    LSTM,
    BoW,
    Dense,
    Normalize,
    Pooling,
    Router,
    Transformer,
    WordEmbeddings,
    WordWeights,
)
from sentence_transformers.sentence_transformer.modules.tokenizer import (
    WhitespaceTokenizer,
)
from tiny import WORDS, tiny_model

from st_reba.bases import resolve_bundled
from st_reba.cli import main
from st_reba.hub import push, save, verify
from st_reba.modules.version import __version__


def test_a_saved_model_is_the_same_by_the_installed_code(
    saved_folder: Path,
) -> None:
    report = verify(saved_folder, device="cpu")
    assert report.ok
    assert report.code is None
    assert report.distance < 1e-5
    assert f"run by the installed st_reba {__version__}, and none of" in str(report)


def test_a_saved_model_is_the_same_in_bfloat16_but_for_rounding(
    saved_folder: Path,
) -> None:
    report = verify(saved_folder, device="cpu", dtype="bfloat16")
    assert report.ok
    assert report.distance > 1e-5


def test_steps_are_announced_before_they_run(saved_folder: Path) -> None:
    steps: list[str] = []
    verify(saved_folder, device="cpu", report_step=steps.append)
    assert steps == [
        f"Loading {saved_folder} in float32",
        "Encoding 25 texts",
        "Comparing weights, tokenizer and settings with what was saved",
    ]


def test_code_that_a_checkout_gave_other_line_ends_is_the_same(
    copied_folder: Path,
) -> None:
    file = copied_folder / "st_reba.py"
    text = file.read_text(encoding="utf-8")
    file.write_bytes(text.replace("\n", "\r\n").encode())
    report = verify(copied_folder)
    assert report.ok
    assert report.code is None


@pytest.mark.parametrize("changed_line", [4, None], ids=["a long line", "after the end"])
def test_changed_code_is_not_to_be_trusted_and_its_line_is_named(
    copied_folder: Path, changed_line: int | None
) -> None:
    file = copied_folder / "st_reba.py"
    lines = file.read_text(encoding="utf-8").split("\n")
    if changed_line is None:
        expected_difference = f'{len(lines) + 1}: "import os" in place of the end'
        lines.append("import os")
    else:
        assert len(lines[changed_line - 1]) > 80
        original_line = json.dumps(lines[changed_line - 1][:80], ensure_ascii=False)
        expected_difference = f'{changed_line}: "import os" in place of {original_line}'
        lines[changed_line - 1] = "import os"
    file.write_text("\n".join(lines), encoding="utf-8")
    report = verify(copied_folder)
    assert not report.ok
    assert report.distance <= report.tolerance, "the installed code ran, not that of the folder"
    first_line = str(report).splitlines()[0]
    assert first_line.startswith("Do not trust st_reba.py before you have read it")
    assert first_line.endswith(f"The first line that differs is {expected_difference}.")


def test_code_of_another_version_is_not_compared_which_is_said_first(
    copied_folder: Path,
) -> None:
    file = copied_folder / "st_reba.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("st_reba 0", "st_reba 99", 1), encoding="utf-8")
    report = verify(copied_folder)
    assert report.ok
    assert str(report).startswith(
        "Read st_reba.py before you let it run: it says that it is of st_reba 99"
    )


def test_a_folder_without_code_is_for_readers_with_the_package(
    copied_folder: Path,
) -> None:
    (copied_folder / "st_reba.py").unlink()
    report = verify(copied_folder)
    assert report.ok
    assert "only readers with st_reba" in str(report.code)


def change_settings(folder: Path, changed_settings: dict[str, Any]) -> None:
    settings_file = folder / "sentence_bert_config.json"
    settings = json.loads(settings_file.read_text(encoding="utf-8"))
    settings.update(changed_settings)
    settings_file.write_text(json.dumps(settings), encoding="utf-8")


def test_other_vectors_are_found(copied_folder: Path) -> None:
    change_settings(copied_folder, {"pooled": "all"})
    report = verify(copied_folder)
    assert not report.ok
    assert report.distance > report.tolerance


def test_damaged_weights_that_give_no_vectors_are_named(
    copied_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(copied_folder / "model.safetensors")
    weight_name = "layers.0.mlp.gate_proj.weight"
    weights[weight_name][0, 0] = float("nan")
    save_file(weights, copied_folder / "model.safetensors", metadata={"format": "pt"})
    report = verify(copied_folder, device="cpu")
    assert not report.ok
    assert report.damage == ["model.safetensors differs"]
    assert "with these weights, the model gives no vectors" in str(report)
    assert main(["verify", str(copied_folder), "--json"]) == 1
    printed_report = json.loads(capsys.readouterr().out)
    assert printed_report["ok"] is False
    assert printed_report["distance"] is None
    assert printed_report["damage"] == report.damage
    with pytest.raises(
        ValueError, match="is not what it was.*not what was saved: model.safetensors differs"
    ):
        push(copied_folder, "org/model", dry_run=True)


def test_sound_weights_that_give_no_vectors_have_another_remedy(
    copied_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "The model gave NaN or infinity for the text 'a'. Load it in float32."
    failing_compare = Mock(side_effect=ValueError(problem))
    # The package's attribute st_reba.hub.verify is a function.
    monkeypatch.setattr(import_module("st_reba.hub.verify"), "compare", failing_compare)
    with pytest.raises(ValueError, match="Load it in float32"):
        verify(copied_folder, device="cpu")


def test_a_folder_without_golden_vectors_cannot_be_verified(
    copied_folder: Path,
) -> None:
    (copied_folder / "golden.json").unlink()
    with pytest.raises(FileNotFoundError):
        verify(copied_folder)


def decoder_modules() -> list[Any]:
    return [Transformer(resolve_bundled("mini")), Pooling(192, "mean")]


def word_embeddings() -> WordEmbeddings:
    random_state = np.random.default_rng(0)
    weights = random_state.normal(size=(len(WORDS), 8)).astype(np.float32)
    return WordEmbeddings(WhitespaceTokenizer(vocab=WORDS), weights)


OTHER_PIPELINES: dict[str, Callable[[], list[Any]]] = {
    "transformer": lambda: [*decoder_modules(), Dense(192, 8), Normalize()],
    "router": lambda: [Router.for_query_document(decoder_modules(), decoder_modules())],
    "static": lambda: list(tiny_model().children()),
    "bag of words": lambda: [BoW(vocab=WORDS)],
    "weighted words": lambda: [
        word_embeddings(),
        WordWeights(WORDS, dict.fromkeys(WORDS, 2.0)),
        Pooling(8),
    ],
    "lstm": lambda: [word_embeddings(), LSTM(8, 8), Pooling(16)],
    "cnn": lambda: [word_embeddings(), CNN(8, 8), Pooling(24)],
}


@pytest.mark.parametrize("name", OTHER_PIPELINES)
def test_pipelines_of_others_are_saved_verified_described_and_published(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    model = SentenceTransformer(modules=OTHER_PIPELINES[name](), device="cpu")
    try:
        model.encode("中")
    except RuntimeError:
        pytest.skip("this sentence-transformers encodes no text without a known word")
    save(model, folder)
    report = verify(folder, device="cpu")
    assert report.ok
    assert report.code is None
    assert report.damage == []
    assert push(folder, "org/model", dry_run=True).files
    assert main(["info", str(folder)]) == 0


@pytest.mark.parametrize(
    "changed_settings",
    [
        {"module_output_name": "x"},
        {"modality_config": {}},
        {"modality_config": {"text": {"method": "forward", "method_output_name": "x"}}},
        {"modality_config": 5},
        {"transformer_task": "fill-mask"},
        {"max_seq_length": "x"},
    ],
    ids=str,
)
def test_a_pipeline_that_does_not_encode_is_refused_in_one_line(
    changed_settings: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "model"
    save(SentenceTransformer(modules=decoder_modules(), device="cpu"), folder)
    change_settings(folder, changed_settings)
    assert main(["verify", str(folder)]) == 1
    error_lines = capsys.readouterr().err.splitlines()
    own_lines = [line for line in error_lines if line.startswith("st-reba: ")]
    assert own_lines == error_lines[-1:]
    assert re.search(
        "does not encode a text|could not be loaded|sentence_bert_config.json: ",
        error_lines[-1],
    )


@pytest.mark.parametrize("name", ["golden.json", "more.json"])
def test_a_file_that_is_a_pipe_is_refused_before_it_is_read(copied_folder: Path, name: str) -> None:
    file = copied_folder / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    (copied_folder / "config.json").unlink()  # what is refused is refused before anything is loaded
    with pytest.raises(ValueError, match=f"{name}: it is a pipe"):
        verify(copied_folder)


def test_a_golden_file_that_is_too_large_is_not_read(copied_folder: Path) -> None:
    with (copied_folder / "golden.json").open("a") as file:
        file.truncate(100 << 20)
    with pytest.raises(ValueError, match=r"golden\.json.*104,857,600 bytes"):
        verify(copied_folder)
