"""hub.save: whole or not at all, the same bytes again and again; repositories that leave their weights at the base."""

from __future__ import annotations

import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.hub import saving
from st_reba.hub.golden import compare, read_golden
from st_reba.hub.saving import check_out, save
from st_reba.hub.verify import verify
from st_reba.modules.vendoring import REQUIREMENTS

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "long " * 120]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", pooling="mean", prompts={"query": "Q: "}, device="cpu")


@pytest.fixture
def tiny(base: Callable[..., str]) -> SentenceTransformer:
    return st_reba.build(base("qwen3"), "echo", pooling="mean", max_seq_length=100, device="cpu")


@pytest.mark.slow
def test_the_same_bytes_again(model: SentenceTransformer, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    save(model, first)
    wanted = files(first)
    assert {"golden.json", "README.md", "st_reba.py", "st_reba_repeat.py", "model.safetensors"} <= set(wanted)
    save(model, first, overwrite=True)
    assert files(first) == wanted
    loaded = SentenceTransformer(str(first), device="cpu")
    save(loaded, again)
    assert files(again) == wanted
    # What ST writes by itself is all there, but for what is ours.
    loaded.save_pretrained(str(tmp_path / "plain"))
    assert {**files(tmp_path / "plain"), "golden.json": wanted["golden.json"]} == wanted
    for place in (tmp_path, EMBEDDED["mini"].parents[1], Path.home()):
        assert not [name for name, content in wanted.items() if str(place).encode() in content]
    # Weights keep the type in which the base stores them, and others may read them.
    with safe_open(first / "model.safetensors", "pt") as stored:
        assert {stored.get_tensor(name).dtype for name in stored.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert cast(Any, model[0]).model.dtype == torch.float32
    modes = {stat.S_IMODE(path.stat().st_mode) for path in first.rglob("*") if path.is_file()}
    assert len(modes) == 1 and modes.pop() & 0o200


def test_requirements_are_held_against_the_readers_versions(model: SentenceTransformer, tmp_path: Path) -> None:
    save(model, tmp_path, golden=False)
    assert not (tmp_path / "golden.json").exists()
    path = tmp_path / "config_sentence_transformers.json"
    settings = read(path)
    assert settings["requirements"] == REQUIREMENTS and settings["prompts"]["query"] == "Q: "
    # Lower bounds alone: what newer versions do is for verify to find.
    assert all(specifier.startswith(">=") and "," not in specifier for specifier in REQUIREMENTS.values())
    settings["requirements"]["transformers"] = ">=99"
    path.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ImportError, match="transformers>=99"):
        SentenceTransformer(str(tmp_path), device="cpu")


@pytest.mark.parametrize("step", ["write_golden", "write_card"])
def test_failure_leaves_what_was_there(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    folder = tmp_path / "model"
    save(model, folder, golden=False)
    before = files(folder)
    monkeypatch.setattr(saving, step, fail)
    with pytest.raises(OSError, match="disk full"):
        save(model, folder, overwrite=True)
    assert files(folder) == before and list(tmp_path.iterdir()) == [folder]
    for attempt in (lambda: save(model, folder), lambda: check_out(folder)):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            attempt()


# Repositories without weights


def test_weights_left_at_a_folder(tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path) -> None:
    place = base("qwen3")
    first, again = tmp_path / "first", tmp_path / "again"
    save(tiny, first, weights=False, base=place)
    names = set(files(first))
    assert not [name for name in names if name.endswith((".safetensors", ".bin")) or "tokenizer" in name.lower()]
    assert {"st_reba.py", "golden.json", "config.json", "1_Pooling/config.json"} <= names
    settings = read(first / "sentence_bert_config.json")
    assert settings["from_base"] is True and settings["base_model"] == place and settings["base_revision"] is None
    assert "| weights | none here: the base's are loaded |" in (first / "README.md").read_text(encoding="utf-8")
    loaded = SentenceTransformer(str(first), device="cpu")
    np.testing.assert_array_equal(loaded.encode(TEXTS), tiny.encode(TEXTS))
    assert loaded.max_seq_length == 100 and cast(Any, loaded[0]).model.dtype == torch.float32
    assert verify(first).ok
    save(loaded, again, weights=False, base=place)
    assert files(again) == files(first)
    # The reader's own settings win.
    for name in ("dtype", "torch_dtype"):
        other = SentenceTransformer(
            str(first), device="cpu", model_kwargs={name: torch.bfloat16}, processor_kwargs={"model_max_length": 50}
        )
        assert cast(Any, other[0]).model.dtype == torch.bfloat16 and other.max_seq_length == 50
    # Whoever saves it as any model gets a whole one, which needs no base.
    loaded.save_pretrained(str(tmp_path / "whole"))
    assert "from_base" not in read(tmp_path / "whole" / "sentence_bert_config.json")
    np.testing.assert_array_equal(SentenceTransformer(str(tmp_path / "whole")).encode(TEXTS), tiny.encode(TEXTS))


def test_what_finds_the_base(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Hub id, its commit, and the reader's token, cache and offline flag reach transformers."""
    import transformers

    asked: list[tuple[str, str, dict[str, Any]]] = []
    place = base("qwen3")

    def watch(name: str) -> None:
        kind: Any = getattr(transformers, name)
        inner = kind.from_pretrained.__func__

        def from_pretrained(cls: Any, path: str, *arguments: Any, **kwargs: Any) -> Any:
            asked.append((name, path, dict(kwargs)))
            kwargs = {key: value for key, value in kwargs.items() if key not in ("revision", "token", "cache_dir")}
            return inner(cls, place if path == "org/base" else path, *arguments, **kwargs)

        monkeypatch.setattr(kind, "from_pretrained", classmethod(from_pretrained))

    for name in ("AutoConfig", "AutoModel", "AutoProcessor"):
        watch(name)
    monkeypatch.setattr(saving, "adapted_model", lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tiny, tmp_path / "model", weights=False, base="org/base", base_revision=COMMIT)
    assert read(tmp_path / "model" / "sentence_bert_config.json")["base_revision"] == COMMIT
    asked.clear()
    loaded = SentenceTransformer(
        str(tmp_path / "model"), device="cpu", token="secret", cache_folder=str(tmp_path), local_files_only=True
    )
    np.testing.assert_array_equal(loaded.encode(TEXTS), tiny.encode(TEXTS))
    assert {name for name, path, _ in asked if path == "org/base"} == {"AutoConfig", "AutoModel", "AutoProcessor"}
    for kwargs in [kwargs for _, path, kwargs in asked if path == "org/base"]:
        assert kwargs["revision"] == COMMIT and kwargs["token"] == "secret"
        assert kwargs["cache_dir"] == str(tmp_path) and kwargs["local_files_only"] is True
        assert not kwargs.get("subfolder")
    with pytest.warns(UserWarning, match="base_revision='main' is no commit"):
        save(tiny, tmp_path / "other", weights=False, base="org/base", base_revision="main", check=False, golden=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model[0].model.layers[1].mlp.down_proj.weight.data.mul_(1.05), "other vectors"),
        (lambda model: setattr(model[0].model, "hf_quantizer", object()), "are quantized"),
        (lambda model: model.append(Dense(32, 8)), "Dense has weights of its own"),
    ],
)
def test_weights_that_no_base_has(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path, change: Any, message: str
) -> None:
    change(tiny)
    with pytest.raises(ValueError, match=message):
        save(tiny, tmp_path / "model", weights=False, base=base("qwen3"))
    assert list(tmp_path.iterdir()) == []


def test_bases_that_name_nothing(
    model: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    for each, options, message in (
        (model, {"weights": False}, "'mini' is embedded.*weights=True"),
        (tiny, {"weights": False}, r"built from a folder.*base='organization/name'"),
        (tiny, {"base": "org/base"}, "belong to weights=False"),
        (tiny, {"weights": False, "truncate_layers": True}, "all of the base's layers"),
        (SentenceTransformer(modules=[Pooling(32), Normalize()]), {"weights": False}, "starts with Pooling"),
    ):
        with pytest.raises(ValueError, match=message):
            save(each, out, **cast(Any, options))
    monkeypatch.setattr(saving, "adapted_model", lambda *_: "what it adapts")
    with pytest.raises(ValueError, match="is an adapter"):
        save(tiny, out, weights=False, base="org/base", base_revision=COMMIT)
    assert not out.exists()


def test_a_base_that_is_gone(tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path) -> None:
    place = shutil.copytree(base("qwen3"), tmp_path / "base")
    save(tiny, tmp_path / "model", weights=False, base=str(place))
    shutil.rmtree(place)
    with pytest.raises(OSError, match="holds no weights but names those of"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


def test_without_a_check_no_second_model_is_loaded(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "load", lambda *_, **__: pytest.fail("loaded"))
    save(tiny, tmp_path / "model", weights=False, base=base("qwen3"), check=False)
    monkeypatch.undo()
    assert compare(tiny, read_golden(tmp_path / "model" / "golden.json")).ok and os.listdir(tmp_path) == ["model"]
