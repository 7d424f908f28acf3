"""Attention maps and sinks."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation import attention
from st_reba.evaluation.attention import LayerMap, Maps, attention_maps, sink_table

TEXT = "The cat sleeps on the mat 😀"


def test_maps_equal_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several blocks of queries a layer.
    monkeypatch.setattr("st_reba.modules.blocks.BLOCK", 1)
    model = st_reba.build("mini", "echo", repeats=3).train()
    maps = attention_maps(model, TEXT)
    features = model[0].preprocess([TEXT])
    own = st_reba.build("mini", "classical")[0].model
    own.set_attn_implementation("eager")
    with torch.no_grad():
        theirs = own(input_ids=features["input_ids"], output_attentions=True).attentions
    assert len(maps.layers) == len(theirs) == 6 and not model.training
    for layer, each in zip(maps.layers, theirs, strict=True):
        assert np.abs(layer.matrix - each[0].mean(dim=0).numpy()).max() < 1e-5
        assert layer.matrix.sum(axis=1) == pytest.approx(np.ones(len(maps.tokens)), abs=1e-5)
    assert len(maps.tokens) == features["input_ids"].shape[1] and maps.tokens[-5:-3] == ("␣", "<0xF0>")
    told = {"decode.side_effect": ["", "", "", "\n"], "convert_ids_to_tokens.side_effect": [["ðŁ"], ["▁"], [""]]}
    assert [attention.readable_token(others, 7) for others in [Mock(**told)] * 4] == ["#7", "␣", "#7", "\\n"]


def test_maps_of_masks_and_of_second_runs() -> None:
    maps = attention_maps(st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, m=2), TEXT)
    assert [layer.mask for layer in maps.layers] == ["forward"] * 4 + ["nosink-bidirectional(2)"] * 2
    assert not maps.layers[5].matrix[2:, :2].any()
    assert np.triu(maps.layers[5].matrix, 1).any()
    assert not np.triu(maps.layers[3].matrix, 1).any()
    maps = attention_maps(st_reba.build("mini", "nosink", setting="inter-back", k=1), TEXT)
    runs = [(layer.layer, layer.run, layer.mask) for layer in maps.layers[-2:]]
    assert runs == [(5, 1, "forward"), (5, 2, "backward")]


def test_sinks_are_means_over_texts_that_count_alike() -> None:
    one = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]], np.float32)
    other = np.array([[1, 0], [1, 0]], np.float32)
    texts = [Maps(tuple("abc"[: len(each)]), (LayerMap(0, "forward", each),)) for each in (one, other)]
    (row,) = sink_table(iter(texts)).to_dict("records")
    assert row["sink"] == pytest.approx((0.35 + 1) / 2)
    assert row["even"] == pytest.approx(((1 / 2 + 1 / 3) / 2 + 1) / 2)
    assert row["itself"] == pytest.approx(0.55 / 2)
    assert (row["layer"], row["mask"], row["run"]) == (0, "forward", 1)


def test_the_sink_of_mini_goes_where_it_is_hidden() -> None:
    hidden = sink_table([attention_maps(st_reba.build("mini", "nosink", setting="mask0-all", k=3), TEXT)])
    # Of two sink tokens, the mean share over the tokens behind them; each sees all up to itself.
    matrix = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0], [0.3, 0.3, 0.2, 0.2]], np.float32)
    (row,) = sink_table([Maps(tuple("abcd"), (LayerMap(0, "forward", matrix),))], m=2).to_dict("records")
    wanted = {"sink": (0.5 + 0.6) / 2, "even": (2 / 3 + 2 / 4) / 2, "itself": (0.5 + 0.2) / 2}
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert (hidden["sink"] == 0).all()


def test_models_without_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError):
        attention_maps(st_reba.build("mini", "prompteol", template="contrastive"), TEXT)
    with pytest.raises(ValueError):
        attention_maps(SentenceTransformer(modules=[torch.nn.Identity()]), TEXT)
    maps = Maps(("a", "b"), (LayerMap(0, "forward", np.eye(2, dtype=np.float32)),))
    for texts, m in (([], 1), ([maps], 2), ([maps], 0)):
        with pytest.raises(ValueError):
            sink_table(texts, m)
    model = st_reba.build("mini", "reba")
    with monkeypatch.context() as patch, pytest.raises(ValueError):
        patch.setattr(attention, "install_attention", lambda model: False)
        attention_maps(model, TEXT)
    length = len(attention_maps(model, TEXT).tokens)
    for most, fits in ((length, True), (length - 1, False)):
        monkeypatch.setattr(attention, "MAX_TOKENS", most)
        with nullcontext() if fits else pytest.raises(ValueError):
            attention_maps(model, TEXT)
