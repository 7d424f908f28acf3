"""CONTRIBUTING's recipes for a mask, a pooling and a kind of task, followed from outside the package's files."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pipelines import build, encoded, features_of, save_and_load
from sentence_transformers.util import cos_sim

import st_reba
from st_reba import poolings
from st_reba.evaluation import compare, evaluate, read_task
from st_reba.evaluation.tables import COLUMNS, read_score, read_text
from st_reba.evaluation.task import KINDS, declare_kind
from st_reba.methods import Method, method_of
from st_reba.modules import MODULES
from st_reba.modules.masks import MASKS
from st_reba.onnx.graph import EmbeddingGraph

TEXTS = ["The cat sleeps under the old bridge.", "他在银行取钱", "x"]
EXAMPLE = re.compile(r"```python\n(\"\"\".*?)```", re.DOTALL)
# The examples of CONTRIBUTING, as files of another package.
FILES = ("toy_mask.py", "toy_pooling.py", "toy_pooling_spec.py", "toy_kind.py", "toy_pairs.py")


@pytest.fixture
def toy_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of another package, which may be imported; what they declare is taken back at the end."""
    folder = tmp_path / "another_package"
    folder.mkdir()
    contributing = Path(__file__).parents[1] / "CONTRIBUTING.md"
    examples = EXAMPLE.findall(contributing.read_text(encoding="utf-8"))
    for name, example in zip(FILES, examples, strict=True):
        (folder / name).write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(poolings, "POOLINGS", [*poolings.POOLINGS])
    declarations: list[dict[str, Any]] = [MASKS, MODULES, KINDS, COLUMNS]
    declared_before = [dict(declared) for declared in declarations]
    yield
    for declared, before in zip(declarations, declared_before, strict=True):
        declared.clear()
        declared.update(before)
    for name in ("published_toy", *FILES):
        sys.modules.pop(Path(name).stem, None)


def published_code(folder: Path) -> ModuleType:
    """The code that travels with a model, imported as a file of its own."""
    spec: Any = importlib.util.spec_from_file_location("published_toy", folder / "st_reba.py")
    code = importlib.util.module_from_spec(spec)
    sys.modules["published_toy"] = code
    spec.loader.exec_module(code)
    return code


def test_a_mask_that_is_declared_elsewhere_works_and_travels(
    toy_files: None, tmp_path: Path
) -> None:
    importlib.import_module("toy_mask")
    model: Any = build("mini", "nosink", setting="toy-window", k=3)
    vectors = model.encode(TEXTS)
    assert abs(vectors - build("mini", "nosink", setting="baseline").encode(TEXTS)).max() > 1e-3
    loaded: Any = save_and_load(model, tmp_path / "saved")
    assert loaded[0].layer_masks == model[0].layer_masks
    np.testing.assert_allclose(loaded.encode(TEXTS), vectors, atol=1e-6)
    code = published_code(tmp_path / "saved")
    assert code.MASKS is not MASKS and code.MASKS["toy-window"].is_causal


