"""Bases that are loaded in a way of their own give the vectors of their plain twins, or are refused."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import families
import pytest
import torch
import transformers
from architectures import TOKENIZERS, lose, on_the_hub, save
from gguf_writing import gguf_file
from oracle import assert_close
from pipelines import PIPELINES, build, encoded
from sentence_transformers import SentenceTransformer
from tiny import tiny_model
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import st_reba
from st_reba import RepeatTransformer, bases, named_base
from st_reba.modules.selfcheck import is_causal


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with its language-modelling head, as most bases are."""
    return save("llama", tmp_path_factory.mktemp("llama"), "bos", causal_lm=True)


def reloaded(model: SentenceTransformer, folder: Path, **options: Any) -> SentenceTransformer:
    model.save_pretrained(str(folder))
    return SentenceTransformer(str(folder), device="cpu", **options)


def bytes_of(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


def generated(llm: Any) -> Any:
    return llm.generate(torch.arange(5, 12)[None], max_new_tokens=12, do_sample=False, pad_token_id=0).tolist()


LOADED = [("llama", "mask0"), ("llama", "layer"), ("gpt2", "reba mean"), ("gpt2", "inter"), ("gemma2", "layers")]


@pytest.mark.parametrize(("of", "name"), LOADED)
def test_a_loaded_model(of: str, name: str, tmp_path: Path) -> None:
    """It shares its weights, gives the same vectors as from disk, and goes on generating as before, also at once."""
    folder = save(of, tmp_path / "base", "bos", causal_lm=True)
    llm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, limit = generated(llm), tokenizer.model_max_length
    llm.hf_device_map = {"model": "cpu", "lm_head": "cpu"}  # one device
    model: Any = build(llm.train(), tokenizer=tokenizer, max_seq_length=60, **PIPELINES[name])
    llm.eval()
    assert generated(llm) == before and model[0].base_model == "base"
    wanted = build(folder, max_seq_length=60, **PIPELINES[name])
    assert_close(encoded(model), encoded(wanted).double())
    assert generated(llm) == before and tokenizer.model_max_length == limit
    own = {each.data_ptr() for each in llm.parameters()}
    assert all(each.data_ptr() in own for each in model.parameters()), "a weight was copied"
    assert torch.equal(encoded(reloaded(model, tmp_path / "saved")), encoded(model))
    with ThreadPoolExecutor(4) as pool:
        both = [(pool.submit(generated, llm), pool.submit(encoded, model)) for _ in range(6)]
    for tokens, vectors in both:
        assert tokens.result() == before
        assert_close(vectors.result(), encoded(wanted).double())


needs_gguf = pytest.mark.skipif(not hasattr(transformers, "GgufConfig"), reason="no GGUF file is made dense")


@needs_gguf
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0"])
def test_gguf(kind: str, tmp_path: Path) -> None:
    """Dense and in bfloat16: what is computed now is what is saved and loaded then."""
    file = gguf_file(tmp_path, kind)
    model: Any = build(file, pooling="mean")
    wanted = encoded(model)
    assert wanted.isfinite().all() and kind in model[0].base_model and str(tmp_path) not in model[0].base_model
    model[0].tokenizer.save_pretrained(tokenizer := tmp_path / "tokenizer")
    others = [build(tmp_path, pooling="mean", gguf_file=name) for name in (None, file.name)]
    others += [reloaded(model, tmp_path / "saved"), build(file, pooling="mean", tokenizer=tokenizer)]
    for other in others:
        assert torch.equal(encoded(other), wanted)
    assert bytes_of(tmp_path / "saved") < 2.2 * sum(each.numel() for each in model.parameters())
    with pytest.raises(ValueError, match="Drop quantization"):
        build(file, model_kwargs={"quantization_config": {}})


def test_gguf_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another type, or holding less than it says."""
    file = gguf_file(tmp_path, "Q8_0")
    whole = file.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(ImportError):
        patch.setattr(named_base, "transformers", object())
        build(file)
    many = whole[:8] + (1 << 60).to_bytes(8, "little") + whole[16:]  # tensors
    for content in (many, whole[:-5000], whole[:4000], whole[:30]):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="tiny-Q8_0.gguf.*beyond its end"):
            build(file)
    with pytest.raises(ValueError, match=r"Readable: .*Q4_0"):
        build(gguf_file(tmp_path, "Q8_1"))
    with pytest.raises(ValueError, match="several GGUF files"):
        build(tmp_path)
    with pytest.raises(OSError, match="no such file"):
        build(tmp_path / "none.gguf")


@needs_gguf
def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra, module, option in (("gguf", "gguf", "gguf_file"), ("quantized", "bitsandbytes", "quantization")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"st-reba\[{extra}\]"):
            st_reba.build("mini", **{option: "nf4"})


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
@pytest.mark.parametrize("name", ["reba mean", "echo last", "mask0"])
def test_quantized(llama: Path, quantization: str, name: str, tmp_path: Path) -> None:
    """A text alone and in a batch, saved and loaded by sentence-transformers alone."""
    pytest.importorskip("bitsandbytes")
    model: Any = build(llama, quantization=quantization, dtype="float32", **PIPELINES[name])
    config = model[0].model.config.quantization_config
    assert config.load_in_8bit == (quantization == "int8") and config.bnb_4bit_compute_dtype == torch.float32
    together = encoded(model)
    assert_close(encoded(model, alone=True), together.double())
    assert (together - encoded(build(llama, **PIPELINES[name]))).abs().max() > 1e-4, "they were not quantized"
    assert_close(encoded(reloaded(model, tmp_path / "saved")), together.double(), 1e-6)
    for file, part in (("config_sentence_transformers.json", "bitsandbytes"), ("config.json", "quantization_config")):
        assert part in (tmp_path / "saved" / file).read_text(encoding="utf-8")


def adapt(base: Path, folder: Path, **options: Any) -> tuple[Path, Path]:
    """An adapter whose every weight matters, and the same merged into its base by peft."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options})
    kind: Any = AutoModel if config.task_type == "FEATURE_EXTRACTION" else AutoModelForCausalLM
    model = peft.get_peft_model(kind.from_pretrained(base, dtype=torch.float32), config)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * parameter.requires_grad * torch.randn_like(parameter)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "merged")
    return folder / "adapter", folder / "merged"


