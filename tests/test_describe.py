"""Descriptions of model folders: what was built is told, without the weights and without a guess."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoTokenizer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.describe import describe
from st_reba.hub.saving import save

FIRST = "sentence_bert_config.json"
FIELDED = {"query": "{instruction}: {text} {text}", "document": "{text} {text}"}
USUAL: dict[str, Any] = {
    "base": "mini",
    "revision": None,
    "architecture": "LlamaModel",
    "layers": "6 forward",
    "reads": None,
    "max_seq_length": 1024,
    "dimension": 192,
    "prompts": {},
}
# How a model is built, and what is not as usual.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "reba": ("reba", {}, {"method": "reba", "copies": 2, "tokens_per_copy": 511}),
    "published": (
        "reba:repeats=3,pooling=mean,variant=published,normalize=False,max_seq_length=128,compute_matched=True",
        {"dtype": "bfloat16", "prompts": {"query": "Query: ", "document": ""}},
        {"method": "reba", "copies": 3, "max_seq_length": 128, "prompts": {"query": "Query: "}},
    ),
    "chunked": ("reba:chunk=200,repeats=3,pooling=mean", {}, {"method": "reba", "copies": 3, "tokens_per_copy": 1023}),
    "template": ("echo:pooling=mean,template=echo", {}, {"method": "echo", "copies": 2}),
    "cls": ("classical:pooling=cls", {}, {"method": "classical", "copies": 1, "tokens_per_copy": 1023}),
    "prompteol": ("prompteol", {}, {"method": "prompteol", "copies": 1}),
    "nosink": (
        "nosink:setting=mask0&bidir,k=4,k0=1,m=2",
        {},
        {"method": "nosink", "layers": "2 forward → 3 bidirectional → 1 nosink-bidirectional(2)", "copies": 1},
    ),
    "converted": (
        "reba+nosink:setting=extend-back,k=2",
        {},
        {"method": "reba", "layers": "6 forward → 2 backward (the last layer again)", "copies": 2},
    ),
    "plan of inner layers": (
        "classical+nosink:setting=mask0-bidir,k=2+read:layers=3,final_norm=False",
        {},
        {
            "method": "nosink",
            "layers": "1 forward → 2 nosink-bidirectional",
            "reads": "layer 3 of 6, before the final norm",
            "copies": 1,
        },
    ),
    "side by side": (
        "echo+read:layers=2 3,join=concat",
        {},
        {
            "method": "echo",
            "layers": "3 forward",
            "reads": "concatenation of layers 2 to 3 of 6, after the final norm",
            "dimension": 384,
            "copies": 2,
        },
    ),
    "ensemble": ("prompteol+ensemble:templates=contrastive", {}, {"method": "prompteol", "copies": 1}),
    "prepend": ("classical+prepend:layers=2", {}, {"method": "classical", "copies": 1, "tokens_per_copy": 1022}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_field(name: str, tmp_path: Path) -> None:
    text, options, wanted = CASES[name]
    model = st_reba.build("mini", text, check=False, **options)
    model.save_pretrained(str(tmp_path))
    found = describe(tmp_path)
    # The weights are not opened.
    (tmp_path / "model.safetensors").unlink()
    assert describe(str(tmp_path)) == found
    assert found.spec == st_reba.spec_of(model) == st_reba.Spec.parse(text)
    told = found.to_json()
    shown = {"spec": found.spec.to_dict(), "modules": [type(module).__name__ for module in model], "dtype": "bfloat16"}
    assert told == {**USUAL, **shown, "tokens_per_copy": cast(Any, model[0]).budget(), **wanted}
    assert json.loads(json.dumps(told)) == told
    assert [line.split()[0] for line in str(found).splitlines()] == list(vars(found))
    assert f" {found.spec}" in str(found)


def test_templates_with_fields(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo", template=FIELDED, span="repeats")
    model.save_pretrained(str(tmp_path))
    assert describe(tmp_path).spec.method.to_dict() == {"template": FIELDED, "span": "repeats"}
    st_reba.build("mini", "echo", template="echo-instruct").save_pretrained(str(tmp_path))
    assert describe(tmp_path).copies == 2


def test_put_together_by_hand(tmp_path: Path) -> None:
    modules = [st_reba.RepeatTransformer(str(EMBEDDED["mini"]), repeats=3), Pooling(192, "mean")]
    SentenceTransformer(modules=modules, device="cpu", truncate_dim=64).save_pretrained(str(tmp_path))
    found = describe(tmp_path)
    assert (found.spec.name, found.copies, found.base, found.dimension) == ("by-hand", 3, None, 64)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A model whose weights and tokenizer stay at its base, with settings of its own."""
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED["mini"], base)
    model = st_reba.build(base, "echo", max_seq_length=300, template="echo")
    save(model, tmp_path / "recipe", weights=False, golden=False, base=str(base))
    assert not list((tmp_path / "recipe").glob("tokenizer*"))
    return tmp_path / "recipe"


def test_tokenizer_of_the_base(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and revision are those of the configuration, not those of the repository."""
    found = describe(recipe)
    model = SentenceTransformer(str(recipe), device="cpu")
    assert (found.max_seq_length, found.tokens_per_copy) == (300, cast(Any, model[0]).budget())
    assert found.base == str(tmp_path / "base")
    config = json.loads((recipe / FIRST).read_text(encoding="utf-8"))
    (recipe / FIRST).write_text(
        json.dumps({**config, "base_model": "org/base", "base_revision": "v1"}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"(?s)takes its tokenizer from 'org/base' at revision 'v1'.*Download"):
        describe(recipe)
    asked, read = {}, AutoTokenizer.from_pretrained

    def from_pretrained(place: str, **kwargs: Any) -> Any:
        asked.update(kwargs, place=place)
        return read(EMBEDDED["mini"], model_max_length=kwargs["model_max_length"])

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    assert describe(recipe).max_seq_length == 300
    assert (asked["place"], asked["revision"], asked["trust_remote_code"]) == ("org/base", "v1", False)


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


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can be described, without its weights."""
    path = tmp_path_factory.mktemp("sound")
    st_reba.build("mini", check=False).save_pretrained(str(path))
    (path / "model.safetensors").unlink()
    return path


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("modules.json", '["text"]', "modules.json"),
        ("modules.json", '[{"type": "st_reba.RepeatTransformer", "path": "", "name": "0"}]', "modules"),
        (FIRST, None, FIRST),
        (FIRST, "garbage", FIRST),
        (FIRST, "{}", FIRST),
        ("1_ReBAPooling/config.json", None, "1_ReBAPooling"),
        ("config.json", "garbage", "config.json"),
        ("tokenizer.json", "garbage", "tokenizer"),
    ],
)
def test_damaged_folder(sound: Path, tmp_path: Path, name: str, content: str | None, word: str) -> None:
    """The error names the file, whatever is wrong with it."""
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises((ValueError, OSError)) as error:
        describe(tmp_path)
    assert word in str(error.value)