@pytest.mark.parametrize("section", ["__main__", "a_module_that_is_gone"])
def test_a_mask_without_a_file_is_not_saved(
    section: str, toy_files: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a notebook; the tests themselves run in a ``__main__`` that has a file."""
    importlib.import_module("toy_mask")
    model = build("mini", "nosink", setting="toy-window", k=3)
    monkeypatch.setattr(MASKS["toy-window"].visible_tokens, "__module__", section)
    with pytest.raises(ValueError, match=f"{section!r} cannot be imported as a file"):
        save_and_load(model, tmp_path / "saved")


def test_a_pooling_that_is_declared_elsewhere_works_and_travels(
    toy_files: None, tmp_path: Path
) -> None:
    importlib.import_module("toy_pooling_spec")
    toy_pooling: Any = importlib.import_module("toy_pooling")
    (example,) = doctest.DocTestFinder(recurse=False).find(
        toy_pooling.ToyPooling, "ToyPooling", module=False, globs=vars(toy_pooling).copy()
    )
    assert doctest.DocTestRunner().run(example) == (0, 3)
    model: Any = build("mini", "echo", pooling="toy")
    vectors = model.encode(TEXTS)
    loaded = save_and_load(model, tmp_path / "saved")
    np.testing.assert_allclose(loaded.encode(TEXTS), vectors, atol=1e-6)
    checked = st_reba.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(checked.encode(TEXTS), vectors, atol=1e-6)
    assert method_of(loaded) == Method("echo", pooling="toy", normalize=False)
    assert EmbeddingGraph(loaded).pooling is loaded[1]
    with pytest.raises(ValueError, match="nosink: pooling='toy' is not known"):
        Method("nosink", pooling="toy", setting="baseline")
    with torch.no_grad():
        features = model[0](features_of(model, TEXTS))
    copied_pooling = published_code(tmp_path / "saved").ToyPooling(192)
    assert torch.equal(copied_pooling(features)["sentence_embedding"], encoded(model, TEXTS))


PAIRS = pd.DataFrame(
    {"sentence1": TEXTS, "sentence2": TEXTS[::-1], "least": [0.5, 1, 0.5], "score": range(3)}
)


def test_a_kind_of_task_that_is_declared_elsewhere_is_read_and_scored(
    toy_files: None, tmp_path: Path
) -> None:
    importlib.import_module("toy_kind")
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    task = read_task(tmp_path / "pairs.csv")
    assert str(task) == "pairs: Margins, 3 items"
    model = build("mini", "echo", pooling="mean")
    vectors = model.encode(TEXTS)
    cosine = float(cos_sim(vectors[0], vectors[2]))
    (result,) = evaluate(model, f"margins={tmp_path / 'pairs.csv'}")
    assert result.metric == "closeness"
    assert result.score == pytest.approx((1 + 2 * (1 - abs(cosine - 0.5))) / 3, abs=1e-5)
    assert len(compare("mini", task, ["echo:pooling=mean", "classical"]).results) == 2


def test_pairs_with_a_number_have_a_reader_and_a_metric_of_their_own(toy_files: None) -> None:
    importlib.import_module("toy_pairs")
    pairs = PAIRS.drop(columns=["least", "score"]).assign(toy_stars=["1", "5", "3"])
    pairs = pairs.loc[[0, 1, 2] * 4]
    model = build("mini", "echo", pooling="mean")
    vectors = model.encode(TEXTS)
    cosine = float(cos_sim(vectors[0], vectors[2]))
    (result,) = evaluate(model, read_task(pairs))
    distances = abs(cosine), 0, abs(cosine - 0.5)
    assert result.score == pytest.approx(1 - sum(distances) / 3, abs=1e-5)
    with pytest.raises(
        ValueError, match=r"row 1, column 'toy_stars': '1.5' is not a whole number from 1 to 5"
    ):
        read_task(pairs.assign(toy_stars="1.5"))


def test_a_role_is_the_name_of_its_column(toy_files: None) -> None:
    importlib.import_module("toy_kind")
    readers = {"text1": read_text, "text2": read_text, "nearness": read_score}
    attributes = {"name": "Nearness", "column_readers": readers, "column_names": {}}
    nearness_class = type("Nearness", (type(KINDS["Margins"]),), attributes)
    declare_kind(nearness_class())
    task = read_task(PAIRS.rename(columns={"least": "nearness"}), "Nearness")
    assert task.items == ((0, 1, 0.5), (2, 2, 1.0), (1, 0, 0.5))


def test_a_kind_of_task_is_declared_again_by_its_own_class_alone(toy_files: None) -> None:
    importlib.import_module("toy_kind")
    first_kind = KINDS["Margins"]
    # As a notebook's cell that runs once more.
    importlib.reload(sys.modules["toy_kind"])
    assert KINDS["Margins"] is not first_kind
    other_class = type("OtherMargins", (type(first_kind),), {})
    with pytest.raises(ValueError, match="kind='Margins' is there already"):
        declare_kind(other_class())
    with pytest.raises(ValueError, match="the role 'margin' has the columns margin, least already"):
        declare_kind(
            type("Other", (other_class,), {"name": "Other", "column_names": {"margin": ("gap",)}})()
        )
    assert "Other" not in KINDS


def test_a_table_is_of_the_kind_that_comes_first(toy_files: None) -> None:
    assert read_task(PAIRS.loc[[0, 1, 2] * 4]).kind == "STS"
    importlib.import_module("toy_kind")
    assert read_task(PAIRS.loc[[0, 1, 2] * 4]).kind == "Margins"