@pytest.mark.parametrize(
    "options",
    [
        {}, {"use_dora": True}, {"use_rslora": True}, {"bias": "all"}, {"target_modules": "all-linear"},
        *({"modules_to_save": [name]} for name in ("embed_tokens", "input_layernorm", "lm_head")),
        {"task_type": "FEATURE_EXTRACTION"},
    ],
    ids=str,
)  # fmt: skip
def test_adapters(llama: Path, options: dict[str, Any], tmp_path: Path) -> None:
    """As merged by peft, and saved as part of the weights."""
    adapter, merged = adapt(llama, tmp_path, **options)
    model: Any = build(adapter, pooling="mean")
    assert_close(encoded(model), encoded(build(merged, pooling="mean")).double())
    assert torch.equal(encoded(reloaded(model, tmp_path / "saved")), encoded(model))
    assert not (tmp_path / "saved" / "adapter_config.json").exists() and model[0].base_model == "adapter"
    assert all(each.requires_grad for each in model.parameters())


def test_a_revision_of_an_adapter(llama: Path, tmp_path: Path) -> None:
    """The base has none of that name; the tokenizer is the adapter's own."""
    adapter, merged = adapt(llama, tmp_path)
    for folder in (adapter, merged):
        TOKENIZERS["cls_sep"]().save_pretrained(folder)
    shutil.copy(llama / "config.json", adapter)
    on_the_hub(tmp_path, "a/base", llama)
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "a/base"}))
    on_the_hub(tmp_path, "a/adapter", adapter, "v1")
    model: Any = build("a/adapter", revision="v1", cache_folder=str(tmp_path), local_files_only=True)
    assert_close(encoded(model), encoded(build(merged)).double())
    assert (model[0].base_model, model[0].base_revision) == ("a/adapter", "v1")


