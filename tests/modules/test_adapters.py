"""Adapters: as merged by peft, whole or refused, and saved as part of the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from architectures import save
from marks import needs_adapters
from oracle import TEXTS, assert_close, oracle
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForCausalLM, AutoTokenizer
from twins import METHODS, built, lora, reloaded, vectors

import st_reba
from st_reba.modules.adapters import complete_adapter


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with its language-modelling head, as most bases of adapters are."""
    return save("llama", tmp_path_factory.mktemp("llama"), "bos", causal_lm=True)


def adapt(base: Path, folder: Path, config: Any, **options: Any) -> tuple[Path, Path]:
    """An adapter whose every weight matters, and the same merged into its base by peft."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder / "adapter", **options)
    model.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "merged")
    return folder / "adapter", folder / "merged"


@pytest.fixture(scope="module")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return adapt(llama, tmp_path_factory.mktemp("lora"), lora())


@needs_adapters
@pytest.mark.parametrize("method", METHODS)
def test_adapter(adapter: tuple[Path, Path], llama: Path, method: str, tmp_path: Path) -> None:
    """As merged, by every method, saved and loaded; ReBA sees the adapted queries."""
    folder, merged = adapter
    model = built(folder, method)
    got, wanted = vectors(model), vectors(built(merged, method))
    assert_close(got, wanted.double())
    assert (got - vectors(built(llama, method))).abs().max() > 0.1 * got.abs().max()
    if method == "reba":
        for text, vector in zip(TEXTS, got, strict=True):
            placed, hidden, fused = oracle(str(merged), text, (None, None))
            assert_close(vector, reference.reba(hidden, fused, placed, "mean"))
    again = reloaded(model, tmp_path / "saved")
    assert torch.equal(vectors(again), got)
    # The adapter is part of the weights: nothing points at its base, and nobody needs peft.
    assert not (tmp_path / "saved" / "adapter_config.json").exists()
    assert not any(str(llama) in file.read_text() for file in (tmp_path / "saved").rglob("*.json"))
    assert not hasattr(again[0].model, "peft_config")
    assert model[0].base_model == "adapter"


@needs_adapters
def test_an_adapter_of_16_bit_weights_runs_in_float32_too(tmp_path: Path) -> None:
    """As without it: what its base is stored in is not what a CPU runs."""
    peft = pytest.importorskip("peft")
    model = st_reba.build("mini", device="cpu")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert {each.dtype for each in again.parameters()} == {torch.float32}
    assert_close(vectors(again), vectors(model).double())
    # As transformers would leave it that read all but one of its weights.
    with torch.no_grad():
        next(each for name, each in again.named_parameters() if "lora_A" in name).zero_()
    complete_adapter(again[0].model, str(tmp_path / "saved"), {})
    assert_close(vectors(again), vectors(model).double())


@needs_adapters
def test_adapter_with_a_tokenizer_of_its_own(adapter: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter[0], tmp_path / "adapter"))
    AutoTokenizer.from_pretrained(adapter[1]).save_pretrained(folder)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**written, "model_max_length": 50}))
    assert built(folder, "echo").max_seq_length == 50
    assert built(adapter[0], "echo").max_seq_length == 256


@needs_adapters
@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["input_layernorm"]},
        {"modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": "all-linear"},
        {"target_modules": ["embed_tokens", "down_proj"]},
        {"bias": "all"},
        {"use_rslora": True},
    ],
    ids=str,
)
def test_whole_or_refused(llama: Path, options: dict[str, Any], tmp_path: Path) -> None:
    """Some versions of transformers leave weights of an adapter out, and say nothing."""
    folder, merged = adapt(llama, tmp_path, lora(**options))
    try:
        model = built(folder, "reba")
    except ValueError as error:
        assert str(error).startswith("base=") and "merge_and_unload()" in str(error)
        return
    assert_close(vectors(model), vectors(built(merged, "reba")).double())


@needs_adapters
def test_embeddings_stored_beside_an_adapter(llama: Path, tmp_path: Path) -> None:
    """Unchanged ones are the base's; others are taken, or refused."""
    folder, merged = adapt(llama, tmp_path, lora(), save_embedding_layers=True)
    assert_close(vectors(built(folder, "echo")), vectors(built(merged, "echo")).double())
    torch_file = pytest.importorskip("safetensors.torch")
    weights = torch_file.load_file(folder / "adapter_model.safetensors")
    weights["base_model.model.model.embed_tokens.weight"][::2] += 1
    torch_file.save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    twin = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        twin.get_input_embeddings().weight[::2] += 1
    twin.save_pretrained(merged)
    try:
        model = built(folder, "echo")
    except ValueError as error:
        assert "did not load the adapter's" in str(error) and "merge_and_unload()" in str(error)
        return
    assert_close(vectors(model), vectors(built(merged, "echo")).double())


@needs_adapters
@pytest.mark.parametrize("layer", [1, 7])
def test_weights_of_other_layers(adapter: tuple[Path, Path], layer: int, tmp_path: Path) -> None:
    """An adapter of a model of another depth: some of its weights, or all, find no place."""
    torch_file = pytest.importorskip("safetensors.torch")
    folder = Path(shutil.copytree(adapter[0], tmp_path / "adapter"))
    weights = torch_file.load_file(folder / "adapter_model.safetensors")
    moved = {key.replace("layers.0.", f"layers.{layer}."): value for key, value in weights.items()}
    torch_file.save_file(
        moved
        if layer == 7
        else {
            **weights,
            **{
                key.replace("layers.1.", "layers.2."): value + 1 for key, value in weights.items() if "layers.1." in key
            },
        },
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ValueError, match="base='adapter': transformers did not load the adapter's.*merge_and_unload"):
        built(folder, "echo")
