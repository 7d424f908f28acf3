"""What a path holds, by its files' names, and what is refused for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from st_reba import zoo
from st_reba.cli import places

KINDS = {
    "my_index": (["index.sqlite", "vectors-1.faiss"], "an index"),
    "corpus": (["corpus.json", "documents/00000.parquet"], "an encoded corpus"),
    "exported": (["modules.json", "onnx/model.onnx"], "an exported model"),
    "my_model": (["modules.json", "config.json"], "a saved model"),
    "base": (["config.json"], "a base model"),
    "adapter": (["adapter_config.json"], "an adapter"),
    "search": (["run.json"], "the folder of a search"),
    "space": (["app.py", "requirements.txt"], "a Space"),
    "app": (["app.py"], "a folder of other files"),
    "empty": ([], "an empty folder"),
}


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, (names, _) in KINDS.items():
        Path(folder).mkdir()
        for name in names:
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).touch()
    Path("texts.txt").touch()
    Path("recipe.yaml").touch()


def test_kinds() -> None:
    assert {folder: places.kind_of(folder) for folder in KINDS} == {name: kind for name, (_, kind) in KINDS.items()}
    assert (places.kind_of("texts.txt"), places.kind_of("nothing")) == ("a file", None)


@pytest.mark.parametrize(
    ("expected", "good", "bad"),
    [
        (
            lambda path: places.expect("--index", path, "an index"),
            ["my_index"],
            {
                "my_indx": "there is no such folder. Did you mean 'my_index'? Make one: st-reba index",
                "my_model": "is a saved model, not an index. Make one:",
                "texts.txt": "is a file, not an index",
            },
        ),
        (
            lambda path: places.expect("FILE", path, "a file"),
            ["texts.txt"],
            {"text.txt": "no such file. Did you mean 'texts.txt'?", "empty": "is an empty folder, not a file."},
        ),
        (
            lambda path: places.expect_model("MODEL", path),
            ["my_model", "exported", "org/model", "./my_model"],
            {
                "mini": "a base model, not a saved one. Make one: st-reba build mini OUT",
                "my_modle": "Did you mean 'my_model'? Of a model on the Hub give ORG/NAME.",
                "./nowhere": "no such folder",
                "no/such/place": "no such folder",
                "base": "is a base model, not a saved model",
                "my_index/model": "no such folder",
            },
        ),
        (
            lambda path: places.expect_base("BASE", path),
            ["mini", "zoo:any", "recipe.yaml", "base", "adapter", "my_model", "org/base", "gpt2"],
            {
                "minni": "Did you mean 'mini'?",
                "mini-reba": "is a name of the zoo: write zoo:mini-reba",
                "gone.yaml": "no such file",
                "my_index": "is an index, not a base model",
                "texts.txt": "is a file, not a base model",
            },
        ),
        (
            lambda path: places.expect_source("SOURCE", path),
            ["my_model", "mini-reba", "zoo:mini-reba", "recipe.yaml"],
            {
                "mini": "a base model, not a saved one",
                "mini-rebba": "the zoo has no such name. Did you mean 'mini-reba'?",
                "base": "is a base model",
            },
        ),
        (
            lambda path: places.expect_results("RESULTS", path),
            ["app"],
            {
                "ap": "Did you mean 'app'?",
                "my_index": "is an index, not a folder of results",
                "empty": "an empty folder",
            },
        ),
        (lambda path: places.expect_there("INPUT", path), ["texts.txt", "app"], {"text.txt": "Did you mean"}),
        (
            lambda path: places.expect_writable(Path(path), (".npy", ".jsonl")),
            ["new.npy", "app/new.jsonl"],
            {
                "app": "is a folder: name the file",
                "no/new.npy": "'no' does not exist",
                "a.txt": "end in .npy or .jsonl",
            },
        ),
    ],
    ids=["index", "file", "model", "base", "source", "results", "there", "writable"],
)
def test_what_is_expected(expected: Callable[[str], None], good: list[str], bad: dict[str, str]) -> None:
    for path in good:
        expected(path)
    for path, message in bad.items():
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
            expected(path)


def test_what_may_be_replaced() -> None:
    for path in ("new", "empty"):
        places.expect_free(Path(path), "an index", overwrite=False)
    places.expect_free(Path("my_index"), "an index", overwrite=True)
    for path, overwrite, message in (
        ("my_index", False, "overwrite"),
        ("my_model", True, "not an index"),
        ("texts.txt", True, "a file is there"),
    ):
        with pytest.raises(FileExistsError, match=message):
            places.expect_free(Path(path), "an index", overwrite=overwrite)


def test_an_embedder_is_no_base() -> None:
    places.expect_no_embedder("BASE", "base")
    modules = Path("my_model", "modules.json")
    modules.write_text('[{"type": "sentence_transformers.models.Transformer"}]', encoding="utf-8")
    places.expect_no_embedder("BASE", "my_model")
    modules.write_text('[{"type": "st_reba.RepeatTransformer"}]', encoding="utf-8")
    with pytest.raises(ValueError, match="is a saved model already. Build from its base"):
        places.expect_no_embedder("BASE", "my_model")


def test_names_for_a_shell() -> None:
    assert places.base_names("min") == ["mini"] and "zoo:mini-reba" in places.base_names("zoo:mini")
    assert set(places.zoo_names()) == set(zoo.names()) and "mini-reba" in places.zoo_names("mini-r")