def test_adapters_that_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for kind, says in (("PROMPT_TUNING", "positions"), ("ADAPTION_PROMPT", "positions"), ("LORA", "names no base")):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
        with pytest.raises(ValueError, match=says):
            build(tmp_path)


# What is done to a loaded model, or the options beside it, by a part of what is said.
LOADED: dict[str, Callable[[Any], Any]] = {
    "its quantization 7": lambda llm: setattr(llm.config, "quantization_config", {"quant_method": 7}),
    "several devices": lambda llm: setattr(llm, "hf_device_map", {"layers": 0, "norm": "cpu"}),
    "embeddings on disk": lambda llm: llm.add_module("positions", torch.nn.Embedding(2, 2, device="meta")),
    "needs 'pixels'": lambda llm: setattr(llm, "forward", lambda input_ids, pixels: None),
    "the base is on cpu": lambda llm: {"device": "meta"},
    "needs its tokenizer": lambda llm: {"tokenizer": None},
    "dtype='bfloat16'": lambda llm: {"dtype": "bfloat16"},
}
# Calls, with the llama's folder and one that is not there.
CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "Linear is neither": lambda base, new: build(torch.nn.Linear(2, 2), tokenizer=AutoTokenizer.from_pretrained(base)),
    "weights are missing": lambda base, new: (
        shutil.copytree(base, new), lose(new / "model.safetensors", "q_proj"), build(new)
    ),
    "no config.json and": lambda base, new: (new.mkdir(), build(new)),
    "is a file": lambda base, new: build(base / "config.json"),
    "could not be loaded": lambda base, new: build(new),
    "'float7'": lambda base, new: build(base, dtype="float7"),
    "'int3'": lambda base, new: build(base, quantization="int3"),
    "an embedder already": lambda base, new: (build(base).save_pretrained(str(new)), build(new)),
    "StaticEmbedding of": lambda base, new: (
        tiny_model().save_pretrained(new), st_reba.build(new, "nosink:setting=mask0-1,k=2")
    ),
    "missing adapter keys": lambda base, new: (
        lose((one := adapt(base, new)[0]) / "adapter_model.safetensors", "lora_B"), build(one)
    ),
    "into quantized": lambda base, new: build(adapt(base, new)[0], quantization="nf4"),
    "mini/a.gguf (GGUF)": lambda base, new: st_reba.build("mini", gguf_file="a.gguf", local_files_only=True),
}  # fmt: skip


@pytest.mark.parametrize("says", [*LOADED, *CALLS])
def test_refusals(llama: Path, says: str, tmp_path: Path) -> None:
    llm, tokenizer = AutoModel.from_pretrained(llama), AutoTokenizer.from_pretrained(llama)
    # An ImportError where an older transformers reads no GGUF files.
    with pytest.raises((ValueError, OSError, ImportError)) as raised:
        if says in LOADED:
            build(llm, **{"tokenizer": tokenizer, **(LOADED[says](llm) or {})})
        else:
            CALLS[says](llama, tmp_path / "new")
    assert says in str(raised.value)
    assert type(raised.value) is OSError or len(str(raised.value).splitlines()) == 1


