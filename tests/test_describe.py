"""Descriptions of model folders: every field, for every method, without loading weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from marks import slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoTokenizer

import st_reba
from st_reba.build import EMBEDDED
from st_reba.describe import describe
from st_reba.hub.saving import save

FIELDED = {"query": "{instruction}: {text} {text}", "document": "{text} {text}"}
USUAL: dict[str, Any] = {
    "base": "mini",
    "revision": None,
    "architecture": "LlamaModel",
    "variant": None,
    "chunk": None,
    "template": None,
    "setting": None,
    "layers": "6 forward",
    "reads": None,
    "postfilter": None,
    "max_seq_length": 1024,
    "dimension": 192,
    "normalized": True,
    "dtype": "float32",
    "prompts": {},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reba": (
        {},
        {"method": "reba", "variant": "paper", "pooling": "last", "copies": 2, "tokens_per_copy": 511},
    ),
    "published": (
        {
            "variant": "published",
            "pooling": "mean",
            "repeats": 3,
            "separator": " / ",
            "normalize": False,
            "dtype": "bfloat16",
            "max_seq_length": 128,
            "compute_matched": True,
            "prompts": {"query": "Query: "},
        },
        {
            "method": "reba",
            "variant": "published",
            "pooling": "mean",
            "copies": 3,
            "max_seq_length": 128,
            "normalized": False,
            "dtype": "bfloat16",
            "prompts": {"query": "Query: "},
        },
    ),
    "chunked": (
        {"chunk": 200, "repeats": 3, "pooling": "mean"},
        {"method": "reba", "pooling": "mean", "copies": 3, "chunk": 200, "tokens_per_copy": 1023},
    ),
    "echo": (
        {"method": "echo", "pooling": "mean", "template": "echo"},
        {"method": "echo", "pooling": "mean over last_copy", "copies": 2, "template": "echo"},
    ),
    "fielded": (
        {"method": "echo", "template": FIELDED, "span": "repeats"},
        {"method": "echo", "pooling": "lasttoken over repeats", "copies": 2, "template": FIELDED},
    ),
    "filled": (
        {"method": "echo", "template": FIELDED["query"], "instruction": "Find what answers the question"},
        {"method": "echo", "pooling": "lasttoken over last_copy", "copies": 2, "template": FIELDED["query"]},
    ),
    "instruct": (
        {"method": "echo", "template": "echo-instruct"},
        {"method": "echo", "pooling": "lasttoken over last_copy", "copies": 2, "template": "echo-instruct"},
    ),
    "classical": (
        {"method": "classical", "pooling": "cls"},
        {"method": "classical", "pooling": "cls over all", "copies": 1, "tokens_per_copy": 1023},
    ),
    "classical-template": (
        {"method": "classical", "pooling": "mean", "template": "echo-classical"},
        {"method": "classical", "pooling": "mean over last_copy", "copies": 1, "template": "echo-classical"},
    ),
    "layer": (
        {"method": "echo", "layer": -3},
        {
            "method": "echo",
            "pooling": "lasttoken over last_copy",
            "copies": 2,
            "layers": "4 forward",
            "reads": "layer 4 of 6, after the final norm; 4 run",
        },
    ),
    "layers": (
        {"method": "nosink", "setting": "mask0-bidir", "k": 2, "layer": 3, "final_norm": False},
        {
            "method": "nosink",
            "setting": "mask0-bidir",
            "pooling": "mean over last_copy",
            "copies": 1,
            "layers": "1 forward → 2 nosink-bidirectional",
            "reads": "layer 3 of 6, before the final norm; 3 run",
        },
    ),
    "range": (
        {"pooling": "mean", "layer": [0, 2]},
        {
            "method": "reba",
            "variant": "paper",
            "pooling": "mean",
            "copies": 2,
            "layers": "2 forward",
            "reads": "mean of layers 0 to 2 of 6, after the final norm; 2 run",
        },
    ),
    "side by side": (
        {"method": "echo", "layer": [2, 3], "join": "concat"},
        {
            "method": "echo",
            "pooling": "lasttoken over last_copy",
            "copies": 2,
            "layers": "3 forward",
            "reads": "concatenation of layers 2 to 3 of 6, after the final norm; 3 run",
            "dimension": 384,
        },
    ),
    "last layer": (
        {"method": "echo", "layer": -1},
        {"method": "echo", "pooling": "lasttoken over last_copy", "copies": 2},
    ),
    "prompteol": (
        {"method": "prompteol"},
        {"method": "prompteol", "pooling": "lasttoken over end", "copies": 1, "template": "prompteol"},
    ),
    "nosink": (
        {"method": "nosink", "setting": "MASK0&BIDIR", "k": 4, "k0": 1, "m": 2},
        {
            "method": "nosink",
            "setting": "MASK0&BIDIR",
            "layers": "2 forward → 3 bidirectional → 1 nosink-bidirectional(2)",
            "pooling": "mean over last_copy",
            "copies": 1,
        },
    ),
    "plan": (
        {"method": "nosink", "layers": {"architecture": "inter", "layers": {"backward": [-1, 2]}}, "pooling": "cls"},
        {
            "method": "nosink",
            "layers": "2 forward → 1 forward + backward → 2 forward → 1 forward + backward",
            "pooling": "cls over all",
            "copies": 1,
        },
    ),
    "converted reba": (
        {"setting": "extend-back", "k": 2},
        {
            "method": "reba",
            "variant": "paper",
            "layers": "6 forward → 2 backward (the last layer again)",
            "pooling": "last",
            "copies": 2,
        },
    ),
    "baseline": (
        {"method": "nosink", "setting": "baseline"},
        {"method": "nosink", "setting": "baseline", "pooling": "mean over last_copy", "copies": 1},
    ),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is not asked of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    st_reba.build("mini").save_pretrained(str(path))
    return path


@pytest.mark.parametrize("name", slow_but(CASES, "reba", "classical", "converted reba", "layers", "prompteol"))
def test_every_field(name: str, tmp_path: Path) -> None:
    options, wanted = CASES[name]
    model = st_reba.build("mini", **options)
    model.save_pretrained(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    found = describe(tmp_path)
    assert asdict(found) == {**USUAL, "tokens_per_copy": cast(Any, model[0]).budget(), **wanted}
    assert describe(str(tmp_path)) == found
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines] == list(asdict(found))
    assert f" {found.method}" in lines[list(asdict(found)).index("method")]
    json.dumps(asdict(found))


def test_path_is_not_told(tmp_path: Path) -> None:
    st_reba.build(EMBEDDED["mini"]).save_pretrained(str(tmp_path))
    assert describe(tmp_path).base == "mini"
    assert str(EMBEDDED["mini"].parent) not in str(describe(tmp_path))


def test_an_older_model(tmp_path: Path) -> None:
    """A folder that was written before there was a layer to name."""
    st_reba.build("mini", "echo", layers={"k": 2}).save_pretrained(str(tmp_path))
    wanted = describe(tmp_path)
    file = tmp_path / "sentence_bert_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    for name in ("layer", "final_norm", "join", "prepend"):
        settings.pop(name)
    file.write_text(json.dumps(settings), encoding="utf-8")
    assert describe(tmp_path) == wanted and wanted.reads is None


def test_truncated_model(tmp_path: Path) -> None:
    model = SentenceTransformer(modules=list(st_reba.build("mini")), truncate_dim=64, device="cpu")
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert describe(tmp_path).dimension == again.encode("hi").shape[0]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A model whose weights and tokenizer stay at its base, with settings of its own."""
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED["mini"], base)
    model = st_reba.build(base, "echo", max_seq_length=300, template="echo", dtype="bfloat16")
    save(model, tmp_path / "recipe", weights=False, golden=False, base=str(base))
    assert not list((tmp_path / "recipe").glob("tokenizer*"))
    return tmp_path / "recipe"


