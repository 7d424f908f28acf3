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
from st_reba.corpus import Corpus, documents, encode, engines, settings, shard
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
    records = [{"key": f"d{number}", "body": text, "lang": "en"} for number, text in enumerate(TEXTS)]
    records[7]["body"] = ""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def arguments(saved: Path, out: Path, *more: object) -> list[object]:
    columns = ("--text-column", "body", "--id-column", "key", "--shard-size", 8, "--batch-size", 4)
    return [saved / "model", saved / "texts.jsonl", out, *columns, *more]


def test_encodes_and_says_what(run: Run, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    status, printed, _ = run(*arguments(saved, out))
    assert status == 0
    assert f"{out}: 19 documents, vectors of 192 dimensions (float32) in 3 shards" in printed
    assert f"set aside: 1, in {out / 'rejects.jsonl'}; first: texts.jsonl, line 8: no text" in printed
    assert "encoded now: 19 texts, " in printed and "texts/s" in printed and "tokens/s" in printed
    assert all(f"{stage} " in printed.splitlines()[-1] for stage in ("gather", "read", "tokenize", "encode", "write"))
    found = np.concatenate([np.array(vectors) for _, vectors in Corpus(out).shards()])
    texts = [text for number, text in enumerate(TEXTS) if number != 7]
    np.testing.assert_allclose(found, load(saved / "model").encode_document(texts), atol=1e-5)
    stored = [document for store, _ in Corpus(out).shards() for document in store.get(range(len(store)))]
    assert [(one.id, one.text) for one in stored][6:8] == [("d6", TEXTS[6]), ("d8", TEXTS[8])]
    assert stored[0].metadata == {"lang": "en"}
    source = Corpus(out).header()["model_source"]
    assert source.startswith(".") and (out / source).resolve() == (saved / "model").resolve()
    status, printed, _ = run(*arguments(saved, out))
    assert status == 0 and "nothing to do" in printed and "encoded now" not in printed


def test_json(run: Run, saved: Path, tmp_path: Path) -> None:
    status, printed, _ = run(*arguments(saved, tmp_path / "c", "--json", "--store-dtype", "float16"))
    about = json.loads(printed)
    assert status == 0
    expected = {"documents": 19, "rejected": 1, "records": 20, "unusable": 0, "shards": 3, "encoded": 19}
    assert expected.items() <= about.items()
    assert (about["dimension"], about["dtype"], about["path"]) == (192, "float16", str(tmp_path / "c"))
    assert about["first_reject"]["id"] == "d7" and Path(about["rejects"]).is_file()
    assert about["texts_per_second"] > 0 and about["tokens_per_second"] > about["texts_per_second"]
    assert set(about["seconds"]) == {"gather", "read", "tokenize", "encode", "write"}
    again = json.loads(run(*arguments(saved, tmp_path / "c", "--json", "--store-dtype", "float16"))[1])
    assert again == {**about, "encoded": 0, "texts_per_second": None, "tokens_per_second": None}


def test_ctrl_c_says_how_far_it_got(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shard.encode_batch
    done: list[int] = []

    def interrupted(model: Any, texts: list[str], **options: Any) -> Any:
        done.append(len(texts))
        if len(done) == 4:
            raise KeyboardInterrupt
        return real(model, texts, **options)

    monkeypatch.setattr(shard, "encode_batch", interrupted)
    status, printed, err = run(*arguments(saved, tmp_path / "c"))
    assert status == 130 and printed == ""
    assert "interrupted; 7 of 19 documents are encoded and kept; the same command goes on" in err
    status, printed, _ = run(*arguments(saved, tmp_path / "c"))
    assert status == 0 and "encoded now: 12 texts" in printed

    def at_once(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(encode, "gather", at_once)
    assert "0 records were read; the same command goes on" in run(*arguments(saved, tmp_path / "d"))[2]


def test_standard_input(run: Run, saved: Path, tmp_path: Path) -> None:
    lines = "A cat.\n\nA ship.\r\n"
    for words in ("encoded now: 2 texts", "nothing to do"):
        status, printed, _ = run(saved / "model", "-", tmp_path / "c", stdin=lines)
        assert status == 0 and words in printed
    with Corpus(tmp_path / "c").open_documents(0) as store:
        assert [document.text for document in store.get([0, 1])] == ["A cat.", "A ship."]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strict"], "texts.jsonl, line 8: no text"),
        (["--workers", "2"], "workers=2.*--engine local"),
        (["--devices", "cuda:0,cuda:1"], r"devices=\['cuda:0', 'cuda:1'\].*--engine local"),
        (["--workers", "none"], "'none' is not a whole number"),
        (["--batch-tokens", "9"], "not allowed with argument"),
        (["--engine", "cloud"], "'cloud'"),
        (["--encoding", "utf-99"], "utf-99"),
        (["--split", "train"], "split='train'"),
        (["--id-column", "name"], "name"),
    ],
    ids=str,
)
def test_refused(run: Run, saved: Path, tmp_path: Path, more: list[str], message: str) -> None:
    status, printed, err = run(*arguments(saved, tmp_path / "c", *more))
    assert status == 2 and printed == "" and "Traceback" not in err
    assert re.search(message, err.strip().splitlines()[-1])


def test_other_settings_are_refused(run: Run, saved: Path, tmp_path: Path) -> None:
    assert run(*arguments(saved, tmp_path / "c"))[0] == 0
    status, _, err = run(*arguments(saved, tmp_path / "c", "--store-dtype", "float16"))
    assert status == 2 and "dtype='float32'" in err and "--overwrite" in err
    assert run(*arguments(saved, tmp_path / "c", "--store-dtype", "float16", "--overwrite"))[0] == 0
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("mine")
    status, _, err = run(*arguments(saved, tmp_path / "texts"))
    assert status == 2 and "not an encoded corpus" in err


def test_names_are_those_of_the_package() -> None:
    assert options.ENGINES == engines.ENGINES
    assert command.STORE_DTYPES == settings.DTYPES
    assert command.SHARD_SIZE == encode.SHARD_SIZE
    assert options.MAX_CHARS == documents.MAX_CHARS
