"""Converted layers against the oracle: kinds × architectures × depths × sinks × padding side × alone or in a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import reference
import reference_nosink
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, loaded
from reference import Layout
from reference_nosink import KINDS, Plan, hooked, plan, run
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel, masking_utils

import st_reba
from st_reba import LayerPlan, named_plan
from st_reba.modules import blocked

DEPTH = 3
ALL = ["inplace", "inter", "extra", "extend"]
READINGS = [
    ("inplace", "paper"),
    *((name, variant) for name in ("inter", "extra") for variant in ("paper", "published")),
]
READINGS.append(("extend", "paper"))
SIDES = ["left", "right"]
BF16_TO_FP32 = 1e-3

_USUAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
_SIZED = {**_USUAL, "head_dim": 8}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6}
# Settings, and every layer's window.
FAMILIES: dict[str, tuple[dict[str, Any], list[int | None]]] = {
    "gpt2": ({"n_embd": 32, "n_layer": DEPTH, "n_head": 4, "n_positions": 256}, [None] * DEPTH),
    "llama": (_USUAL, [None] * DEPTH),
    "mistral": ({**_USUAL, "sliding_window": 5}, [5] * DEPTH),
    "qwen2": ({**_USUAL, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}, [None, 6, 6]),
    "qwen3": (_SIZED, [None] * DEPTH),
    "phi3": ({**_USUAL, "original_max_position_embeddings": 256, "sliding_window": 5}, [5] * DEPTH),
    "olmo2": (_USUAL, [None] * DEPTH),
    # A cap this low bends most of the logits, so code that forgets it cannot agree.
    "gemma2": (
        {**_SIZED, **_ALTERNATING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0},
        [6, None, 6],
    ),
    "gemma3_text": ({**_SIZED, **_ALTERNATING, "query_pre_attn_scalar": 8}, [6, None, 6]),
    "gpt_oss": (
        {
            **_SIZED,
            **_ALTERNATING,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        [6, None, 6],
    ),
    "stablelm": (_USUAL, [None] * DEPTH),
    "starcoder2": ({**_USUAL, "sliding_window": 6}, [6] * DEPTH),
    "smollm3": (
        {**_USUAL, "use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1]},
        [None, 5, None],
    ),
    "cohere2": ({**_SIZED, **_ALTERNATING}, [6, None, 6]),
}
BY_HAND = ["gpt2", "llama"]

Deep = Callable[..., str]


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Deep:
    """``deep(name, tokenizer="bos")``: the folder of a family's model of three layers."""
    made: dict[tuple[str, str], str] = {}

    def get(name: str, tokenizer: str = "bos") -> str:
        if (name, tokenizer) not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name, tokenizer] = str(reference_nosink.save(name, FAMILIES[name][0], folder, tokenizer))
        return made[name, tokenizer]

    return get


@lru_cache(maxsize=4)
def double(path: str) -> PreTrainedModel:
    """The model that the oracle runs."""
    return reference.as_double(loaded(path)[0])


@lru_cache(maxsize=512)
def layout(path: str, text: str, copies: int = 1) -> Layout:
    return reference.layout(loaded(path)[1], text, [None] * copies)


@lru_cache(maxsize=8)
def model_of(path: str, method: str = "nosink", side: str = "left", pooling: str = "mean", **options: Any) -> Any:
    """One model for many plans: ``layers`` is set on it again and again."""
    options.setdefault("layers", LayerPlan())
    return st_reba.build(path, method, padding_side=side, pooling=pooling, normalize=False, **options)


def by_hand(path: str, text: str, wanted: Plan, copies: int = 1) -> tuple[Layout, Tensor, Tensor]:
    placed = layout(path, text, copies)
    return placed, *run(double(path), placed.ids, wanted)


def layer_plan(architecture: str, kind: str, k: int, k0: int, **rest: Any) -> LayerPlan:
    return LayerPlan(architecture=architecture, kind=kind, k=k, k0=k0, **rest)  # type: ignore[arg-type]


