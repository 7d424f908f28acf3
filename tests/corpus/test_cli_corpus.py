"""``st-reba encode-corpus``: what it writes, prints and refuses, and how it goes on."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba import cli
from st_reba.cli import corpus as command
from st_reba.cli import options
from st_reba.corpus import Corpus, encode, folder, part, records
from st_reba.persistence import load

TEXTS = [f"Text {'very ' * (number * 7 % 9)}number {number}, 第{number}句。" for number in range(20)]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capfd.readouterr()
        try:
            status = cli.main(["encode-corpus", *(str(argument) for argument in arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    st_reba.build("mini", "echo", pooling="mean").save_pretrained(str(folder / "model"))
    lines = [json.dumps({"key": f"d{n}", "words": text, "lang": "en"}) for n, text in enumerate(TEXTS)]
    lines[7] = '{"key": "d7", "words": ""}'
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def arguments(saved: Path, out: Path, *more: object) -> list[object]:
    columns = ("--text-column", "words", "--id-column", "key", "--part-size", 8, "--batch-size", 4)
    return [saved / "model", saved / "texts.jsonl", out, *columns, *more]


def test_encodes_and_says_what(run: Run, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    status, printed, _ = run(*arguments(saved, out))
    assert status == 0
    assert f"{out}: 19 documents, 19 vectors of 192 dimensions (float32) in 3 parts" in printed
    assert f"set aside: 1 no text; each with its reason in {out / 'rejects.jsonl'}" in printed
    assert "encoded now: 19 texts in " in printed and "texts/s" in printed and "tokens/s" in printed
    corpus = Corpus(out)
    texts = [text for number, text in enumerate(TEXTS) if number != 7]
    found = np.concatenate([np.array(corpus.vectors(number)) for number in range(3)])
    np.testing.assert_allclose(found, load(saved / "model").encode_document(texts), atol=1e-5)
    assert corpus.part(0).rows[0].document() == records.Document(TEXTS[0], "d0", {"lang": "en"})
    source = corpus.header()["model_source"]
    assert source.startswith(".") and (out / source).resolve() == (saved / "model").resolve()
    status, printed, _ = run(*arguments(saved, out))
    assert status == 0 and "nothing to do" in printed and "encoded now" not in printed


def test_json(run: Run, saved: Path, tmp_path: Path) -> None:
    status, printed, _ = run(*arguments(saved, tmp_path / "c", "--json", "--store-dtype", "float16"))
    about = json.loads(printed)
    expected = {"documents": 19, "rejected": 1, "records": 20, "unusable": 0, "parts": 3, "encoded": 19}
    assert status == 0 and expected.items() <= about.items()
    assert (about["dimension"], about["dtype"], about["path"]) == (192, "float16", str(tmp_path / "c"))
    assert about["kinds"] == {"no text": 1} and Path(about["rejects"]).is_file()
    assert about["texts_per_second"] > 0 and about["tokens_per_second"] > about["texts_per_second"]


def test_ctrl_c_says_how_far_it_got(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = part.encode_batch
    done: list[int] = []

    def interrupted(model: Any, texts: list[str], **options: Any) -> Any:
        done.append(len(texts))
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(model, texts, **options)

    monkeypatch.setattr(part, "encode_batch", interrupted)
    status, printed, err = run(*arguments(saved, tmp_path / "c"))
    assert status == 130 and printed == ""
    assert "interrupted; 7 of 19 texts are encoded and kept; the same command goes on" in err
    status, printed, _ = run(*arguments(saved, tmp_path / "c"))
    assert status == 0 and "encoded now: 12 texts" in printed


def test_standard_input(run: Run, saved: Path, tmp_path: Path) -> None:
    for words in ("encoded now: 2 texts", "nothing to do"):
        status, printed, _ = run(saved / "model", "-", tmp_path / "c", stdin="A cat.\n\nA ship.\r\n")
        assert status == 0 and words in printed
    assert Corpus(tmp_path / "c").texts(0) == ["A cat.", "A ship."]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strict"], "texts.jsonl, line 8: no text"),
        (["--workers", "1", "--devices", "cuda:0,cuda:1"], r"workers=1 are fewer than devices=\['cuda:0', 'cuda:1'\]"),
        (["--workers", "none"], "'none' is not a whole number"),
        (["--batch-tokens", "9"], "not allowed with argument"),
        (["--engine", "cloud"], "'cloud'"),
        (["--encoding", "utf-99"], "utf-99"),
        (["--split", "train"], "split='train'"),
        (["--id-column", "name"], "no column 'name'; there: 'key', 'words', 'lang'"),
        (["--passages", "8:9"], "passages='8:9'"),
    ],
    ids=str,
)
def test_refused(run: Run, saved: Path, tmp_path: Path, more: list[str], message: str) -> None:
    status, printed, err = run(*arguments(saved, tmp_path / "c", *more))
    assert status == 2 and printed == "" and "Traceback" not in err
    assert re.search(message, err.strip().splitlines()[-1])
    assert not (tmp_path / "c").exists()


def test_other_settings_are_refused(run: Run, saved: Path, tmp_path: Path) -> None:
    assert run(*arguments(saved, tmp_path / "c"))[0] == 0
    status, _, err = run(*arguments(saved, tmp_path / "c", "--store-dtype", "float16"))
    assert status == 2 and "dtype='float16'" in err and "--overwrite" in err
    assert run(*arguments(saved, tmp_path / "c", "--store-dtype", "float16", "--overwrite"))[0] == 0
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "corpus.json"):
        (tmp_path / "texts" / name).write_text("mine")
        status, _, err = run(*arguments(saved, tmp_path / "texts", "--overwrite"))
        assert status == 2 and "not an encoded corpus" in err
        (tmp_path / "texts" / name).unlink()


def test_names_are_those_of_the_package() -> None:
    assert options.ENGINES == encode.ENGINES
    assert command.STORE_DTYPES == folder.DTYPES
    assert options.MAX_CHARS == records.MAX_CHARS
