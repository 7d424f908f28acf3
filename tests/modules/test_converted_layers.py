"""Converted layers against the float64 oracle: kinds × architectures × depths × sinks, alone and in a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import pytest
import reference
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from pipelines import DEPTH, FAMILIES, encoded, pipeline, states
from reference import Layout
from reference_nosink import KINDS, Plan, hooked, plan, run
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel, masking_utils

from st_reba import LayerPlan, NoSink
from st_reba.modules import Stage, scores

Deep = Callable[..., str]
READINGS: list[tuple[Any, Any]] = [
    ("inplace", "paper"),
    *((name, variant) for name in ("inter", "extra") for variant in ("paper", "published")),
    ("extend", "paper"),
]
BY_HAND = ["gpt2", "llama"]
OTHERS = [name for name in FAMILIES if name not in BY_HAND]
BF16_TO_FP32 = 1e-3


@lru_cache(maxsize=512)
def layout(path: str, text: str, copies: int = 1) -> Layout:
    return reference.layout(loaded(path)[1], text, [None] * copies)


@lru_cache(maxsize=64)
def shared(path: str, method: str = "nosink", **options: Any) -> Any:
    """One model for many plans; a test sets its own."""
    return pipeline(path, method, [LayerPlan()], **{"pooling": "mean", **options})


def model_of(path: str, stage: Stage, method: str = "nosink", **options: Any) -> Any:
    model = shared(path, method, **options)
    model[0].rebind([stage])
    return model


def by_hand(path: str, text: str, wanted: Plan, copies: int = 1) -> tuple[Layout, Tensor, Tensor]:
    placed = layout(path, text, copies)
    return placed, *run(double(path), placed.ids, wanted)


def by_hooks(name: str, path: str, text: str, wanted: Plan, copies: int = 1) -> tuple[Layout, Tensor, Tensor]:
    placed = layout(path, text, copies)
    return placed, *hooked(double(path), placed.ids, wanted, FAMILIES[name][1])


def reba(placed: Layout, hidden: Tensor, maps: Tensor) -> dict[str, Tensor]:
    """A text's vectors: by both poolings, and of its tokens."""
    fused = reference.symmetrized_max(maps)
    vectors = {pooling: reference.reba(hidden, fused, placed, pooling) for pooling in ("last", "mean")}  # type: ignore[arg-type]
    return {**vectors, "tokens": reference.reba_tokens(hidden, fused, placed)}


def assert_states(model: Any, expected: list[Tensor], texts: tuple[str, ...] = TEXTS) -> None:
    for rows, hidden in zip(states(model, texts), expected, strict=True):
        assert_close(rows, hidden)


def assert_reba(
    path: str, stage: Stage, expected: list[dict[str, Tensor]], texts: tuple[str, ...], **options: Any
) -> None:
    for pooling in ("last", "mean"):
        model = model_of(path, stage, "reba", pooling=pooling, **options)
        for vectors, got in zip(expected, encoded(model, texts), strict=True):
            assert_close(got, vectors[pooling])
    for vectors, got in zip(expected, model.encode(list(texts), output_value="token_embeddings"), strict=True):
        assert_close(got, vectors["tokens"])


def depths(kind: str) -> Iterator[tuple[int, int, int]]:
    """k, k0 and m."""
    if kind.startswith("nosink"):
        yield from ((1, 0, 1), (2, 0, 5), (3, 0, 2))
    elif kind == "bidirectional":
        yield from ((1, 0, 1), (2, 1, 1), (3, 2, 2), (3, 3, 5))
    else:
        yield from ((1, 0, 1), (2, 0, 1), (3, 0, 1))


# Every pair of base and reading, base and kind, reading and kind; the other half is slow.
PAIRS = [
    (BY_HAND[(one + two) % 2], *reading, kind) for one, reading in enumerate(READINGS) for two, kind in enumerate(KINDS)
]
ALL = [(name, *reading, kind) for name in BY_HAND for reading in READINGS for kind in KINDS]


