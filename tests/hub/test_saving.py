"""hub.save: whole or not at all, the same bytes again and again; repositories that leave their weights at the base."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

import st_reba
from st_reba.build import EMBEDDED
from st_reba.hub import golden, saving
from st_reba.hub.saving import save
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
    return st_reba.build("mini", pooling="mean", prompts={"query": "Q: "})


@pytest.fixture
def tiny(base: Callable[..., str]) -> SentenceTransformer:
    return st_reba.build(base("qwen3"), "echo", pooling="mean", max_seq_length=100, padding_side="left")


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
    assert not [name for name, content in wanted.items() if str(tmp_path).encode() in content]
    assert not [name for name, content in wanted.items() if str(EMBEDDED["mini"].parents[1]).encode() in content]
    # What ST writes by itself is all there, but for what is ours.
    loaded.save_pretrained(str(tmp_path / "plain"))
    plain = files(tmp_path / "plain")
    assert {**plain, "golden.json": wanted["golden.json"]} == wanted


def test_requirements(model: SentenceTransformer, tmp_path: Path) -> None:
    save(model, tmp_path, golden=False)
    assert not (tmp_path / "golden.json").exists()
    path = tmp_path / "config_sentence_transformers.json"
    settings = read(path)
    assert settings["requirements"] == REQUIREMENTS
    assert settings["prompts"]["query"] == "Q: "
    setup = (Path(st_reba.__file__).parents[1] / "setup.cfg").read_text(encoding="utf-8").split()
    assert {f"{name}{specifier}" for name, specifier in REQUIREMENTS.items()} <= set(setup)
    # ST holds the reader's versions against them.
    settings["requirements"]["transformers"] = ">=99"
    path.write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ImportError, match="transformers>=99"):
        SentenceTransformer(str(tmp_path), device="cpu")


@pytest.mark.parametrize("step", ["write_golden", "_card"])
def test_failure_leaves_what_was_there(
    model: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    folder = tmp_path / "model"
    save(model, folder, golden=False)
    before = files(folder)
    monkeypatch.setattr(saving, step, fail)
    with pytest.raises(OSError, match="disk full"):
        save(model, folder, overwrite=True)
    assert files(folder) == before and list(tmp_path.iterdir()) == [folder]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save(model, folder)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        saving.check_out(folder)


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
    loaded = SentenceTransformer(str(first), device="cpu")
    np.testing.assert_array_equal(loaded.encode(TEXTS), tiny.encode(TEXTS))
    assert loaded.max_seq_length == 100 and loaded.tokenizer.padding_side == "left"
    assert cast(Any, loaded[0]).model.dtype == torch.float32
    assert verify(first).ok
    save(loaded, again, weights=False, base=place)
    assert files(again) == files(first)
    # Whoever saves it as any model gets a whole one, which needs no base.
    loaded.save_pretrained(str(tmp_path / "whole"))
    assert "from_base" not in read(tmp_path / "whole" / "sentence_bert_config.json")
    assert (tmp_path / "whole" / "model.safetensors").is_file()
    np.testing.assert_array_equal(SentenceTransformer(str(tmp_path / "whole")).encode(TEXTS), tiny.encode(TEXTS))


def test_settings_of_the_reader_win(tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path) -> None:
    save(tiny, tmp_path, weights=False, golden=False, base=base("qwen3"))
    assert not (tmp_path / "golden.json").exists()
    for name in ("dtype", "torch_dtype"):
        loaded = SentenceTransformer(
            str(tmp_path), device="cpu", model_kwargs={name: torch.bfloat16}, processor_kwargs={"model_max_length": 50}
        )
        assert cast(Any, loaded[0]).model.dtype == torch.bfloat16 and loaded.max_seq_length == 50
    report = golden.compare(SentenceTransformer(str(tmp_path)), _stored(tiny, tmp_path))
    assert report.ok and report.changes == {}


def _stored(model: SentenceTransformer, folder: Path) -> dict[str, Any]:
    golden.write_golden(model, folder)
    return golden.read_golden(folder / "golden.json")


@pytest.mark.slow
def test_what_finds_the_base(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Hub id, its commit, and the reader's token, cache and offline flag reach transformers."""
    asked: list[tuple[str, str, dict[str, Any]]] = []
    place = base("qwen3")

    def watch(name: str) -> None:
        import transformers

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
    own = [kwargs for _, path, kwargs in asked if path == "org/base"]
    assert {name for name, path, _ in asked if path == "org/base"} == {"AutoConfig", "AutoModel", "AutoProcessor"}
    for kwargs in own:
        assert kwargs["revision"] == COMMIT and kwargs["token"] == "secret"
        assert kwargs["cache_dir"] == str(tmp_path) and kwargs["local_files_only"] is True
        assert not kwargs.get("subfolder")
    with pytest.warns(UserWarning, match="base_revision='main' is no commit"):
        save(tiny, tmp_path / "other", weights=False, base="org/base", base_revision="main")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model[0].model.layers[1].mlp.down_proj.weight.data.mul_(1.01), "other vectors"),
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


def test_bases_that_name_nothing(model: SentenceTransformer, tiny: SentenceTransformer, tmp_path: Path) -> None:
    out = tmp_path / "model"
    with pytest.raises(ValueError, match="'mini' is embedded.*weights=True"):
        save(model, out, weights=False)
    with pytest.raises(ValueError, match=r"built from a folder.*base='organization/name'"):
        save(tiny, out, weights=False)
    with pytest.raises(ValueError, match="belong to weights=False"):
        save(tiny, out, base="org/base")
    plain = SentenceTransformer(modules=[Pooling(32), Normalize()])
    with pytest.raises(ValueError, match="starts with Pooling"):
        save(plain, out, weights=False)
    with pytest.raises(ValueError, match="from_base=True needs the name"):
        st_reba.RepeatTransformer("nowhere", from_base=True)
    with pytest.raises(ValueError, match="from_base='yes'"):
        st_reba.RepeatTransformer("nowhere", from_base=cast(Any, "yes"))
    assert not out.exists()


def test_base_that_is_gone(tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path) -> None:
    place = shutil.copytree(base("qwen3"), tmp_path / "base")
    save(tiny, tmp_path / "model", weights=False, base=str(place))
    shutil.rmtree(place)
    with pytest.raises(OSError, match="holds no weights but names those of"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


def test_an_adapter_is_no_base(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "adapted_model", lambda *_: "what it adapts")
    with pytest.raises(ValueError, match="is an adapter"):
        save(tiny, tmp_path / "model", weights=False, base=base("qwen3"))


@pytest.mark.slow
def test_without_weights_and_without_the_package(
    tiny: SentenceTransformer, base: Callable[..., str], tmp_path: Path
) -> None:
    save(tiny, tmp_path / "model", weights=False, golden=False, base=base("qwen3"))
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer('model', trust_remote_code=True, device='cpu')\n"
        f"print(json.dumps(model.encode({TEXTS!r}).tolist()))\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), tiny.encode(TEXTS), atol=1e-6, rtol=0)
