"""Plans where a program does more than encode: copies, processes, threads, errors, training, and unusual backbones."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, VOCABULARY, _fill, save
from marks import slow_but
from oracle import TEXTS
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor
from transformers import AutoConfig, AutoModel

import st_reba
from st_reba import LayerPlan
from st_reba.modules import DecoderTransformer, attention
from st_reba.modules.state import current

PLANS: dict[str, LayerPlan] = {
    "inplace": LayerPlan(k=3, k0=1),
    "inter": LayerPlan("inter", "backward", k=2),
    "inter published": LayerPlan("inter", k=2, k0=1, variant="published"),
    "extra": LayerPlan("extra", k=2),
    "extra published": LayerPlan("extra", "nosink-forward", k=2, variant="published"),
    "extend": LayerPlan("extend", "nosink-bidirectional", k=2),
}
_USUAL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
_NO_GROUPS = {name: size for name, size in _USUAL.items() if name != "num_key_value_heads"}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_RECURRENT = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
_CHUNKED = {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "attention_chunk_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**_USUAL, **_EXPERTS, "head_dim": 8},
    # Its last hidden state is projected to another size.
    "opt": {**_NO_GROUPS, "ffn_dim": 48, "word_embed_proj_dim": 16},
    "llama4_text": {
        **_USUAL,
        **_CHUNKED,
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "no_rope_layers": [1, 0, 1],
    },
    # Attention and a recurrence side by side in every layer.
    "falcon_h1": {**_USUAL, **_RECURRENT, "head_dim": 8},
    "lfm2": {**_USUAL, "layer_types": ["conv", "full_attention", "full_attention"]},
    "mistral": {**_USUAL, "sliding_window": 100},
    "bert": {**_NO_GROUPS, "pad_token_id": 0},
    "modernbert": {**_NO_GROUPS, "pad_token_id": 0, "local_attention": 8, "cls_token_id": None, "sep_token_id": None},
}

Family = Callable[[str], str]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """``family(name)``: the folder of a family's model of three layers."""
    made: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in made:
            ids: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
            config = AutoConfig.for_model(name, **{"vocab_size": VOCABULARY, **ids, **FAMILIES[name]})
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32)
            if name != "falcon_h1":  # whose recurrence random parameters would blow up
                _fill(model, 0)
            folder = tmp_path_factory.mktemp(name)
            model.save_pretrained(folder)
            tokenizer = TOKENIZERS["bos"]()
            tokenizer.model_max_length = 2048
            tokenizer.save_pretrained(folder)
            made[name] = str(folder)
        return made[name]

    return get


def build(plan: LayerPlan, method: str = "nosink", base: str = "mini", **options: Any) -> SentenceTransformer:
    return st_reba.build(base, method, layers=plan, normalize=False, **options)


def vectors(model: SentenceTransformer, texts: tuple[str, ...] = TEXTS) -> Any:
    return model.encode(list(texts), batch_size=len(texts))


def assert_near(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * float(np.abs(np.asarray(wanted)).max()))


# ---------------------------------------------------------------------------------------------------------------------
# Copies, processes, threads


@pytest.mark.parametrize("name", PLANS)
def test_copies(name: str) -> None:
    """A copy keeps the plan, and a plan that is set on it is its own."""
    model = build(PLANS[name])
    wanted, plain = vectors(model), vectors(build(LayerPlan()))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(vectors(copied), wanted)
        copied[0].layers = None
        assert_near(vectors(copied), plain)
        np.testing.assert_array_equal(vectors(model), wanted)