def together(model: SentenceTransformer, texts: tuple[str, ...] = TEXTS) -> Any:
    return model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True)


def states(model: SentenceTransformer, texts: tuple[str, ...] = TEXTS) -> list[Tensor]:
    """Hidden states of a batch, padding in front still there: a text of T tokens has the last T."""
    return model.encode(list(texts), batch_size=len(texts), output_value="token_embeddings")


def depths(kind: str) -> Iterator[tuple[int, int, int]]:
    """k, k0 and m: every k, every k0 of the kind that has it, and every m where something hides."""
    for k in range(DEPTH + 1):
        if kind.startswith("nosink") and k > 0:
            yield from ((k, 0, m) for m in (1, 2, 5))
        elif kind == "bidirectional":
            yield from ((k, k0, 1) for k0 in range(k + 1))
            yield from ((k, k0, m) for k0 in range(1, k + 1) if k0 in (1, DEPTH) for m in (2, 5))
        else:
            yield k, 0, 1


# ---------------------------------------------------------------------------------------------------------------------
# Kinds × architectures


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("architecture", "variant"), slow_but(READINGS, ("inplace", "paper"), ("inter", "published"), rows=True)
)
@pytest.mark.parametrize("name", slow_but(BY_HAND, "llama"))
def test_kinds(deep: Deep, name: str, architecture: str, variant: str, kind: str) -> None:
    path = deep(name)
    for number, (k, k0, m) in enumerate(depths(kind)):
        wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
        expected = [by_hand(path, text, wanted) for text in TEXTS]
        # Sides in turn, the other way round for the other architecture.
        model = model_of(path, side=SIDES[(number + BY_HAND.index(name)) % 2])
        model[0].layers = layer_plan(architecture, kind, k, k0, m=m, variant=variant)
        vectors, tokens = together(model), states(model)
        for (placed, hidden, _), vector, rows in zip(expected, vectors, tokens, strict=True):
            assert_close(vector, reference.classical(hidden, placed, "mean"))
            assert_close(rows[-len(hidden) :], hidden)
        # Without padding the side says nothing.
        for text, (placed, hidden, _) in zip(TEXTS[:2], expected, strict=False):
            alone = model.encode(text, output_value=None)
            assert_close(alone["sentence_embedding"], reference.classical(hidden, placed, "mean"))
            assert_close(alone["token_embeddings"], hidden)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BY_HAND)
def test_others_without_the_sink(deep: Deep, name: str, kind: str) -> None:
    """The layers that are not converted hide the sink too."""
    path = deep(name)
    for k in range(DEPTH + 1):
        for m in (1, 2, 5):
            wanted = plan(DEPTH, "inplace", kind, k, m=m, others="nosink-forward")
            model = model_of(path)
            model[0].layers = layer_plan("inplace", kind, k, 0, m=m, others="nosink-forward")
            for text, rows in zip(TEXTS, states(model), strict=True):
                hidden = by_hand(path, text, wanted)[1]
                assert_close(rows[-len(hidden) :], hidden)


@pytest.mark.parametrize("reading", [reading for reading in READINGS if reading[0] != "extend"])
@pytest.mark.parametrize("name", BY_HAND)
def test_layer_lists(deep: Deep, name: str, reading: tuple[str, str]) -> None:
    """Explicit layers, counted from the top or the bottom, with gaps between them."""
    architecture, variant = reading
    path = deep(name)
    lists: list[tuple[dict[str, list[int]], tuple[str | None, ...]]] = [
        ({"backward": [0]}, ("backward", None, None)),
        ({"bidirectional": [-3, -1]}, ("bidirectional", None, "bidirectional")),
        ({"nosink-forward": [2], "backward": [-2]}, (None, "backward", "nosink-forward")),
        (
            {"nosink-bidirectional": [1], "backward": [2], "nosink-forward": [0]},
            ("nosink-forward", "nosink-bidirectional", "backward"),
        ),
    ]
    model = model_of(path)
    for layers, converted in lists:
        for m in (0, 2):
            model[0].layers = LayerPlan(architecture=architecture, layers=layers, m=m, variant=variant)  # type: ignore
            for text, rows in zip(TEXTS, states(model), strict=True):
                wanted = Plan(converted, architecture, m=m, variant=variant)  # type: ignore[arg-type]
                hidden = by_hand(path, text, wanted)[1]
                assert_close(rows[-len(hidden) :], hidden)