@pytest.mark.slow
def test_tokenizer_of_the_base(recipe: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(recipe), device="cpu")
    found = describe(recipe)
    assert (found.max_seq_length, found.dtype, found.template) == (300, "bfloat16", "echo")
    assert found.tokens_per_copy == cast(Any, model[0]).budget()
    assert found.base == str(tmp_path / "base")


@pytest.mark.slow
def test_tokenizer_of_the_base_at_its_revision(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name and revision are those of the configuration, not those of the repository."""
    file = recipe / "sentence_bert_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, "base_model": "org/base", "base_revision": "v1"}), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"(?s)takes its tokenizer from 'org/base' at revision 'v1'.*Download"
    ) as error:
        describe(recipe)
    assert str(recipe) in str(error.value)
    asked = {}

    def from_pretrained(place: str, **kwargs: Any) -> Any:
        asked.update(kwargs, place=place)
        return read(EMBEDDED["mini"], model_max_length=kwargs["model_max_length"])

    read = AutoTokenizer.from_pretrained
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    assert describe(recipe).max_seq_length == 300
    assert (asked["place"], asked["revision"], asked["trust_remote_code"]) == ("org/base", "v1", False)


@pytest.mark.slow
def test_base_that_is_gone(recipe: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ValueError, match="(?s)takes its tokenizer from .*Download that model"):
        describe(recipe)


def test_other_models(tmp_path: Path) -> None:
    other = SentenceTransformer(modules=[Transformer(str(EMBEDDED["mini"])), Pooling(192, "mean")], device="cpu")
    other.save_pretrained(str(tmp_path / "other"))
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "other", "Transformer.*Pooling"),
        (tmp_path / "empty", "no modules.json"),
        (EMBEDDED["mini"], "no modules.json"),
        (tmp_path / "nowhere", "no such folder"),
    ):
        with pytest.raises(ValueError, match=f"(?s){path.name}.*not made by st_reba.*{message}.*st-reba build"):
            describe(path)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("modules.json", "garbage", "modules.json"),
        ("modules.json", '["text"]', "modules.json"),
        ("modules.json", '{"type": "st_reba.RepeatTransformer"}', "modules.json"),
        ("modules.json", '[{"type": "st_reba.RepeatTransformer", "path": ""}]', "modules"),
        ("sentence_bert_config.json", None, "sentence_bert_config.json"),
        ("sentence_bert_config.json", "garbage", "sentence_bert_config.json"),
        ("sentence_bert_config.json", "{}", "sentence_bert_config.json"),
        ("1_ReBAPooling/config.json", None, "1_ReBAPooling"),
        ("1_ReBAPooling/config.json", "{}", "1_ReBAPooling"),
        ("config.json", "garbage", "config.json"),
        ("tokenizer.json", "garbage", "tokenizer"),
    ],
)
def test_damaged_folder(folder: Path, tmp_path: Path, name: str, content: str | None, word: str) -> None:
    """The error names the file, whatever is wrong with it."""
    for path in folder.rglob("*"):
        if path.suffix in {".json", ".jinja"}:
            target = tmp_path / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises((ValueError, OSError)) as error:
        describe(tmp_path)
    assert word in str(error.value)
