"""A base that the caller has loaded: it shares its weights, and goes on as before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save
from oracle import assert_close
from pipelines import PIPELINES, build, encoded, save_and_load
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


def generate(language_model: Any) -> Any:
    prompt = torch.arange(5, 12)[None]
    tokens = language_model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    return tokens.tolist()


def load_language_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_a_model_that_gives_its_attention_can_be_used(llama: Path) -> None:
    language_model = AutoModel.from_pretrained(
        llama, output_attentions=True, attn_implementation="eager"
    )
    tokenizer = AutoTokenizer.from_pretrained(llama)
    model = build(language_model, "reba", tokenizer=tokenizer)
    assert_close(encoded(model), encoded(build(llama, "reba")).double())
    assert language_model.config.output_attentions


LOADED_CASES = [
    ("llama", "mask0"),
    ("llama", "layer"),
    ("gpt2", "reba mean"),
    ("gpt2", "inter"),
    ("gemma2", "layers"),
]


@pytest.mark.parametrize(("architecture", "pipeline_name"), LOADED_CASES)
def test_a_loaded_model_shares_its_weights(
    architecture: str, pipeline_name: str, tmp_path: Path
) -> None:
    """It gives the vectors of the same model from disk, and goes on generating as before."""
    folder = save(architecture, tmp_path / "base", "bos", causal_lm=True)
    language_model = load_language_model(folder)
    language_model.hf_device_map = {"model": "cpu", "lm_head": "cpu"}  # one device
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens, length_limit = generate(language_model), tokenizer.model_max_length
    options = {"max_seq_length": 60, **PIPELINES[pipeline_name]}
    model: Any = build(language_model.train(), tokenizer=tokenizer, **options)
    language_model.eval()
    assert model[0].base_model == "base"
    assert not model[0].is_base_stored  # its weights may have been changed
    assert_close(encoded(model), encoded(build(folder, **options)).double())
    assert generate(language_model) == tokens
    assert tokenizer.model_max_length == length_limit
    addresses = {parameter.data_ptr() for parameter in language_model.parameters()}
    for parameter in model.parameters():
        assert parameter.data_ptr() in addresses, "a weight was copied"
    assert torch.equal(encoded(save_and_load(model, tmp_path / "saved")), encoded(model))


@pytest.mark.parametrize(("architecture", "pipeline_name"), LOADED_CASES)
def test_a_loaded_model_generates_and_embeds_at_once(
    architecture: str,
    pipeline_name: str,
    tmp_path: Path,
) -> None:
    folder = save(architecture, tmp_path / "base", "bos", causal_lm=True)
    language_model = load_language_model(folder)
    model = build(
        language_model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        max_seq_length=60,
        **PIPELINES[pipeline_name],
    )
    tokens, vectors = generate(language_model), encoded(model).double()
    with ThreadPoolExecutor(4) as pool:
        generations = []
        encodings = []
        for _ in range(6):
            generations.append(pool.submit(generate, language_model))
            encodings.append(pool.submit(encoded, model))
    for generation, encoding in zip(generations, encodings, strict=True):
        assert generation.result() == tokens
        assert_close(encoding.result(), vectors)


def need_pixels(language_model: PreTrainedModel) -> None:
    language_model.forward = lambda input_ids, pixels: None


def lose_quantization(language_model: PreTrainedModel) -> None:
    language_model.config.quantization_config = {"quant_method": 7}


def spread_over_devices(language_model: PreTrainedModel) -> None:
    language_model.hf_device_map = {"layers": 0, "norm": "cpu"}


def put_embeddings_on_disk(language_model: PreTrainedModel) -> None:
    language_model.add_module("positions", torch.nn.Embedding(2, 2, device="meta"))


def hold_an_adapter(language_model: PreTrainedModel) -> None:
    """As PEFT names a weight beside which it keeps its own."""
    adapted_layer = torch.nn.ModuleDict({"base_layer": torch.nn.Linear(2, 2)})
    language_model.add_module("adapted", adapted_layer)


def build_loaded(folder: Path, **options: Any) -> SentenceTransformer:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return build(AutoModel.from_pretrained(folder), **{"tokenizer": tokenizer, **options})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (need_pixels, "needs 'pixels'"),
        (lose_quantization, "its quantization 7"),
        (spread_over_devices, "several devices"),
        (put_embeddings_on_disk, "embeddings on disk"),
        (hold_an_adapter, r"not merged into its weights. Give peft_model.merge_and_unload\(\)"),
    ],
)
def test_loaded_models_that_cannot_be_used_are_refused(
    llama: Path,
    change: Callable[[PreTrainedModel], None],
    problem: str,
) -> None:
    language_model = AutoModel.from_pretrained(llama)
    change(language_model)
    with pytest.raises(ValueError, match=problem):
        build(language_model, tokenizer=AutoTokenizer.from_pretrained(llama))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"device": "meta"}, "the base is on cpu"),
        ({"tokenizer": None}, "needs its tokenizer"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16'"),
    ],
)
def test_options_that_do_not_fit_a_loaded_model_are_refused(
    llama: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        build_loaded(llama, **options)


def test_a_loaded_model_is_one_of_transformers(llama: Path) -> None:
    with pytest.raises(ValueError, match="Linear is neither"):
        build(torch.nn.Linear(2, 2), tokenizer=AutoTokenizer.from_pretrained(llama))
    with pytest.raises(ValueError, match="SentenceTransformer is neither"):
        build(build(llama))