BIDIRECTIONAL, SINKLESS = "bidirectional", "nosink-bidirectional"
# Setting, k, k0 → the plan that METHODS gives it.
SETTINGS: dict[tuple[str, int | None, int | None], Plan] = {
    ("baseline", None, None): plan(DEPTH),
    **{
        (f"{name}-{short}", k, None): plan(DEPTH, name, kind, k)  # type: ignore[arg-type]
        for name in ALL
        for short, kind in (("back", "backward"), ("bidir", BIDIRECTIONAL))
        for k in (1, 3)
    },
    **{("mask0-for", k, None): plan(DEPTH, kind="nosink-forward", k=k) for k in (1, 3)},
    **{("mask0-bidir", k, None): plan(DEPTH, kind=SINKLESS, k=k) for k in (1, 3)},
    **{("mask0-all", k, None): plan(DEPTH, kind=SINKLESS, k=k, others="nosink-forward") for k in (0, 1, 3)},
    ("mask0&bidir", 2, 1): plan(DEPTH, k=2, k0=1),
    ("MASK0&BIDIR", 3, 2): plan(DEPTH, k=3, k0=2),
    ("mask0-1", 3, None): plan(DEPTH, k=3, k0=1),
    ("mask0-2", 3, None): plan(DEPTH, k=3, k0=2),
    ("mask0-3", 3, None): plan(DEPTH, k=3, k0=3),
    ("mask0-last", 3, 2): plan(DEPTH, k=3, k0=2),
    ("mask0-mid", 3, 2): plan(DEPTH, k=3, k0=1),
    ("mask0-mid", 3, 1): plan(DEPTH, k=3, k0=1),
    ("mask0-mid", 3, 3): plan(DEPTH, k=3, k0=1),
}


@pytest.mark.parametrize(
    ("setting", "k", "k0", "m"),
    [(*given, m) for given in SETTINGS for m in (1, 2) if m == 1 or given[0].startswith("mask0")],
)
def test_settings(deep: Deep, setting: str, k: int | None, k0: int | None, m: int) -> None:
    path = deep("llama")
    given = {name: value for name, value in (("k", k), ("k0", k0)) if value is not None}
    wanted = SETTINGS[setting, k, k0]
    wanted = Plan(wanted.converted, wanted.architecture, wanted.others, m, wanted.variant)
    model = model_of(path)
    model[0].layers = named_plan(setting, m=m, **given)
    for text, rows in zip(TEXTS, states(model), strict=True):
        hidden = by_hand(path, text, wanted)[1]
        assert_close(rows[-len(hidden) :], hidden)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_build_with_a_setting(deep: Deep, pooling: str, side: str) -> None:
    """Content is pooled: the first token is hidden from the layers, and no special token counts in the mean."""
    path = deep("llama", "bos_eos")
    options = {"setting": "mask0&bidir", "k": 2, "k0": 1, "m": 1, "pooling": pooling, "padding_side": side}
    model = st_reba.build(path, "nosink", normalize=False, **options)
    assert model[0].layers == LayerPlan(k=2, k0=1)
    for text, got in zip(TEXTS, together(model), strict=True):
        placed, hidden, _ = by_hand(path, text, plan(DEPTH, k=2, k0=1))
        assert_close(got, reference.classical(hidden, placed, pooling))


# ---------------------------------------------------------------------------------------------------------------------
# Families


