"""``tokenizer=``: another model's tokenizer in place of the base's, as Chinese GPT-2 models with BERT's need it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import st_reba
from st_reba import cli

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "今天天气很好"


def bert(folder: Path, size: int, positions: int = 64) -> Path:
    """A BERT tokenizer of single characters, as a folder of its own model."""
    characters = list(dict.fromkeys(TEXT)) + [chr(0x5000 + number) for number in range(size)]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *characters][:size]) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": positions, "do_lower_case": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bert(tmp_path_factory.mktemp("tokenizers") / "bert", 500))


@pytest.fixture(scope="module")
def bare(base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GPT-2 that has no tokenizer of its own."""
    folder = tmp_path_factory.mktemp("bare") / "gpt2"
    shutil.copytree(base("gpt2"), folder, ignore=shutil.ignore_patterns("*token*", "vocab*", "merges*"))
    assert not list(folder.glob("token*"))
    return str(folder)


def same(one: Any, other: Any) -> bool:
    return bool(np.allclose(np.asarray(one), np.asarray(other), atol=1e-5))


def test_layout_and_vectors(bare: str, tokenizer: str) -> None:
    model: Any = st_reba.build(bare, "echo", tokenizer=tokenizer, normalize=False)
    known = AutoTokenizer.from_pretrained(tokenizer)
    first, *content, last = known(TEXT)["input_ids"]
    assert (first, last) == (SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")) and len(content) == len(TEXT)
    ids = [first, *content, *content, last]
    assert model[0].preprocess([TEXT])["input_ids"].tolist() == [ids]
    backbone = AutoModel.from_pretrained(bare)
    with torch.inference_mode():
        hidden = backbone(torch.tensor([ids])).last_hidden_state[0]
    assert same(model.encode(TEXT), hidden[-2])
    # The base's limit is 256; the tokenizer's own is lower and holds.
    assert model.get_max_seq_length() == 64


def test_it_takes_the_place_of_the_bases_own(base: Callable[..., str], tokenizer: str) -> None:
    own, other = (st_reba.build(base("gpt2"), "classical", tokenizer=each) for each in (None, tokenizer))
    assert own.tokenizer.get_vocab() != other.tokenizer.get_vocab()
    assert other.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(tokenizer).get_vocab()
    assert not same(own.encode(TEXT), other.encode(TEXT))


@pytest.mark.parametrize("method", ["reba", "nosink"])
def test_saved_and_loaded(bare: str, tokenizer: str, tmp_path: Path, method: str) -> None:
    layers = {"setting": "mask0-bidir", "k": 1} if method == "nosink" else {}
    model: Any = st_reba.build(bare, method, pooling="mean", tokenizer=tokenizer, **layers)
    texts = [TEXT, "天气", "好" * 100]
    wanted = model.encode(texts)
    for folder in ("once", "twice"):
        model.save_pretrained(str(tmp_path / folder))
        model = SentenceTransformer(str(tmp_path / folder), device="cpu")
        assert same(model.encode(texts), wanted)
    assert model.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(tokenizer).get_vocab()
    assert tokenizer not in (tmp_path / "once" / "config.json").read_text()


def test_vocabulary_must_fit(bare: str, tmp_path: Path) -> None:
    assert st_reba.build(bare, "classical", tokenizer=bert(tmp_path / "fits", 512)).encode(TEXT).shape == (32,)
    with pytest.raises(ValueError, match=r"tokenizer='.*large' has 513 token ids, but base='gpt2' has 512 embeddings"):
        st_reba.build(bare, "classical", tokenizer=bert(tmp_path / "large", 513))
    with pytest.raises(ValueError, match="tokenizer='mini' has 8192 token ids"):
        st_reba.build(bare, "classical", tokenizer="mini")


def test_refusals(bare: str, tokenizer: str, tmp_path: Path) -> None:
    file = f"{tokenizer}/vocab.txt"
    for given, kind, message in [
        (file, ValueError, "is a file: name the folder"),
        (AutoTokenizer.from_pretrained(tokenizer), ValueError, "must be a folder or Hub id. Save the tokenizer"),
        ("nobody/no-such-tokenizer", OSError, "tokenizer='nobody/no-such-tokenizer' could not be loaded"),
        (tmp_path, OSError, "could not be loaded"),
    ]:
        with pytest.raises(kind, match=message):
            st_reba.build(bare, "classical", tokenizer=given)


def test_a_sentence_transformers_base_keeps_its_own(bare: str, tokenizer: str, tmp_path: Path) -> None:
    whole = st_reba.build(bare, "classical", tokenizer=tokenizer)
    # As plain sentence-transformers writes it: its own Transformer and pooling.
    whole.save_pretrained(str(tmp_path / "whole"))
    modules = json.loads((tmp_path / "whole" / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.models.Transformer"
    (tmp_path / "whole" / "modules.json").write_text(json.dumps(modules))
    options: dict[str, Any] = {"method": "nosink", "setting": "mask0-bidir", "k": 1, "tokenizer": tokenizer}
    with pytest.raises(ValueError, match="tokenizer=.*the base is a sentence-transformers model"):
        st_reba.build(tmp_path / "whole", **options)
    model: Any = st_reba.build(tmp_path / "whole", pooling="mean", **options)
    assert same(model.encode(TEXT), st_reba.build(bare, pooling="mean", **options).encode(TEXT))


def test_the_bases_revision_is_not_the_tokenizers(bare: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []
    plain = AutoTokenizer.from_pretrained.__func__  # type: ignore[attr-defined]

    def spy(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append((str(name), kwargs.get("revision")))
        return plain(cls, name, *args, **kwargs)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", classmethod(spy))
    st_reba.build(bare, "classical", tokenizer=tokenizer, revision="v1.0")
    assert (tokenizer, None) in asked and (tokenizer, "v1.0") not in asked


def test_command(bare: str, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["build", bare, str(out), "--method", "echo", "--tokenizer", tokenizer, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens_per_copy"] == 31
    wanted = st_reba.build(bare, "echo", tokenizer=tokenizer)
    assert same(SentenceTransformer(str(out), device="cpu").encode(TEXT), wanted.encode(TEXT))