@pytest.mark.slow
def test_another_process(tmp_path: Path) -> None:
    """As in a pool of processes: one that never named st_reba gets the model pickled."""
    models = {name: build(PLANS[name]) for name in ("inplace", "inter", "extend")}
    (tmp_path / "models").write_bytes(pickle.dumps(models))
    (tmp_path / "texts").write_bytes(pickle.dumps(list(TEXTS)))
    script = (
        "import pathlib, pickle, torch\n"
        "torch.set_num_threads(1)\n"
        "models, texts = (pickle.loads(pathlib.Path(name).read_bytes()) for name in ('models', 'texts'))\n"
        "got = {name: model.encode(texts, batch_size=9) for name, model in models.items()}\n"
        "pathlib.Path('vectors').write_bytes(pickle.dumps(got))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    got = pickle.loads((tmp_path / "vectors").read_bytes())
    for name, model in models.items():
        assert_near(got[name], vectors(model))


def shared(transformer: Transformer, plan: LayerPlan | None) -> SentenceTransformer:
    module = transformer if plan is None else DecoderTransformer.adopt(transformer, layers=plan)
    return SentenceTransformer(modules=[module, Pooling(32, "mean")], device="cpu")


def test_one_backbone(base: Callable[..., str]) -> None:
    """Plans over one backbone do not meet, nor does the plain model, one after another or in threads."""
    transformer = Transformer(base("llama", "cls_sep"))
    plain = shared(transformer, None)
    unconverted = vectors(plain)
    models = [shared(transformer, LayerPlan(each.architecture, each.kind, 2)) for each in PLANS.values()]
    wanted = [vectors(model) for model in models]
    assert_near(vectors(plain), unconverted)
    everything = [*zip(models, wanted, strict=True), (plain, unconverted)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = pool.map(vectors, [model for model, _ in everything * 3])
            for got, (_, expected) in zip(results, everything * 3, strict=True):
                assert_near(got, expected)
    finally:
        sys.setswitchinterval(before)
    assert all(len(layer._forward_hooks) == 1 for layer in transformer.model.layers)


def test_threads() -> None:
    """Several models with plans of their own, captures among them; each from several threads."""
    models = [build(plan, method) for plan in PLANS.values() for method in ("nosink", "reba")]
    wanted = [vectors(model) for model in models]
    with ThreadPoolExecutor(6) as pool:
        for index, got in enumerate(pool.map(vectors, models * 2)):
            assert_near(got, wanted[index % len(models)])


# ---------------------------------------------------------------------------------------------------------------------
# Errors, and plans set again and again


@pytest.mark.parametrize("name", PLANS)
def test_after_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An error in the midst of a pass leaves nothing behind, at whatever layer it comes."""
    model = build(PLANS[name])
    wanted, real = vectors(model), attention.fused_attention
    left = 0

    def fails(*arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("in the midst")
        return real(*arguments, **keywords)

    for whole in (0, 3, 4, 5):
        left = whole
        monkeypatch.setattr(attention, "fused_attention", fails)
        with pytest.raises(RuntimeError, match="in the midst"):
            vectors(model)
        monkeypatch.setattr(attention, "fused_attention", real)
        assert current() is None
        np.testing.assert_array_equal(vectors(model), wanted)


def test_plans_in_turn(tmp_path: Path) -> None:
    """However often plans are set, each gives its own vectors; hooks do not pile up, and nothing of them is saved."""
    model = build(LayerPlan())
    wanted = {None: vectors(model), **{name: vectors(build(plan)) for name, plan in PLANS.items()}}
    for name in (*PLANS, None, *reversed(PLANS), None, "extra", "inplace"):
        model[0].layers = None if name is None else PLANS[name]
        assert_near(vectors(model), wanted[name])
    assert [len(layer._forward_hooks) for layer in model[0].model.layers] == [1] * 6
    model.save_pretrained(str(tmp_path))
    # Plain transformers must be able to load it.
    assert attention.ATTENTION_NAME not in (tmp_path / "config.json").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Number formats and training


@pytest.mark.parametrize("name", slow_but(PLANS, "inter"))
def test_number_formats(name: str) -> None:
    model = build(PLANS[name])
    wanted = torch.from_numpy(vectors(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = [torch.from_numpy(vectors(model))]
    assert_near(model.train()(model.preprocess(list(TEXTS)))["sentence_embedding"].detach(), wanted)
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(model).to(dtype)
        got.append(half.encode(list(TEXTS), convert_to_tensor=True).float())
        alone = torch.stack([half.encode(text, convert_to_tensor=True).float() for text in TEXTS])
        assert (1 - torch.cosine_similarity(got[-1], alone)).max() <= 1e-4
    for each in got:
        assert (1 - torch.cosine_similarity(each, wanted)).max() <= 1e-3


@pytest.mark.parametrize("name", PLANS)
def test_gradients(base: Callable[..., str], name: str) -> None:
    """Gradients flow through every pass: finite differences agree."""
    plan = PLANS[name]
    plan = LayerPlan(plan.architecture, plan.kind, 2, variant=plan.variant)
    model = build(plan, base=base("gpt2")).double()  # which computes nothing in float32 on its own
    inputs = model.preprocess(list(TEXTS[:3]))
    wanted = vectors(model, TEXTS[:3])

    def loss() -> Tensor:
        result: Tensor = model(dict(inputs))["sentence_embedding"].double().sin().sum()
        return result

    assert_near(model(dict(inputs))["sentence_embedding"].detach(), wanted)
    loss().backward()
    generator = torch.Generator().manual_seed(0)
    parameters = list(model.parameters())
    assert all(parameter.grad is not None for parameter in parameters)
    directions = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in parameters]
    slope = sum(float((each.grad * way).sum()) for each, way in zip(parameters, directions, strict=True))
    step, values = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for each, way in zip(parameters, directions, strict=True):
                each.add_(way, alpha=sign * step)
            values.append(float(loss()))
            for each, way in zip(parameters, directions, strict=True):
                each.sub_(way, alpha=sign * step)
    assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Backbones


def states(path: str, plan: LayerPlan) -> Tensor:
    rows = build(plan, base=path).encode(list(TEXTS), output_value="token_embeddings", batch_size=len(TEXTS))
    return torch.cat(rows)


@pytest.mark.parametrize("name", ["qwen3_moe", "opt", "llama4_text", "falcon_h1", "mistral"])
def test_extra_is_the_sum_of_two_models(family: Family, name: str) -> None:
    """EXTRA of all layers is the unconverted model plus the one converted in place: neither stack touches the other."""
    path = family(name)
    converted = states(path, LayerPlan(kind="backward", k="all"))
    wanted = states(path, LayerPlan()) + converted
    assert_near(states(path, LayerPlan("extra", "backward", "all")), wanted)


@pytest.mark.parametrize("method", ["nosink", "reba"])
@pytest.mark.parametrize("name", ["opt", "llama4_text", "lfm2"])
def test_a_text_alone(family: Family, name: str, method: str) -> None:
    """Projected, chunked and hybrid backbones: a vector depends on its text alone there too."""
    for plan in (LayerPlan(k=2, k0=1, m=2), LayerPlan("inter", "backward", 2), LayerPlan("extend", k=1)):
        left, right = (build(plan, method, family(name), padding_side=side) for side in ("left", "right"))
        alone = np.stack([left.encode(text) for text in TEXTS])
        for model in (left, right):
            assert_near(vectors(model), alone)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_encoders(family: Family, name: str) -> None:
    """An encoder whose first token is hidden in every layer: no later token knows of it; padding changes nothing."""
    path = family(name)
    try:
        model = build(LayerPlan(kind="nosink-bidirectional", k="all"), base=path)
    except ValueError as error:
        if name == "modernbert" and "does not call transformers' attention interface" in str(error):
            pytest.skip("this release's ModernBERT does not call the attention interface, and is refused")
        raise
    assert_near(vectors(model), np.stack([model.encode(text) for text in TEXTS]))
    features = model.preprocess([TEXTS[2]])
    other = {**features, "input_ids": features["input_ids"].clone()}
    other["input_ids"][0, 0] = 7
    with torch.inference_mode():
        hidden, changed = (model[0](dict(each))["token_embeddings"][0] for each in (features, other))
    assert not torch.allclose(hidden[0], changed[0], atol=1e-2)
    assert_near(changed[1:], hidden[1:])


@pytest.mark.parametrize("method", ["nosink", "reba"])
def test_long_texts_and_windows(family: Family, method: str) -> None:
    """Hundreds of tokens, many times the window, beside texts of one token and of none."""
    texts = ("的" * 300, "a", "The river runs past the old mill. " * 20, "", "今天")
    for plan in (LayerPlan(k=3, k0=1, m=3), LayerPlan("inter", "backward", 2)):
        left, right = (build(plan, method, family("mistral"), padding_side=side) for side in ("left", "right"))
        alone = np.stack([left.encode(text) for text in texts])
        for model in (left, right):
            assert_near(vectors(model, texts), alone)


def test_no_texts() -> None:
    for plan in PLANS.values():
        assert len(build(plan, check=False).encode([])) == 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_repositories_with_chat_turns_and_prompts(tmp_path: Path, side: str) -> None:
    """A base that wraps texts in chat turns, and one whose pooling leaves the prompt out, keep doing so."""
    for tokenizer, include in (("chat", True), ("bos_eos", False)):
        backend = TOKENIZERS[tokenizer]()
        backend.padding_side = side
        if backend.pad_token is None:
            backend.pad_token = backend.eos_token
        base = save("llama", tmp_path / tokenizer / "base", backend)
        modules = [Transformer(str(base)), Pooling(32, "mean", include_prompt=include)]
        path = str(tmp_path / tokenizer / "repository")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            SentenceTransformer(modules=modules, prompts={"query": "Find: "}, device="cpu").save_pretrained(path)
        plain = SentenceTransformer(path, device="cpu")
        unconverted = st_reba.build(path, "nosink", setting="baseline")
        converted = st_reba.build(path, "nosink", setting="mask0-bidir")
        for text in TEXTS:
            assert_near(unconverted.encode_query(text), plain.encode_query(text))
        assert_near(converted.encode_query(list(TEXTS)), np.stack([converted.encode_query(text) for text in TEXTS]))
        assert np.abs(converted.encode_query(TEXTS[1]) - plain.encode_query(TEXTS[1])).max() > 1e-2