PLANS = [
    *((kind, k, 0, 1, "forward") for kind in KINDS[1:] for k in (1, 3)),
    ("nosink-forward", 2, 0, 2, "forward"),
    ("nosink-bidirectional", 3, 0, 5, "forward"),
    ("bidirectional", 3, 1, 2, "forward"),
    ("nosink-bidirectional", 2, 0, 2, "nosink-forward"),
]


@pytest.mark.parametrize("name", slow_but(FAMILIES, "mistral", "gemma2", "gpt_oss"))
def test_families(deep: Deep, name: str) -> None:
    """Sliding windows, caps, sinks and positions of every family, under every kind."""
    path, windows = deep(name), FAMILIES[name][1]
    texts = TEXTS[1:4]
    placed = [layout(path, text) for text in texts]
    model = model_of(path, side="left"), model_of(path, side="right")
    # The oracle's windows are the family's own.
    own = reference.hidden_and_attention(double(path), placed[0].ids)[1]
    assert torch.equal(hooked(double(path), placed[0].ids, plan(DEPTH), windows)[1], own)
    for number, (kind, k, k0, m, others) in enumerate(PLANS):
        wanted = plan(DEPTH, "inplace", kind, k, k0, m=m, others=others)
        sided = model[number % 2]
        sided[0].layers = layer_plan("inplace", kind, k, k0, m=m, others=others)
        for each, vector, rows in zip(placed, together(sided, texts), states(sided, texts), strict=True):
            hidden, _ = hooked(double(path), each.ids, wanted, windows)
            assert_close(vector, reference.classical(hidden, each, "mean"))
            assert_close(rows[-len(hidden) :], hidden)


@pytest.mark.parametrize(("architecture", "variant"), READINGS[1:])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in BY_HAND])
def test_further_passes_of_families(deep: Deep, name: str, architecture: str, variant: str) -> None:
    """Layers that run once more do so with their own window and positions; their attention counts in A_new."""
    path, windows, texts = deep(name), FAMILIES[name][1], TEXTS[2:4]
    nosink, tokens = model_of(path), model_of(path, "reba", repeats=1)
    nosink[0].layers = tokens[0].layers = layer_plan(architecture, "bidirectional", 2, 1, m=2, variant=variant)
    wanted = plan(DEPTH, architecture, "bidirectional", 2, 1, m=2, variant=variant)
    for text, rows, embedded in zip(texts, states(nosink, texts), states(tokens, texts), strict=True):
        placed = layout(path, text)
        hidden, maps = hooked(double(path), placed.ids, wanted, windows)
        assert_close(rows[-len(hidden) :], hidden)
        assert_close(embedded, reba(placed, hidden, maps)["tokens"])


def own_bidirectional(path: str, implementation: str, windowed: bool) -> PreTrainedModel:
    """The model as transformers itself runs it both ways."""
    if "is_causal" not in inspect.getsource(masking_utils.create_causal_mask).replace("is_causal_skip", ""):
        pytest.skip("this release of transformers cannot turn a decoder's causal mask off")
    config = AutoConfig.from_pretrained(path)
    config.is_causal = False
    if windowed:
        # A symmetric window of w sees w tokens on each side there; ours sees w - 1, as the causal one does.
        config.sliding_window -= 1
    return AutoModel.from_pretrained(
        path, config=config, attn_implementation=implementation, dtype=torch.float32
    ).eval()