@pytest.mark.parametrize(("name", "architecture", "variant", "kind"), slow_but(ALL, *PAIRS, rows=True))
def test_kinds(deep: Deep, name: str, architecture: Any, variant: Any, kind: Any) -> None:
    path = deep(name)
    for k, k0, m in depths(kind):
        wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
        expected = [by_hand(path, text, wanted)[1] for text in TEXTS]
        model = model_of(path, LayerPlan(architecture, kind, k, k0, m, variant=variant))
        assert_states(model, expected)
        # Without padding there is no mask.
        assert_states(model, expected[1:2], TEXTS[1:2])


@pytest.mark.parametrize("name", BY_HAND)
def test_others_without_the_sink(deep: Deep, name: str) -> None:
    """The layers that are not converted hide the sink too."""
    path = deep(name)
    for kind, (k, m) in product(KINDS, ((0, 1), (1, 5), (2, 2))):
        wanted = plan(DEPTH, "inplace", kind, k, m=m, others="nosink-forward")
        model = model_of(path, LayerPlan("inplace", kind, k, 0, m, "nosink-forward"))
        assert_states(model, [by_hand(path, text, wanted)[1] for text in TEXTS])


@pytest.mark.parametrize("reading", [reading for reading in READINGS if reading[0] != "extend"])
def test_layer_lists(deep: Deep, reading: tuple[Any, Any]) -> None:
    """Explicit layers, counted from the top or the bottom, with gaps between them."""
    path, (architecture, variant) = deep("llama"), reading
    lists: list[tuple[dict[str, list[int]], tuple[str | None, ...]]] = [
        ({"backward": [0]}, ("backward", None, None)),
        ({"bidirectional": [-3, -1]}, ("bidirectional", None, "bidirectional")),
        ({"rerouted": [2], "backward": [-2]}, (None, "backward", "rerouted")),
        (
            {"nosink-bidirectional": [1], "backward": [2], "nosink-forward": [0]},
            ("nosink-forward", "nosink-bidirectional", "backward"),
        ),
    ]
    for (layers, converted), m in product(lists, (0, 2)):
        model = model_of(path, LayerPlan(architecture, layers=layers, m=m, variant=variant))
        wanted = Plan(converted, architecture, m=m, variant=variant)
        assert_states(model, [by_hand(path, text, wanted)[1] for text in TEXTS])


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_setting(deep: Deep, pooling: Any) -> None:
    """Content is pooled: the first token is hidden from the layers, and no special token counts in the mean."""
    path = deep("llama", "bos_eos")
    model = pipeline(path, "nosink", [NoSink("mask0&bidir", k=2, k0=1)], pooling=pooling)
    for text, got in zip(TEXTS, encoded(model), strict=True):
        placed, hidden, _ = by_hand(path, text, plan(DEPTH, k=2, k0=1))
        assert_close(got, reference.classical(hidden, placed, pooling))


PLANS = [
    *((kind, k, 0, 1, "forward") for kind, k in zip(KINDS[1:], (3, 1, 2, 3, 2), strict=True)),
    ("nosink-forward", 2, 0, 2, "forward"),
    ("nosink-bidirectional", 3, 0, 5, "forward"),
    ("bidirectional", 3, 1, 2, "forward"),
    ("backward", 1, 0, 1, "nosink-forward"),
]


@pytest.mark.parametrize("name", slow_but(OTHERS, "mistral", "gemma2", "gpt_oss"))
def test_families(deep: Deep, name: str) -> None:
    """Sliding windows, caps, sinks and positions of every family, under every kind."""
    path, texts = deep(name), TEXTS[1:4]
    # The oracle's windows are the family's own.
    ids = layout(path, texts[0]).ids
    own = reference.hidden_and_attention(double(path), ids)[1]
    assert torch.equal(hooked(double(path), ids, plan(DEPTH), FAMILIES[name][1])[1], own)
    for kind, k, k0, m, others in PLANS:
        wanted = plan(DEPTH, "inplace", kind, k, k0, m=m, others=others)  # type: ignore[arg-type]
        model = model_of(path, LayerPlan("inplace", kind, k, k0, m, others))  # type: ignore[arg-type]
        assert_states(model, [by_hooks(name, path, text, wanted)[1] for text in texts], texts)


