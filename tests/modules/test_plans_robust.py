"""Plans where a program does more than encode: copies, processes, errors, number formats, and unusual backbones."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import TOKENIZERS, VOCABULARY, _fill, save
from oracle import TEXTS
from pipelines import SIZES, encoded, features_of, pipeline
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor
from transformers import AutoConfig, AutoModel

import st_reba
from st_reba import LayerPlan, NoSink, Prepend, ReadLayers
from st_reba.modules import capture
from st_reba.modules.stages import current

STAGES: dict[str, list[Any]] = {
    "inplace": [LayerPlan(k=2, k0=1)],
    "inter": [LayerPlan("inter", "backward", k=2)],
    "inter published": [LayerPlan("inter", k=2, k0=1, variant="published")],
    "extra": [LayerPlan("extra", k=2)],
    "extra published": [LayerPlan("extra", "nosink-forward", k=2, variant="published")],
    "extend": [LayerPlan("extend", "nosink-bidirectional", k=2)],
    "read": [LayerPlan(k=1), ReadLayers((1, 2))],
    "prepend": [Prepend(1)],
}
_NO_GROUPS = {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_RECURRENT = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
_CHUNKED = {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "attention_chunk_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**SIZES, **_EXPERTS, "head_dim": 8},
    # Its last hidden state is projected to another size.
    "opt": {**_NO_GROUPS, "ffn_dim": 48, "word_embed_proj_dim": 16},
    "llama4_text": {
        **SIZES,
        **_CHUNKED,
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "no_rope_layers": [1, 0, 1],
    },
    # Attention and a recurrence side by side in every layer.
    "falcon_h1": {**SIZES, **_RECURRENT, "head_dim": 8},
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention", "full_attention"]},
    "mistral": {**SIZES, "sliding_window": 100},
    "bert": {**_NO_GROUPS, "pad_token_id": 0},
    "modernbert": {**_NO_GROUPS, "pad_token_id": 0, "local_attention": 8, "cls_token_id": None, "sep_token_id": None},
}

Family = Callable[[str], str]
Deep = Callable[..., str]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """``family(name)``: the folder of a family's model of three layers."""
    made: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in made:
            ids: dict[str, Any] = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
            sizes = {"vocab_size": VOCABULARY, **ids, **FAMILIES[name], "max_position_embeddings": 2048}
            config = AutoConfig.for_model(name, **sizes)
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


def build(path: str, plan: LayerPlan, method: str = "nosink") -> SentenceTransformer:
    return pipeline(path, method, [plan], width=16 if "opt" in Path(path).name else None)


def assert_near(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * float(np.abs(np.asarray(wanted)).max()))


# Copies, processes, errors


@pytest.mark.parametrize("name", STAGES)
def test_copies(deep: Deep, name: str) -> None:
    """A copy keeps the stages, and those that are set on it are its own."""
    path = deep("llama", "bos_eos")
    model = pipeline(path, "echo", STAGES[name])
    wanted, plain = encoded(model), encoded(pipeline(path, "echo"))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(encoded(copied), wanted)
        copied[0].rebind([])
        assert_near(encoded(copied), plain)
        assert torch.equal(encoded(model), wanted)


@pytest.mark.slow
def test_another_process(deep: Deep, tmp_path: Path) -> None:
    """As in a pool of processes: one that never named st_reba gets the model pickled."""
    models = {name: pipeline(deep("llama", "bos_eos"), "reba", stages) for name, stages in STAGES.items()}
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
        assert_near(got[name], encoded(model))