def test_packed_weights_are_unpacked_once(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a folder of the model's name, with all files beside them; another for other files."""
    monkeypatch.setattr(bases, "cached_assets_path", partial(bases.cached_assets_path, assets_dir=tmp_path))
    monkeypatch.setitem(bases.EMBEDDED, "mini", packed := shutil.copytree(llama, tmp_path / "packed"))
    assert bases.resolve_embedded("mini") == str(packed) and bases.resolve_embedded("other/mini") == "other/mini"
    weights = packed / "model.safetensors"
    (packed / "model.safetensors.xz").write_bytes(lzma.compress(weights.read_bytes()))
    weights.unlink()
    vectors = st_reba.build("mini", "echo").encode("A cat sleeps.")
    assert (vectors == st_reba.build(llama, "echo", tokenizer="mini").encode("A cat sleeps.")).all()
    (place,) = tmp_path.glob("st_reba/*/mini")
    assert {path.name for path in place.iterdir()} == {path.name for path in llama.iterdir()}
    (place / "config.json").write_text("kept")
    assert bases.resolve_embedded("mini") == str(place) and (place / "config.json").read_text() == "kept"
    (packed / "config.json").write_text("new")
    assert (Path(bases.resolve_embedded("mini")) / "config.json").read_text() == "new"
    monkeypatch.setattr(bases, "cached_assets_path", Mock(side_effect=PermissionError("no")))
    with pytest.raises(OSError, match="HF_HOME"):
        st_reba.build("mini")


def test_a_layer_that_looks_both_ways_makes_a_model_that_does(llama: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama)
    assert is_causal(model)
    model.model.layers[1].self_attn.is_causal = False
    assert not is_causal(model)
    # Where no layer says it, it is tried.
    families.save("bert", tmp_path, decoder=False)
    for path, causal in ((llama, True), (tmp_path, False)):
        model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
        for each in model.modules():
            vars(each).pop("is_causal", None)
        assert is_causal(model) is causal


def test_the_number_type_of_the_base(llama: Path, tmp_path: Path) -> None:
    """float32 on a CPU, saved as the base stores it, or as it was asked for."""
    stored = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(llama).to(torch.bfloat16).save_pretrained(stored)
    AutoTokenizer.from_pretrained(llama).save_pretrained(stored)
    assert RepeatTransformer(str(stored)).model.dtype == st_reba.build(stored).dtype == torch.float32
    for number, (dtype, saved) in enumerate([(None, 2), ("float32", 4), (torch.bfloat16, 2), ("auto", 2)]):
        model = build(stored, dtype=dtype)
        again = reloaded(model, tmp_path / str(number), model_kwargs={"dtype": torch.float32})
        if number < 2:
            assert model.dtype == torch.float32 and torch.equal(encoded(again), encoded(model))
        numbers = sum(each.numel() for each in model.parameters())
        assert bytes_of(tmp_path / str(number)) == pytest.approx(saved * numbers, rel=0.05)


@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16", torch.bfloat16])
@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("option", ["model_kwargs", "config_kwargs"])
def test_either_name_of_the_number_type_is_obeyed(
    llama: Path, option: str, name: str, value: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {option: {name: value}}
    model = build(llama, **options)
    assert model.dtype == torch.bfloat16
    model.save_pretrained(str(tmp_path / "saved"))
    assert st_reba.load(tmp_path / "saved", device="cpu", **options).dtype == torch.bfloat16
    assert st_reba.load(tmp_path / "saved", device="cpu").dtype == torch.float32


def test_number_types_that_differ_are_refused(llama: Path) -> None:
    for options in (
        {"dtype": "float16", "model_kwargs": {"torch_dtype": "bfloat16"}},
        {"model_kwargs": {"dtype": "float16", "torch_dtype": "bfloat16"}},
        {"model_kwargs": {"dtype": "float16"}, "config_kwargs": {"torch_dtype": "bfloat16"}},
    ):
        with pytest.raises(ValueError, match=r"torch_dtype.*differ\. Give one"):
            build(llama, **options)
    assert build(llama, dtype=torch.half, model_kwargs={"torch_dtype": "float16"}).dtype == torch.float16
    with pytest.raises(ValueError, match=r"model_kwargs\['torch_dtype'\]='float7' is not known"):
        build(llama, model_kwargs={"torch_dtype": "float7"})


@pytest.mark.parametrize(
    "options",
    [
        {"model_kwargs": 5},
        {"model_kwargs": {"nope": 1}},
        {"model_kwargs": {"quantization_config": 5}},
        {"processor_kwargs": 5},
        {"processor_kwargs": {"model_max_length": "x"}},
        {"config_kwargs": 5},
        {"gguf_file": 5},
        {"revision": 5},
        {"trust_remote_code": "yes"},
        {"truncate_dim": -1},
        {"truncate_dim": "x"},
    ],
    ids=str,
)
def test_an_odd_value_is_refused_in_one_line_that_names_its_option(llama: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))) as raised:
        build(llama, **options)
    assert len(str(raised.value).splitlines()) == 1


def test_no_base_is_refused() -> None:
    with pytest.raises(ValueError, match="base=None"):
        st_reba.build(None)
