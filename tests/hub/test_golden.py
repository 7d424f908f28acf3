"""Golden vectors: the same when they are computed again, and not by another model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import st_reba
from st_reba.comparison import GOLDEN_TEXTS, machine_tolerance
from st_reba.hub import golden
from st_reba.hub.golden import compare, read_golden, write_golden


@pytest.fixture(scope="module")
def reba_model() -> Any:
    return st_reba.build("mini", "reba", pooling="mean", device="cpu")


@pytest.fixture(scope="module")
def golden_file(reba_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_golden(reba_model, folder)
    return folder / golden.GOLDEN_FILE


def test_golden_vectors_are_those_of_all_texts(golden_file: Path) -> None:
    stored = read_golden(golden_file)
    assert [text["text"] for text in stored["texts"]] == list(GOLDEN_TEXTS)
    assert '"猫"' in golden_file.read_text(encoding="utf-8")


def test_golden_vectors_come_out_again(reba_model: Any, golden_file: Path) -> None:
    report = compare(reba_model, read_golden(golden_file))
    assert report.ok
    assert report.distance < report.tolerance / 10
    assert not report.changes


def test_the_tolerance_follows_from_the_number_type_and_the_depth(
    reba_model: Any, golden_file: Path
) -> None:
    report = compare(reba_model, read_golden(golden_file))
    assert report.tolerance == machine_tolerance(reba_model) == float(f"{64 * 2**-23 * 6**0.5:.2g}")
    assert machine_tolerance(reba_model, "bfloat16") == float(f"{2.5 * 2**-7 * 6**0.5:.2g}")


def test_another_model_has_other_vectors(golden_file: Path) -> None:
    other_model = st_reba.build("mini", "reba", pooling="last", device="cpu")
    assert not compare(other_model, read_golden(golden_file)).ok


def test_a_model_of_other_dimensions_is_not_compared(golden_file: Path) -> None:
    wide_model = st_reba.build("mini", layer=[1, 2], join="concat", method="echo", device="cpu")
    with pytest.raises(ValueError, match="384 dimensions"):
        compare(wide_model, read_golden(golden_file))


@pytest.mark.parametrize(("text", "count"), [("a", 2000), ("a " * 100_000, 1)])
def test_texts_that_take_for_ever_to_encode_are_refused(
    golden_file: Path, tmp_path: Path, text: str, count: int
) -> None:
    stored = read_golden(golden_file)
    stored["texts"] = [{"text": text, "vector": [0.0]}] * count
    file = tmp_path / golden.GOLDEN_FILE
    file.write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(ValueError, match="more than 1,000 texts of 100,000 letters"):
        read_golden(file)


def test_the_text_that_differs_most_is_named(reba_model: Any, golden_file: Path) -> None:
    stored = read_golden(golden_file)
    changed_text = stored["texts"][3]
    changed_text["vector"] = list(np.array(changed_text["vector"]) * 1.01)
    report = compare(reba_model, stored)
    assert not report.ok
    furthest_text = max(report.texts, key=lambda text: report.texts[text])
    assert furthest_text == changed_text["text"]
    assert report.texts[furthest_text] == pytest.approx(0.01 / 1.01, abs=1e-5)


def test_a_failing_report_names_the_furthest_text() -> None:
    report = golden.Report(
        distance=2e-3,
        tolerance=1e-3,
        texts={"a": 0.5, "猫": 0.75},
        changes={"torch": ("1", "2")},
    )
    assert str(report).splitlines() == [
        "2 texts: distance 2.0e-03, allowed 1.0e-03",
        'furthest: "猫", by 7.5e-01 of its length',
        "changed since: torch 1 -> 2",
        "weights and tokenizer were not compared: golden.json has no digests of them",
        "FAIL",
    ]


def test_a_passing_report_tells_how_it_was_run() -> None:
    report = golden.Report(
        distance=0,
        tolerance=1e-3,
        texts={"a": 0.5, "猫": 0.75},
        changes={"torch": ("1", "2")},
        ran="our code",
        graph="g",
        rounded={"ok": True},
        damage=[],
    )
    assert str(report).splitlines()[2:] == [
        "run by our code",
        "run by onnxruntime: g",
        '8 bits: {"ok": true}',
        "changed since: torch 1 -> 2",
        "ok",
    ]


def test_a_report_begins_with_what_is_not_to_be_trusted() -> None:
    report = golden.Report(0, 1, {"a": 0.0}, {}, code="Do not trust it", damage=["weights: x"])
    assert str(report).splitlines()[:3] == [
        "Do not trust it.",
        "not what was saved: weights: x",
        "1 texts: distance 0.0e+00, allowed 1.0e+00",
    ]


@pytest.fixture
def model_with_fields() -> Any:
    """A model with what a user may set: fields, an instruction, a short limit, fewer dimensions."""
    return st_reba.build(
        "mini",
        "echo",
        template="{instruction} {aim}: {text} {text}",
        instruction="Do.",
        device="cpu",
        max_seq_length=64,
        truncate_dim=8,
    )


def test_fields_of_a_template_are_stored(model_with_fields: Any, tmp_path: Path) -> None:
    write_golden(model_with_fields, tmp_path)
    stored = read_golden(tmp_path / golden.GOLDEN_FILE)
    assert stored["fields"] == {"aim": "Find its meaning."}
    with pytest.raises(ValueError, match="golden vectors"):
        compare(model_with_fields, {**stored, "fields": {"device": "meta"}})


def test_texts_are_cut_without_a_word(
    model_with_fields: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_golden(model_with_fields, tmp_path)
    assert not caplog.records


def test_vectors_are_whole_whatever_the_user_truncates_to(
    model_with_fields: Any, tmp_path: Path
) -> None:
    write_golden(model_with_fields, tmp_path)
    stored = read_golden(tmp_path / golden.GOLDEN_FILE)
    assert len(stored["texts"][0]["vector"]) == 192
    assert model_with_fields.truncate_dim == 8
    assert compare(model_with_fields, stored).ok


def test_the_empty_text_is_left_out_where_no_token_can_stand_for_it(
    model_with_fields: Any, tmp_path: Path
) -> None:
    for name in ("bos", "eos", "unk", "pad"):
        setattr(model_with_fields.tokenizer, f"{name}_token", None)
    write_golden(model_with_fields, tmp_path)
    stored = read_golden(tmp_path / golden.GOLDEN_FILE)
    assert [text["text"] for text in stored["texts"]] == list(GOLDEN_TEXTS[1:])


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "no versions": lambda stored: stored.pop("made"),
    "no texts": lambda stored: stored.update(texts=[]),
    "a short vector": lambda stored: stored["texts"][0]["vector"].pop(),
    "NaN": lambda stored: stored["texts"][0]["vector"].__setitem__(0, float("nan")),
    "an unknown number type": lambda stored: stored["made"].update(dtype="os"),
    "no fields": lambda stored: stored.update(fields=None),
    "a tolerance in words": lambda stored: stored.update(tolerance="x"),
    "10,001 digests": lambda stored: stored.update(digests=dict.fromkeys(range(10_001), "0")),
    "a digest that is a number": lambda stored: stored.update(digests={"config.json": 1}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(saved_folder: Path, tmp_path: Path, damage: str) -> None:
    stored = json.loads((saved_folder / golden.GOLDEN_FILE).read_text(encoding="utf-8"))
    DAMAGES[damage](stored)
    damaged_file = tmp_path / golden.GOLDEN_FILE
    damaged_file.write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(ValueError):
        read_golden(damaged_file)


def test_one_number_that_is_not_finite_is_enough_to_refuse(
    reba_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_numbers = iter([1.0, torch.nan, *[1.0] * len(GOLDEN_TEXTS)])

    def encode(*args: Any, **options: Any) -> torch.Tensor:
        return torch.tensor([[1.0] * 191 + [next(last_numbers)]])

    monkeypatch.setattr(type(reba_model), "encode", encode)
    with pytest.raises(ValueError, match="NaN"):
        write_golden(reba_model, tmp_path)


@pytest.fixture(scope="module")
def search_model() -> Any:
    texts = [f"Ship {number} carries {number + 1} lamps." for number in range(120)]
    model = st_reba.build("mini", device="cpu", prompts={"query": "Find. "})
    return st_reba.fit_filter(model, texts, "whiten", power=0.25, queries=True, tokens=True)


@pytest.fixture(scope="module")
def search_file(search_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searches")
    write_golden(search_model, folder)
    return folder / golden.GOLDEN_FILE


def test_queries_have_golden_vectors_where_they_differ(
    search_model: Any, reba_model: Any, search_file: Path, golden_file: Path
) -> None:
    assert "searches" not in read_golden(golden_file)
    searches = read_golden(search_file)["searches"]
    # What `encode` gives are its documents.
    assert [(entry["task"], entry["text"]) for entry in searches] == [
        ("query", text) for text in GOLDEN_TEXTS[1:6]
    ]
    for entry in searches:
        vector = search_model.encode_query(entry["text"])
        assert np.abs(vector - np.array(entry["vector"])).max() < 1e-6


def test_documents_have_golden_vectors_too(tmp_path: Path) -> None:
    write_golden(st_reba.build("mini", device="cpu"), tmp_path)
    tasks = [entry["task"] for entry in read_golden(tmp_path / golden.GOLDEN_FILE)["searches"]]
    assert tasks == ["query"] * 5 + ["document"] * 5


def change_prompt(model: Any) -> None:
    model.prompts = {"query": "Sort. "}


def change_query_mean(model: Any) -> None:
    model[-1].query_mean += 0.01


@pytest.mark.parametrize("change", [change_prompt, change_query_mean])
def test_a_model_that_treats_queries_otherwise_is_another(
    search_model: Any, search_file: Path, change: Callable[[Any], None]
) -> None:
    changed_model = copy.deepcopy(search_model)
    stored = read_golden(search_file)
    assert compare(changed_model, stored).ok
    change(changed_model)
    report = compare(changed_model, stored)
    assert not report.ok
    furthest_text = max(report.texts, key=lambda text: report.texts[text])
    assert furthest_text.startswith("query: ")
    assert max(report.texts[text] for text in GOLDEN_TEXTS) < 1e-5


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry.update(task="similarity"),
        lambda entry: entry.pop("task"),
        lambda entry: entry["vector"].pop(),
        lambda entry: entry.update(text=1),
    ],
)
def test_damaged_searches_are_refused(
    search_file: Path, tmp_path: Path, damage: Callable[[Any], object]
) -> None:
    stored = read_golden(search_file)
    damage(stored["searches"][2])
    damaged_file = tmp_path / golden.GOLDEN_FILE
    damaged_file.write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged"):
        read_golden(damaged_file)
