"""Bases that transformers loads in a way of its own: adapters, quantized weights, device maps, compiled models.

Each gives the vectors of its plain twin, or is refused; nothing is left out in silence.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from architectures import save
from oracle import TEXTS, assert_close
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
from twins import METHODS, built, lora, reloaded, vectors

from st_reba import LayerPlan, bases


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with its language-modelling head, as most bases of adapters are."""
    return save("llama", tmp_path_factory.mktemp("llama"), "bos", causal_lm=True)


# ---------------------------------------------------------------------------------------------------------------------
# Adapters


@pytest.mark.parametrize("kind", ["PrefixTuningConfig", "PromptTuningConfig"])
def test_learned_prompts(llama: Path, kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    config = getattr(peft, kind)(num_virtual_tokens=4, task_type="CAUSAL_LM")
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    for method in METHODS:
        with pytest.raises(ValueError, match="base='adapter' is an adapter of type PR.*Use its base model"):
            built(tmp_path / "adapter", method)


def test_adapter_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora(base_model_name_or_path=str(tmp_path / "gone")).save_pretrained(tmp_path / "adapter")
    with pytest.raises(OSError, match="adapter' adapts '.*gone', which could not be loaded"):
        built(tmp_path / "adapter", "echo")
    lora().save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="names no base_model_name_or_path. Add it"):
        built(tmp_path / "adapter", "echo")


def test_without_peft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bases, "is_peft_available", lambda: False)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/model"}))
    with pytest.raises(ImportError, match="is a PEFT adapter of 'org/model', and peft is missing: pip install"):
        built(tmp_path, "echo")


# ---------------------------------------------------------------------------------------------------------------------
# Quantized weights


def quantized(base: Path, folder: Path, **configuration: Any) -> Path:
    """The base, its config.json claiming a quantization."""
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": configuration}))
    return folder


def test_unknown_quantization(llama: Path, tmp_path: Path) -> None:
    """transformers would load such weights as if they were not quantized."""
    folder = quantized(llama, tmp_path / "base", quant_method="seven-bit")
    for method in METHODS:
        with pytest.raises(ValueError, match="base='base'.*quantization 'seven-bit'.*Use a newer version"):
            built(folder, method)


@pytest.mark.parametrize(
    ("package", "configuration"),
    [
        ("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("gptqmodel", {"quant_method": "gptq", "bits": 4}),
        ("compressed_tensors", {"quant_method": "compressed-tensors"}),
        ("torchao", {"quant_method": "torchao", "quant_type": "int8_weight_only"}),
    ],
)
def test_missing_package(llama: Path, package: str, configuration: dict[str, Any], tmp_path: Path) -> None:
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    folder = quantized(llama, tmp_path / "base", **configuration)
    # Some need others first: the error names the one to install next.
    with pytest.raises((ImportError, ValueError), match="pip install|No module named|requires"):
        built(folder, "reba")


def dequantized(model: Any, base: Path, folder: Path) -> Path:
    """The plain model of a quantized one's weights."""
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            twin = plain.base_model.get_parameter(name)
            twin.copy_(parameter.dequantize() if hasattr(parameter, "dequantize") else parameter)
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def test_torchao(llama: Path, tmp_path: Path) -> None:
    """Weights of 8 bits, float32 else: as the plain model of the same rounded weights."""
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    options = {"model_kwargs": {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())}}
    twin = None
    for method in METHODS:
        model = built(llama, method, **options)
        twin = twin or dequantized(model[0].model, llama, tmp_path / "twin")
        got = vectors(model)
        assert_close(got, vectors(built(twin, method)).double())
        assert (got - vectors(built(llama, method))).abs().max() > 1e-3 * got.abs().max()
        assert torch.equal(vectors(reloaded(model, tmp_path / method)), got)