@pytest.mark.parametrize("name", STAGES)
def test_after_an_error(deep: Deep, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An error in the midst of a pass leaves nothing behind, at whatever layer it comes."""
    model: Any = pipeline(deep("llama", "bos_eos"), "reba", STAGES[name])
    wanted, real = encoded(model), capture.attention_with_totals
    left = 0

    def fails(*arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("in the midst")
        return real(*arguments, **keywords)

    for _ in range(2):
        monkeypatch.setattr(capture, "attention_with_totals", fails)
        with pytest.raises(RuntimeError, match="in the midst"):
            encoded(model)
        monkeypatch.setattr(capture, "attention_with_totals", real)
        assert current() is None
        assert torch.equal(encoded(model), wanted)


@pytest.mark.parametrize("name", STAGES)
def test_number_formats(deep: Deep, name: str) -> None:
    model: Any = pipeline(deep("llama", "bos_eos"), "echo", STAGES[name], pooling="mean")
    wanted = encoded(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = [encoded(model).float()]
    assert_near(model.train()(features_of(model, TEXTS))["sentence_embedding"].detach(), wanted)
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(model).eval().to(dtype)
        got.append(encoded(half).float())
        assert (1 - torch.cosine_similarity(got[-1], encoded(half, alone=True).float())).max() <= 1e-3
    for each in got:
        assert (1 - torch.cosine_similarity(each, wanted)).max() <= 3e-3


# Backbones


def states(path: str, plan: LayerPlan) -> Tensor:
    return torch.cat(build(path, plan).encode(list(TEXTS), output_value="token_embeddings", batch_size=len(TEXTS)))


@pytest.mark.parametrize("name", ["qwen3_moe", "opt", "llama4_text", "falcon_h1", "mistral"])
def test_extra_is_the_sum_of_two_models(family: Family, name: str) -> None:
    """EXTRA of all layers is the unconverted model plus the one converted in place: neither stack touches the other."""
    path = family(name)
    wanted = states(path, LayerPlan()) + states(path, LayerPlan(kind="backward", k="all"))
    assert_near(states(path, LayerPlan("extra", "backward", "all")), wanted)


LONG = ("的" * 300, "a", "The river runs past the old mill. " * 20, "", "今天")


@pytest.mark.parametrize("method", ["nosink", "reba"])
@pytest.mark.parametrize(
    ("name", "texts"), [("opt", TEXTS), ("llama4_text", TEXTS), ("lfm2", TEXTS), ("mistral", LONG)]
)
def test_a_text_alone(family: Family, name: str, texts: tuple[str, ...], method: str) -> None:
    """Projected, chunked, hybrid and windowed backbones: a vector depends on its text alone there too."""
    for plan in (LayerPlan(k=2, k0=1, m=2), LayerPlan("inter", "backward", 2), LayerPlan("extend", k=1)):
        model = build(family(name), plan, method)
        assert_near(encoded(model, texts), encoded(model, texts, alone=True))


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_encoders(family: Family, name: str) -> None:
    """An encoder whose first token is hidden in every layer: no later token knows of it; padding changes nothing."""
    path = family(name)
    try:
        model: Any = build(path, LayerPlan(kind="nosink-bidirectional", k="all"))
    except ValueError as error:
        if name == "modernbert" and "does not call transformers' attention interface" in str(error):
            pytest.skip("this release's ModernBERT does not call the attention interface, and is refused")
        raise
    assert_near(encoded(model), encoded(model, alone=True))
    features = features_of(model, [TEXTS[2]])
    other = {**features, "input_ids": features["input_ids"].clone()}
    other["input_ids"][0, 0] = 7
    with torch.inference_mode():
        hidden, changed = (model[0](each)["token_embeddings"][0] for each in (features, other))
    assert not torch.allclose(hidden[0], changed[0], atol=1e-2)
    assert_near(changed[1:], hidden[1:])
    with pytest.raises(ValueError, match="looks both ways already.*k='all'"):
        build(path, LayerPlan(k=1))


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
        unconverted = st_reba.build(path, "nosink", stages=[NoSink()], device="cpu")
        converted = st_reba.build(path, "nosink", stages=[NoSink("mask0-bidir", k=2)], device="cpu")
        for text in TEXTS:
            assert_near(unconverted.encode_query(text), plain.encode_query(text))
        assert_near(converted.encode_query(list(TEXTS)), np.stack([converted.encode_query(text) for text in TEXTS]))
        assert np.abs(converted.encode_query(TEXTS[1]) - plain.encode_query(TEXTS[1])).max() > 1e-2