@pytest.mark.parametrize("name", slow_but(OTHERS, "mistral", "gemma2", "gpt_oss"))
def test_reba_and_further_passes_of_families(deep: Deep, name: str) -> None:
    """Layers that run once more do so with their own window and positions; their attention counts in A_new."""
    path, texts = deep(name), TEXTS[2:4]
    for architecture, variant in READINGS:
        plans = (
            [("bidirectional", 2, 1, 2)]
            if architecture != "inplace"
            else [("backward", 1, 0, 1), ("bidirectional", 3, 1, 1)]
        )
        for kind, k, k0, m in plans:
            stage = LayerPlan(architecture, kind, k, k0, m, variant=variant)
            wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
            expected = [by_hooks(name, path, text, wanted, 2) for text in texts]
            assert_states(model_of(path, stage, "echo"), [hidden for _, hidden, _ in expected], texts)
            assert_reba(path, stage, [reba(*each) for each in expected], texts)


@pytest.mark.parametrize(
    ("name", "architecture", "variant"),
    slow_but(
        [(name, *reading) for name in BY_HAND for reading in READINGS],
        *((BY_HAND[number % 2], *reading) for number, reading in enumerate(READINGS)),
        rows=True,
    ),
)
def test_reba(deep: Deep, name: str, architecture: Any, variant: Any) -> None:
    """Every pass of every layer counts in A_new, above the diagonal as well as below."""
    path, texts = deep(name), TEXTS[:3]
    for kind, k, k0, m in (
        ("backward", 2, 0, 1),
        ("bidirectional", 2, 1, 1),
        ("nosink-forward", 1, 0, 2),
        ("rerouted", 2, 0, 1),
    ):
        wanted = plan(DEPTH, architecture, kind, k, k0, m=m, variant=variant)
        stage = LayerPlan(architecture, kind, k, k0, m, variant=variant)
        expected = [reba(*by_hand(path, text, wanted, copies=2)) for text in texts]
        assert_reba(path, stage, expected, texts)
        assert_close(model_of(path, stage, "reba", pooling="last").encode(texts[1]), expected[1]["last"])