@pytest.mark.parametrize(
    ("name", "implementation"),
    # Gemma 2 has no sdpa, for its soft cap.
    [*product(["llama", "gpt2", "qwen2", "qwen3", "mistral"], ["sdpa", "eager"]), ("gemma2", "eager")],
)
def test_bidirectional_is_transformers_own(deep: Deep, name: str, implementation: str) -> None:
    path = deep(name)
    windowed = any(FAMILIES[name][1])
    own = own_bidirectional(path, implementation, windowed)
    for side in SIDES:
        model = model_of(path, side=side)
        model[0].layers = LayerPlan(k="all")
        for text, rows in zip(TEXTS, states(model), strict=True):
            ids = torch.tensor([layout(path, text).ids])
            with torch.no_grad():
                hidden = own(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            assert_close(rows[-len(hidden) :], hidden.double())


# ---------------------------------------------------------------------------------------------------------------------
# With Echo and ReBA


@pytest.mark.parametrize(("architecture", "variant"), READINGS)
@pytest.mark.parametrize("name", BY_HAND)
def test_echo(deep: Deep, name: str, architecture: str, variant: str) -> None:
    path, texts = deep(name), TEXTS[:4]
    for kind, k, k0, m in (("backward", 2, 0, 1), ("bidirectional", 2, 1, 2), ("nosink-forward", 3, 0, 1)):
        wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
        expected = [by_hand(path, text, wanted, copies=2) for text in texts]
        for pooling, side in product(("last", "mean"), SIDES):
            model = model_of(path, "echo", side, pooling, repeats=2)
            model[0].layers = layer_plan(architecture, kind, k, k0, m=m, variant=variant)
            for (placed, hidden, _), got in zip(expected, together(model, texts), strict=True):
                assert_close(got, reference.echo(hidden, placed, pooling))


def reba(placed: Layout, hidden: Tensor, maps: Tensor) -> dict[str, Tensor]:
    """A text's vectors: by both poolings, and of its tokens."""
    fused = reference.symmetrized_max(maps)
    vectors = {pooling: reference.reba(hidden, fused, placed, pooling) for pooling in ("last", "mean")}
    return {**vectors, "tokens": reference.reba_tokens(hidden, fused, placed)}


@pytest.mark.parametrize(
    ("architecture", "variant"), slow_but(READINGS, ("inplace", "paper"), ("inter", "published"), rows=True)
)
@pytest.mark.parametrize("name", slow_but(BY_HAND, "gpt2"))
def test_reba(deep: Deep, name: str, architecture: str, variant: str) -> None:
    """Every pass of every layer counts in A_new, above the diagonal as well as below."""
    path, texts = deep(name), TEXTS[:3]
    for kind, k, k0, m in (("backward", 2, 0, 1), ("bidirectional", 2, 1, 1), ("nosink-forward", 1, 0, 2)):
        wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
        expected = [reba(*by_hand(path, text, wanted, copies=2)) for text in texts]
        for pooling, side in product(("last", "mean"), SIDES):
            model = model_of(path, "reba", side, pooling, repeats=2)
            model[0].layers = layer_plan(architecture, kind, k, k0, m=m, variant=variant)
            for vectors, got in zip(expected, together(model, texts), strict=True):
                assert_close(got, vectors[pooling])
            assert_close(model.encode(texts[1]), expected[1][pooling])
            if pooling == "last":
                for vectors, got in zip(expected, states(model, texts), strict=True):
                    assert_close(got, vectors["tokens"])


@pytest.mark.parametrize("kind", ["bidirectional", "nosink-bidirectional"])
@pytest.mark.parametrize("tokenizer", ["bos", "bos_eos"])
def test_published_reba(deep: Deep, tokenizer: str, kind: str) -> None:
    """Rows look both ways there, whatever the layers do, and special tokens count."""
    path = deep("llama", tokenizer)
    for side in SIDES:
        for pooling in ("last", "mean"):
            model = model_of(path, "reba", side, pooling, variant="published")
            model[0].layers = layer_plan("inplace", kind, 2, 0)
            for text, got in zip(TEXTS[:3], together(model, TEXTS[:3]), strict=True):
                _, hidden, maps = by_hand(path, text, plan(DEPTH, "inplace", kind, 2), copies=2)
                published = reference.published_last if pooling == "last" else reference.published_mean
                assert_close(got, published(hidden, reference.symmetrized_max(maps)))


@pytest.mark.parametrize("name", slow_but([name for name in FAMILIES if name not in BY_HAND], "mistral", "gpt_oss"))
def test_reba_of_families(deep: Deep, name: str) -> None:
    path, windows, texts = deep(name), FAMILIES[name][1], TEXTS[2:4]
    for kind, k, k0 in (("backward", 1, 0), ("bidirectional", 3, 1)):
        wanted = plan(DEPTH, "inplace", kind, k, k0)
        expected = []
        for text in texts:
            placed = layout(path, text, 2)
            expected.append(reba(placed, *hooked(double(path), placed.ids, wanted, windows)))
        for pooling in ("last", "mean"):
            model = model_of(path, "reba", "left", pooling, repeats=2)
            model[0].layers = layer_plan("inplace", kind, k, k0)
            for vectors, got in zip(expected, together(model, texts), strict=True):
                assert_close(got, vectors[pooling])
        for vectors, got in zip(expected, states(model, texts), strict=True):
            assert_close(got, vectors["tokens"])


@pytest.mark.parametrize("name", slow_but(["llama", "gemma2", "gpt_oss"], "gpt_oss"))
def test_long_texts_in_blocks(deep: Deep, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that is computed by parts is the same; a short text in the batch is mostly padding."""
    monkeypatch.setattr(blocked, "BLOCK_NUMBERS", 1)
    path, windows = deep(name), FAMILIES[name][1]
    texts = (TEXTS[1] + TEXTS[4], TEXTS[3])
    for kind, k, k0, m in (("backward", 2, 0, 1), ("bidirectional", 3, 2, 2)):
        wanted = plan(DEPTH, "inplace", kind, k, k0, m=m)
        expected = []
        for text in texts:
            placed = layout(path, text, 2)
            expected.append(reba(placed, *hooked(double(path), placed.ids, wanted, windows)))
        assert len(layout(path, texts[0], 2).ids) > 48
        for side, pooling in zip(SIDES, ("last", "mean"), strict=True):
            model = model_of(path, "reba", side, pooling, repeats=2)
            model[0].layers = layer_plan("inplace", kind, k, k0, m=m)
            for vectors, got, rows in zip(expected, together(model, texts), states(model, texts), strict=True):
                assert_close(got, vectors[pooling])
                assert_close(rows, vectors["tokens"])


def test_prompt(deep: Deep) -> None:
    """A prompt's tokens are real ones: the first m are among them, and the mean leaves them out."""
    path = deep("llama", "bos_eos")
    for m in (1, 2, 5):
        for side in SIDES:
            model = model_of(path, side=side)
            model[0].layers = LayerPlan(k=2, k0=1, m=m)
            vectors = model.encode(list(TEXTS), prompt="Query: ", convert_to_tensor=True)
            for text, got in zip(TEXTS, vectors, strict=True):
                placed = reference.layout(loaded(path)[1], text, ["Query: ", None])
                hidden, _ = run(double(path), placed.ids, plan(DEPTH, k=2, k0=1, m=m))
                assert_close(got, reference.classical(hidden, placed, "mean"))


def test_words(deep: Deep) -> None:
    path = deep("llama")
    model = model_of(path)
    model[0].layers = LayerPlan(k=2, k0=1)
    text = "The bank of the river is steep."
    for span in ((4, 8), (16, 21)):
        word = loaded(path)[1](text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        inside = [i for i, (first, last) in enumerate(word) if first < span[1] and last > span[0] and last - first > 0]
        placed, hidden, _ = by_hand(path, text, plan(DEPTH, k=2, k0=1))
        assert_close(st_reba.encode_words(model, [(text, span)])[0], reference.echo_word(hidden, placed, inside))


# ---------------------------------------------------------------------------------------------------------------------
# Edges


UNCONVERTED = [
    "baseline",
    *(f"{name}-{kind}" for name in ALL for kind in ("back", "bidir")),
    "mask0-for",
    "mask0-bidir",
]


@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "gemma2", "gpt_oss"], "gpt_oss"))
def test_nothing_converted_changes_no_bit(deep: Deep, name: str) -> None:
    path = deep(name)
    options: dict[str, Any] = {"normalize": False, "check": False}
    for pooling in ("mean", "last", "cls"):
        classical = st_reba.build(path, "classical", pooling=pooling, **options)
        wanted, wanted_states = together(classical), states(classical)
        by_plan = st_reba.build(path, "nosink", layers=LayerPlan(), pooling=pooling, **options)
        for setting in UNCONVERTED:
            by_plan[0].layers = named_plan(setting, k=None if setting == "baseline" else 0)
            assert torch.equal(together(by_plan), wanted)
        by_setting = st_reba.build(path, "nosink", setting="mask0&bidir", k=0, k0=0, pooling=pooling, **options)
        assert torch.equal(together(by_setting), wanted)
        for model in (by_plan, by_setting):
            assert all(torch.equal(*pair) for pair in zip(states(model), wanted_states, strict=True))
    for method in ("echo", "reba"):
        plain = st_reba.build(path, method, **options)
        model = st_reba.build(path, method, layers=LayerPlan(), **options)
        assert torch.equal(together(model), together(plain))


