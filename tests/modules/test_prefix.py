"""What all texts of a batch begin with is run once: the same vectors, in less time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, EXTRA
from marks import slow_but
from oracle import TEXTS, assert_close
from torch import Tensor

import st_reba
from st_reba.modules import prefix, running

Base = Callable[..., str]
TEMPLATE = "Instruct: find the document. Text: {text} Again: {text}"
# Every layer of mistral has a window, which is shorter than the instruction; gemma2 and gemma3 have some.
WINDOWS = ("mistral", "gemma2", "gemma3_text", "gpt_oss")
# No attention interface: bloom and its like compute their own, in which the beginning is not shared.
EAGER = ("bloom", "codegen", "gpt_neo", "gptj", "mpt")
METHODS: dict[str, dict[str, Any]] = {
    "echo": {"method": "echo", "pooling": "mean"},
    "all": {"method": "echo", "span": "all", "pooling": "mean"},
    "last": {"method": "reba"},
    "mean": {"method": "reba", "pooling": "mean"},
    "published": {"method": "reba", "variant": "published"},
}


@pytest.fixture
def prefixes(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The lengths of the beginnings that were run; None: it could not be shared."""
    ran: list[int | None] = []
    run = running.run_prefix

    def recorded(model: Any, input_ids: Tensor, runs: int) -> Any:
        shared = run(model, input_ids, runs)
        ran.append(None if shared is None else input_ids.shape[1])
        return shared

    monkeypatch.setattr(running, "run_prefix", recorded)
    monkeypatch.setattr(running, "WORTHWHILE", 4)
    return ran


def pair(path: str, **options: Any) -> tuple[st_reba.RepeatTransformer, Tensor, Tensor]:
    """A model's vectors with the beginning shared, and without."""
    model = st_reba.build(path, template=TEMPLATE, normalize=False, **options)
    got = model.encode(list(TEXTS), convert_to_tensor=True)
    whether, model[0].shares_prefix = model[0].shares_prefix, False
    wanted = model.encode(list(TEXTS), convert_to_tensor=True)
    model[0].shares_prefix = whether
    assert whether is not None or model[0].model.config._attn_implementation == "eager"
    return model[0], got, wanted


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "name", slow_but([*ARCHITECTURES, *EXTRA, "mini"], "llama", "gpt2", "gpt_oss", "gemma2", "mini")
)
def test_the_same_vectors(base: Base, name: str, method: str, prefixes: list[int | None]) -> None:
    options = METHODS[method]
    side = "left" if len(method) % 2 else "right"
    try:
        module, got, wanted = pair(base(name), padding_side=side, **options)
    except ValueError:
        assert name == "falcon_alibi" and options["method"] == "reba"
        return
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other.double())
    attention = module.model.config._attn_implementation
    by_itself = (*EAGER, "gpt_oss") if options["method"] == "echo" else (*EAGER, "falcon")
    assert (attention == "eager") == (name in by_itself)
    if attention == "eager":
        assert prefixes == []
    elif name in WINDOWS:
        assert prefixes == [] and module.shares_prefix is False
    else:
        _, copy_ids = module.frame().place([7])
        assert prefixes == [copy_ids.index(1)]


def changed(path: str, folder: Path, **settings: Any) -> str:
    """A copy of a model with other settings."""
    shutil.copytree(path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return str(folder)


def test_windows_that_hold_the_beginning(base: Base, tmp_path: Path, prefixes: list[int | None]) -> None:
    for name in WINDOWS:
        wide = changed(base(name), tmp_path / name, sliding_window=100)
        module, got, wanted = pair(wide, method="reba", pooling="mean")
        assert prefixes and prefixes[-1] is not None and module.shares_prefix
        for one, other in zip(got, wanted, strict=True):
            assert_close(one, other.double())


def test_equal_texts_keep_two_tokens_of_their_own(prefixes: list[int | None]) -> None:
    """The classical input of one text many times over is one beginning, but for its end."""
    model = st_reba.build("mini", "classical", normalize=False)
    alone = model.encode(TEXTS[1], convert_to_tensor=True)
    assert prefixes == []
    got = model.encode([TEXTS[1]] * 3, convert_to_tensor=True)
    length = model[0].preprocess([TEXTS[1]])["input_ids"].shape[1]
    assert prefixes == [length - 2]
    for vector in got:
        assert_close(vector, alone.double())


def test_only_where_it_is_allowed(prefixes: list[int | None]) -> None:
    """Not with gradients, not under a plan, not below what is worth two passes, not for a single text."""
    model = st_reba.build("mini", "echo", template=TEMPLATE)
    features = model[0].preprocess(list(TEXTS))
    model[0](dict(features))
    assert prefixes == []
    with torch.no_grad():
        model[0](dict(features))
        assert len(prefixes) == 1
        one = {name: value[:1] for name, value in features.items()}
        model[0](one)
    planned = st_reba.build("mini", "echo", template=TEMPLATE, setting="mask0-for", k=2)
    planned.encode(list(TEXTS))
    assert len(prefixes) == 1


def test_length_that_turns_every_angle(base: Base, tmp_path: Path) -> None:
    """Rotary embeddings that depend on the sequence's length give a beginning other keys than its texts."""
    assert st_reba.build(base("llama"))[0].shares_prefix is None
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    turning = changed(base("llama"), tmp_path / "turning", rope_parameters=rope)
    assert st_reba.build(turning)[0].shares_prefix is False


@pytest.mark.parametrize(
    ("rows", "lengths", "expected"),
    [
        ([[1, 2, 3, 4], [1, 2, 5, 4]], [4, 4], 2),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], [4, 4], 2),
        ([[1, 2, 3, 9], [1, 2, 3, 4]], [3, 4], 1),
        ([[5, 2], [1, 2]], [2, 2], 0),
        ([[1], [1]], [1, 1], 0),
    ],
)
def test_common_prefix(rows: list[list[int]], lengths: list[int], expected: int) -> None:
    mask = torch.arange(len(rows[0])) < torch.tensor(lengths)[:, None]
    assert prefix.common_prefix(torch.tensor(rows), mask.long()) == expected


def test_what_is_not_exact_is_not_shared(prefixes: list[int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A backbone that loses its beginning is found out before a vector depends on it."""

    def forgetful(self: Any, key: Tensor, value: Tensor, *arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        rows = key.shape[0]
        return (
            torch.cat([0 * self.keys.expand(rows, -1, -1, -1), key], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value], dim=-2),
        )

    monkeypatch.setattr(prefix._Beginning, "update", forgetful)
    module, got, wanted = pair("mini", method="reba")
    assert prefixes == [] and module.shares_prefix is False
    assert torch.equal(got, wanted)


def test_nothing_is_kept() -> None:
    """The cache holds the beginning, and not what every layer adds to it."""
    model = st_reba.build("mini", "classical")[0].model
    with torch.no_grad():
        shared = prefix.run_prefix(model, torch.tensor([[5, 6, 7]]), 6)
        assert shared is not None
        cache, hidden = shared
        model(input_ids=torch.tensor([[8, 9], [4, 3]]), past_key_values=cache, use_cache=True)
        assert hidden.shape[:2] == (1, 3)
        assert all(layer.keys.shape[0] == 1 and layer.keys.shape[-2] == 3 for layer in cache.layers)