@pytest.mark.parametrize("kind", ["bidirectional", "nosink-bidirectional"])
@pytest.mark.parametrize("tokenizer", ["bos", "bos_eos"])
def test_published_reba(deep: Deep, tokenizer: str, kind: Any) -> None:
    """Rows look both ways there, whatever the layers do, and special tokens count."""
    path, texts, wanted = deep("llama", tokenizer), TEXTS[:3], plan(DEPTH, "inplace", kind, 2)
    for pooling, published in (("last", reference.published_last), ("mean", reference.published_mean)):
        model = model_of(path, LayerPlan(kind=kind, k=2), "reba", pooling=pooling, variant="published")
        for text, got in zip(texts, encoded(model, texts), strict=True):
            _, hidden, maps = by_hand(path, text, wanted, copies=2)
            assert_close(got, published(hidden, reference.symmetrized_max(maps)))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_long_texts_in_blocks(deep: Deep, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention that is computed by parts is the same; a short text in the batch is mostly padding."""
    monkeypatch.setattr(scores, "BLOCK_NUMBERS", 1)
    path, texts = deep(name), (TEXTS[1] + TEXTS[4], TEXTS[3])
    assert len(layout(path, texts[0], 2).ids) > 48
    for kind, k, k0, m in (("backward", 2, 0, 1), ("bidirectional", 3, 2, 2)):
        wanted = plan(DEPTH, "inplace", kind, k, k0, m=m)  # type: ignore[arg-type]
        expected = [reba(*by_hooks(name, path, text, wanted, 2)) for text in texts]
        assert_reba(path, LayerPlan("inplace", kind, k, k0, m), expected, texts)


def own_bidirectional(path: str, implementation: str, windowed: bool) -> PreTrainedModel:
    """The model as transformers itself runs it both ways."""
    if "is_causal" not in inspect.getsource(masking_utils.create_causal_mask).replace("is_causal_skip", ""):
        pytest.skip("this release of transformers cannot turn a decoder's causal mask off")
    config = AutoConfig.from_pretrained(path)
    config.is_causal = False
    if windowed:
        # A symmetric window of w sees w tokens on each side there; ours sees w - 1, as the causal one does.
        config.sliding_window -= 1
    own: PreTrainedModel = AutoModel.from_pretrained(path, config=config, attn_implementation=implementation)
    return own.float().eval()


# Gemma 2 has no sdpa, for its soft cap.
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "mistral", "gemma2"])
def test_bidirectional_is_transformers_own(deep: Deep, name: str) -> None:
    path = deep(name)
    own = own_bidirectional(path, "eager" if name == "gemma2" else "sdpa", any(FAMILIES[name][1]))
    expected = []
    for text in TEXTS:
        ids = torch.tensor([layout(path, text).ids])
        with torch.no_grad():
            expected.append(own(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].double())
    assert_states(model_of(path, LayerPlan(k="all")), expected)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_prompts_and_ends(deep: Deep, m: int) -> None:
    """A prompt's tokens are real ones: the first m are among them; the last token is the very last, the end token."""
    path = deep("llama", "bos_eos")
    pieces = ["Query: ", None, " again"]
    for stage, wanted in (
        (LayerPlan(k=2, k0=1, m=m), plan(DEPTH, k=2, k0=1, m=m)),
        (LayerPlan(kind="rerouted", k=2), plan(DEPTH, kind="rerouted", k=2)),
    ):
        model = model_of(path, stage, template="{text} again")
        for text, got in zip(TEXTS, encoded(model, prompt="Query: "), strict=True):
            placed = reference.layout(loaded(path)[1], text, pieces)
            assert placed.copy_of[-1] == 0
            assert_close(got, reference.classical(run(double(path), placed.ids, wanted)[0], placed, "mean"))


SHORT = ["gpt2", "llama", "mistral"]


@pytest.mark.parametrize(
    ("name", "kind"),
    slow_but(
        product(SHORT, KINDS),
        *((SHORT[number % 3], kind) for number, kind in enumerate(KINDS)),
        rows=True,
    ),
)
def test_short_texts(deep: Deep, name: str, kind: Any) -> None:
    """One and two tokens, which may all be among the first m; an empty text has one that stands for it."""
    path, texts = deep(name, "plain"), ("a", "zq", TEXTS[1])
    assert [len(layout(path, text).ids) for text in texts[:2]] == [1, 2]
    for m, architecture in ((1, "extra"), (2, "inplace"), (5, "inplace"), (2, "inter"), (5, "extend")):
        model = model_of(path, LayerPlan(architecture, kind, 2, m=m))  # type: ignore[arg-type]
        vectors = encoded(model, (*texts, ""))
        for one, got in zip(encoded(model, (*texts, ""), alone=True), vectors, strict=True):
            assert_close(got, one.double())
        wanted = plan(DEPTH, architecture, kind, 2, m=m)  # type: ignore[arg-type]
        oracle: Callable[..., Any] = by_hand if name in BY_HAND else partial(by_hooks, name)
        assert_states(model, [oracle(path, text, wanted)[1] for text in texts], texts)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_oss"])
def test_nothing_converted_changes_no_bit(deep: Deep, name: str) -> None:
    path = deep(name)
    stages = [LayerPlan(), NoSink(), NoSink("mask0&bidir", k=0, k0=0), NoSink("mask0-for", k=0)]
    stages += [
        NoSink(f"{each}-{kind}", k=0) for each in ("inplace", "inter", "extra", "extend") for kind in ("back", "bidir")
    ]  # type: ignore[arg-type]
    for pooling, some in (("mean", stages), ("cls", stages[:3])):
        wanted = encoded(pipeline(path, "classical", pooling=pooling))
        for stage in some:
            assert torch.equal(encoded(pipeline(path, "nosink", [stage], pooling=pooling)), wanted)
    for method in ("echo", "reba"):
        assert torch.equal(encoded(pipeline(path, method, stages[:1])), encoded(pipeline(path, method)))


@pytest.mark.parametrize("architecture", ["inplace", "inter", "extra", "extend"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_bfloat16(deep: Deep, name: str, architecture: Any) -> None:
    path, converted = deep(name), LayerPlan(architecture, k=2, k0=1)
    for method in ("nosink", "reba"):
        exact = encoded(model_of(path, converted, method))
        model = model_of(path, converted, method, dtype="bfloat16")
        assert model.dtype == torch.bfloat16
        assert (1 - torch.cosine_similarity(exact, encoded(model).float())).max() <= BF16_TO_FP32
