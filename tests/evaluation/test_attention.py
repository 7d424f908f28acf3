"""Attention maps and sinks."""

from __future__ import annotations

from operator import attrgetter
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.evaluation import attention
from st_reba.evaluation.attention import LayerMap, Maps, attention_maps, readable_token, sink_table

TEXT = "The cat sleeps on the mat 😀"


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", repeats=3)


def test_maps_equal_transformers_own(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several blocks of queries per layer.
    monkeypatch.setattr("st_reba.modules.blocks.BLOCK_SIZE", 1)
    maps = attention_maps(model, TEXT)
    input_ids = model[0].preprocess([TEXT])["input_ids"]
    plain_model = st_reba.build("mini", "classical")[0].model
    plain_model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = plain_model(input_ids=input_ids, output_attentions=True).attentions
    assert len(maps.layers) == len(attentions) == 6
    assert len(maps.tokens) == input_ids.shape[1]
    for layer_map, heads in zip(maps.layers, attentions, strict=True):
        np.testing.assert_allclose(
            layer_map.matrix,
            heads[0].mean(dim=0).numpy(),
            atol=1e-5,
        )
        np.testing.assert_allclose(layer_map.matrix.sum(axis=1), 1, atol=1e-5)


def test_maps_are_of_a_model_that_is_not_trained(model: SentenceTransformer) -> None:
    model.train()
    attention_maps(model, TEXT)
    assert not model.training


def test_tokens_are_readable(model: SentenceTransformer) -> None:
    assert attention_maps(model, TEXT).tokens[-5:-3] == ("␣", "<0xF0>")


@pytest.mark.parametrize(
    ("text", "name", "readable"),
    [
        ("", "ðŁ", "#7"),
        ("", "▁", "␣"),
        ("", "", "#7"),
        ("\n", "", "\\n"),
    ],
    ids=["no ASCII", "space", "no name", "line break"],
)
def test_tokens_without_a_character_are_named(text: str, name: str, readable: str) -> None:
    tokenizer = Mock()
    tokenizer.decode.return_value = text
    tokenizer.convert_ids_to_tokens.return_value = [name]
    assert readable_token(tokenizer, 7) == readable


def test_maps_name_the_masks_and_show_them() -> None:
    maps = attention_maps(
        st_reba.build(
            "mini",
            "nosink",
            setting="mask0-bidir",
            k=2,
            m=2,
        ),
        TEXT,
    )
    assert (
        list(map(attrgetter("mask"), maps.layers))
        == ["forward"] * 4 + ["nosink-bidirectional(2)"] * 2
    )
    assert not maps.layers[5].matrix[2:, :2].any()
    assert np.triu(maps.layers[5].matrix, 1).any()
    assert not np.triu(maps.layers[3].matrix, 1).any()


def test_second_runs_of_a_layer_are_numbered() -> None:
    maps = attention_maps(
        st_reba.build("mini", "nosink", setting="inter-back", k=1),
        TEXT,
    )
    runs = [(layer_map.layer, layer_map.run, layer_map.mask) for layer_map in maps.layers[-2:]]
    assert runs == [(5, 1, "forward"), (5, 2, "backward")]


def make_maps(rows: list[list[float]]) -> Maps:
    """Maps of one layer."""
    matrix = np.array(rows, np.float32)
    return Maps(tuple("abcd"[: len(matrix)]), (LayerMap(0, "forward", matrix),))


def test_sinks_are_means_over_texts_that_count_alike() -> None:
    three_tokens = make_maps([[1, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]])
    two_tokens = make_maps([[1, 0], [1, 0]])
    (row,) = sink_table(iter([three_tokens, two_tokens])).to_dict("records")
    assert row["sink"] == pytest.approx((0.35 + 1) / 2)
    assert row["even"] == pytest.approx(((1 / 2 + 1 / 3) / 2 + 1) / 2)
    assert row["itself"] == pytest.approx(0.55 / 2)
    assert (row["layer"], row["mask"], row["run"]) == (0, "forward", 1)


def test_the_sink_may_be_several_tokens() -> None:
    maps = make_maps(
        [
            [1, 0, 0, 0],
            [0.5, 0.5, 0, 0],
            [0.25, 0.25, 0.5, 0],
            [0.3, 0.3, 0.2, 0.2],
        ]
    )
    (row,) = sink_table([maps], m=2).to_dict("records")
    assert row["sink"] == pytest.approx((0.5 + 0.6) / 2)
    assert row["even"] == pytest.approx((2 / 3 + 2 / 4) / 2)
    assert row["itself"] == pytest.approx((0.5 + 0.2) / 2)


def test_a_hidden_sink_gets_nothing() -> None:
    maps = attention_maps(
        st_reba.build("mini", "nosink", setting="mask0-all", k=3),
        TEXT,
    )
    assert (sink_table([maps])["sink"] == 0).all()


@pytest.mark.parametrize(
    ("texts", "m"),
    [
        ([], 1),
        (
            [
                make_maps(
                    [
                        [1, 0],
                        [1, 0],
                    ]
                )
            ],
            2,
        ),
        (
            [
                make_maps(
                    [
                        [1, 0],
                        [1, 0],
                    ]
                )
            ],
            0,
        ),
    ],
    ids=["no text", "short text", "no sink"],
)
def test_sinks_that_cannot_be_measured_are_refused(texts: list[Maps], m: int) -> None:
    with pytest.raises(ValueError):
        sink_table(texts, m)


def test_several_templates_have_no_maps() -> None:
    with pytest.raises(ValueError, match="templates"):
        attention_maps(st_reba.build("mini", "prompteol", template="contrastive"), TEXT)


def test_other_models_have_no_maps() -> None:
    with pytest.raises(ValueError, match="Identity"):
        attention_maps(SentenceTransformer(modules=[torch.nn.Identity()]), TEXT)


def test_a_base_that_shows_no_attention_is_named(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "install_attention", lambda model: False)
    with pytest.raises(ValueError, match="shows no attention"):
        attention_maps(model, TEXT)


def test_maps_have_a_largest_length(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = len(attention_maps(model, TEXT).tokens)
    monkeypatch.setattr(attention, "MAX_TOKENS", length)
    assert len(attention_maps(model, TEXT).tokens) == length
    monkeypatch.setattr(attention, "MAX_TOKENS", length - 1)
    with pytest.raises(ValueError, match=f"takes {length} tokens"):
        attention_maps(model, TEXT)