def test_bitsandbytes(llama: Path, tmp_path: Path) -> None:
    """Weights of 8 bits, against transformers' own model of the same."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    from transformers import BitsAndBytesConfig

    with pytest.raises(ValueError, match="llm_int8_threshold=6.0, large numbers of one text.*Set llm_int8_threshold=0"):
        built(llama, "echo", model_kwargs={"quantization_config": BitsAndBytesConfig(load_in_8bit=True)})
    options = {"quantization_config": BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)}
    twin = AutoModel.from_pretrained(llama, attn_implementation="eager", dtype=torch.float32, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(llama)
    for method in ("echo", "reba"):
        model = built(llama, method, model_kwargs=options)
        for text, got in zip(TEXTS, vectors(model), strict=True):
            placed = reference.layout(tokenizer, text, [None, None])
            with torch.no_grad():
                output = twin(input_ids=torch.tensor([placed.ids]), output_attentions=True)
            hidden = output.last_hidden_state[0].double()
            fused = reference.symmetrized_max(torch.stack([matrix[0] for matrix in output.attentions]))
            wanted = {"echo": reference.echo(hidden, placed), "reba": reference.reba(hidden, fused, placed, "mean")}
            assert_close(got, wanted[method])
        assert torch.equal(vectors(reloaded(model, tmp_path / method)), vectors(model))
    for method in ("inplace", "inter"):
        model = built(llama, method, model_kwargs=options)
        assert torch.equal(vectors(reloaded(model, tmp_path / method)), vectors(model))


# ---------------------------------------------------------------------------------------------------------------------
# Device maps


_LAYER_ON_DISK = {"embed_tokens": "cpu", "layers.0": "cpu", "layers.1": "disk", "norm": "cpu", "rotary_emb": "cpu"}


@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}, _LAYER_ON_DISK], ids=["auto", "cpu", "disk"])
def test_device_map(llama: Path, device_map: Any, tmp_path: Path) -> None:
    """Weights that come from disk when their layer runs come for its second pass too."""
    pytest.importorskip("accelerate")
    for method in METHODS:
        options = {"device_map": device_map, "offload_folder": str(tmp_path / "offloaded")}
        if device_map is _LAYER_ON_DISK and not hasattr(SentenceTransformer, "_accelerate_placement_hook"):
            with pytest.raises(ValueError, match="base=.*some layers are on disk.*Use version 6.2 or newer"):
                built(llama, method, model_kwargs=options)
            continue
        model = built(llama, method, model_kwargs=options)
        on_disk = any(parameter.is_meta for parameter in model[0].model.parameters())
        assert on_disk == (device_map is _LAYER_ON_DISK)
        wanted = vectors(built(llama, method))
        assert_close(vectors(model), wanted.double())
        assert_close(vectors(reloaded(model, tmp_path / method)), wanted.double())


def test_embeddings_on_disk(llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    options = {"device_map": {"": "disk"}, "offload_folder": str(tmp_path)}
    for method in METHODS:
        with pytest.raises(ValueError, match="by its device_map the embeddings stay on disk.*Map them to a device"):
            built(llama, method, model_kwargs=options)


def test_device_map_without_accelerate(llama: Path) -> None:
    if find_spec("accelerate"):
        pytest.skip("accelerate is installed")
    with pytest.raises((ImportError, ValueError), match="accelerate"):
        built(llama, "echo", model_kwargs={"device_map": "auto"})


# ---------------------------------------------------------------------------------------------------------------------
# Compiled models


@pytest.mark.slow
@pytest.mark.parametrize("method", ["echo", "reba", "inter"])
def test_compiled(llama: Path, method: str, tmp_path: Path) -> None:
    """Traced, the layers still obey their plan, a later one too, and show their attention."""
    texts = list(TEXTS[1:3])
    plain, model = built(llama, method), built(llama, method)
    wanted = plain.encode(texts, convert_to_tensor=True)
    torch._dynamo.reset()
    model[0].model = torch.compile(model[0].model, backend="eager")
    assert_close(model.encode(texts, convert_to_tensor=True), wanted.double())
    assert torch.equal(reloaded(model, tmp_path).encode(texts, convert_to_tensor=True), wanted)
    if method == "echo":
        for each in (plain, model):
            each[0].rebind([LayerPlan(kind="backward", k=2)])
        changed = plain.encode(texts, convert_to_tensor=True)
        assert (changed - wanted).abs().max() > 0.1 * wanted.abs().max()
        assert_close(model.encode(texts, convert_to_tensor=True), changed.double())
    torch._dynamo.reset()