@pytest.mark.parametrize("architecture", ALL)
def test_plans_leave_no_trace(deep: Deep, architecture: str) -> None:
    model = st_reba.build(deep("llama"), "reba", normalize=False, layers=LayerPlan())
    before = together(model)
    model[0].layers = LayerPlan(architecture=architecture, k=2, k0=1)
    assert not torch.allclose(together(model), before, atol=1e-2)
    model[0].layers = LayerPlan()
    assert torch.equal(together(model), before)


def test_a_plan_that_does_not_fit(deep: Deep) -> None:
    model = st_reba.build(deep("llama"), "nosink", layers=LayerPlan(k=2), normalize=False)
    before = together(model)
    with pytest.raises(ValueError, match=f"{DEPTH + 1}.*{DEPTH}"):
        model[0].layers = LayerPlan(k=DEPTH + 1)
    assert model[0].layers == LayerPlan(k=2)
    assert torch.equal(together(model), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "mistral"], "mistral"))
def test_short_texts(deep: Deep, name: str, kind: str) -> None:
    """One and two tokens, which may all be among the first m; an empty text has one that stands for it."""
    path, windows = deep(name, "plain"), FAMILIES[name][1]
    texts = ("a", "zq", TEXTS[1])
    assert [len(layout(path, text).ids) for text in texts[:2]] == [1, 2]
    # Sides in turn: each meets every m and every architecture.
    for number, (m, architecture) in enumerate(product((1, 2, 5), ALL)):
        model = model_of(path, side=SIDES[(number + number // len(ALL)) % 2])
        model[0].layers = layer_plan(architecture, kind, 2, 0, m=m)
        vectors = together(model, (*texts, ""))
        assert torch.isfinite(vectors).all()
        for text, got in zip((*texts, ""), vectors, strict=True):
            assert_close(got, model.encode(text, convert_to_tensor=True).double())
        if name in BY_HAND or architecture == "inplace":
            wanted = plan(DEPTH, architecture, kind, 2, m=m)
            for text, got in zip(texts, vectors, strict=False):
                placed = layout(path, text)
                if name in BY_HAND:
                    hidden, _ = run(double(path), placed.ids, wanted)
                else:
                    hidden, _ = hooked(double(path), placed.ids, wanted, windows)
                assert_close(got, reference.classical(hidden, placed, "mean"))


@pytest.mark.parametrize("architecture", ALL)
@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "gemma2", "olmo2"], "llama"))
def test_bfloat16(deep: Deep, name: str, architecture: str) -> None:
    path = deep(name)
    converted = LayerPlan(architecture=architecture, k=2, k0=1)
    for method in ("nosink", "reba"):
        exact = st_reba.build(path, method, pooling="mean", layers=converted)
        model = st_reba.build(path, method, pooling="mean", layers=converted, dtype="bfloat16")
        assert model.dtype == torch.bfloat16
        assert (1 - torch.cosine_similarity(together(exact), together(model).float())).max() <= BF16_TO_FP32
