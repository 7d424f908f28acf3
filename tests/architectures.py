"""Tiny random decoders of many architectures, and tokenizers of many conventions, made here rather than downloaded."""

from __future__ import annotations

import functools
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

VOCABULARY = 512
POSITIONS = 256

# Every family names the same few sizes in its own way.
_FALCON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}
_GROUPS: dict[str, Any] = {
    **_FALCON,
    "intermediate_size": 48,
    "num_key_value_heads": 2,
}
_WINDOWS: dict[str, Any] = {
    **_GROUPS,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "head_dim": 8,
    "sliding_window": 6,
}
_GEMMA = {**_WINDOWS, "query_pre_attn_scalar": 8}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# The most positions of Phi-3 with its short rotary factors.
SHORT_POSITIONS = 40
_LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": SHORT_POSITIONS,
    "rope_theta": 10000.0,
}
# Name: model type and settings. All families but falcon_alibi and deep go by their model type.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "gpt2",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS},
    ),
    "llama": ("llama", {**_GROUPS, "num_hidden_layers": 3}),
    # As deep as mini, at a hundredth of the work.
    "deep": ("llama", {**_GROUPS, "num_hidden_layers": 6}),
    "mistral": ("mistral", {**_GROUPS, "sliding_window": 5}),
    "qwen3": ("qwen3", {**_GROUPS, "head_dim": 8}),
    # A cap this low bends most of the logits, so code that forgets it cannot agree.
    "gemma2": ("gemma2", {**_GEMMA, "attn_logit_softcapping": 3.0}),
    "gemma3_text": ("gemma3_text", _GEMMA),
    "gpt_oss": (
        "gpt_oss",
        {
            **_WINDOWS,
            "rope_parameters": ROPE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "falcon_alibi": (
        "falcon",
        {
            **_FALCON,
            "multi_query": False,
            "new_decoder_architecture": False,
            "alibi": True,
        },
    ),
    "phi3": (
        "phi3",
        {
            **_GROUPS,
            "rope_parameters": _LONG_ROPE,
            "original_max_position_embeddings": SHORT_POSITIONS,
        },
    ),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
}
# Windows (a key is visible where query - key < window), and the layers that have them.
_OUTER_LAYERS = (6, (0, 2))
SLIDING = {
    "mistral": (5, (0, 1)),
    "gemma2": _OUTER_LAYERS,
    "gpt_oss": _OUTER_LAYERS,
    "gemma3_text": _OUTER_LAYERS,
}


def random_model(config: Any, seed: int) -> PreTrainedModel:
    """A model of a configuration: body without head, float32, eager attention, the same values on every call.

    They are far larger than a fresh model's: with those the attention is almost uniform, and a
    wrong layer, head, row or factor would hardly change a number.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of weights that are only added to
        model: PreTrainedModel = AutoModel.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        )
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data.copy_(_random_weight(model.config.model_type, name, weight, noise))
    return model.eval()


def _random_weight(model_type: str, name: str, weight: Tensor, noise: Tensor) -> Tensor:
    if name.endswith("sinks"):
        return noise + 1.0
    if re.search("[qk]_(layer)?norm", name):
        # Queries and keys are normalized after their projection, whose size is lost. A weight of 0
        # is added to 1.
        is_added_to_one = not weight.any() or "gemma" in model_type
        return (0.7 if is_added_to_one else 1.7) + 0.2 * noise
    if weight.ndim == 1 or name.endswith("bias"):
        # Norm weights keep their 1 (or 0), biases their 0.
        return weight + 0.2 * noise
    if re.search("emb|wte|wpe", name):
        return noise
    # The smaller side: most matrices are square or grow, and fused query-key-value ones do too.
    # Experts multiply their two halves: as large, they would blow up float32's rounding beyond all
    # comparison.
    scale = 0.5 if re.search("expert|router", name) else 1.6
    return noise * scale * min(weight.shape[-2:]) ** -0.5


def save(
    name: str,
    folder: str | Path,
    tokenizer: str | PreTrainedTokenizerFast,
    *,
    causal_lm: bool = False,
) -> Path:
    """Write a model, with a language-modelling head as most checkpoints or without, and a tokenizer."""
    model_type, settings = MODELS[name]
    config = AutoConfig.for_model(
        model_type,
        vocab_size=VOCABULARY,
        # The default ids of special tokens lie beyond this small vocabulary.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        **settings,
    )
    model = random_model(config, zlib.crc32(name.encode()))
    if causal_lm:
        with torch.random.fork_rng(devices=[]):
            language_model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        language_model.base_model.load_state_dict(model.state_dict())
        model = language_model
    model.save_pretrained(folder)
    if isinstance(tokenizer, str):
        tokenizer = TOKENIZERS[tokenizer]()
    tokenizer.save_pretrained(folder)
    return Path(folder)


def save_adapter(
    base_folder: Path,
    folder: Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    save_embeddings: bool | str = "auto",
    **options: Any,
) -> tuple[Path, Path]:
    """Write an adapter whose every weight matters, and the same merged into its base by peft.

    Args:
        base_folder: The base.
        folder: Gets a folder of each.
        tokenizer: One with more tokens than the base, which is lengthened for it. It is saved with
            both. None: the base's own is saved with the merged model.
        save_embeddings: peft's ``save_embedding_layers``.
        **options: peft's ``LoraConfig``.
    """
    peft = pytest.importorskip("peft")
    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(**(settings | options))
    is_headless = config.task_type == "FEATURE_EXTRACTION"
    model_class: Any = AutoModel if is_headless else AutoModelForCausalLM
    base_model = model_class.from_pretrained(base_folder, dtype=torch.float32)
    adapter_folder, merged_folder = folder / "adapter", folder / "merged"
    if tokenizer is None:
        AutoTokenizer.from_pretrained(base_folder).save_pretrained(merged_folder)
    else:
        row_count = max(tokenizer.get_vocab().values()) + 1
        assert row_count > len(base_model.get_input_embeddings().weight)
        base_model.resize_token_embeddings(row_count, mean_resizing=False)
        tokenizer.save_pretrained(adapter_folder)
        tokenizer.save_pretrained(merged_folder)
    model = peft.get_peft_model(base_model, config)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * parameter.requires_grad * torch.randn_like(parameter)
    model.save_pretrained(adapter_folder, save_embedding_layers=save_embeddings)
    model.merge_and_unload().save_pretrained(merged_folder)
    return adapter_folder, merged_folder


def lose(weight_file: Path, name_part: str) -> None:
    """Take a weight with this part of a name out of a file."""
    weights = load_file(weight_file)
    matching_names = [name for name in weights if name_part in name]
    del weights[matching_names[0]]
    save_file(weights, weight_file, {"format": "pt"})


def on_the_hub(cache: Path, repo_id: str, folder: Path, revision: str = "main") -> Path:
    """A folder by a Hub id, as huggingface_hub's cache holds it: every file is a link."""
    commit = "0" * 40
    repo_folder = cache / f"models--{repo_id.replace('/', '--')}"
    (repo_folder / "refs").mkdir(parents=True)
    (repo_folder / "refs" / revision).write_text(commit)
    snapshot = repo_folder / "snapshots" / commit
    return Path(shutil.copytree(folder, snapshot, copy_function=os.symlink))


_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@functools.cache
def _trained_tokenizer() -> str:
    """A byte-level BPE that leaves room in the vocabulary for special tokens, as JSON."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - 8,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text_file = Path(__file__).parent / "data" / "lines.txt"
    lines = text_file.read_text(encoding="utf-8").splitlines()
    tokenizer.train_from_iterator(lines, trainer)
    return str(tokenizer.to_str())


def _make_tokenizer(
    template: str | None,
    chat_template: str | None = None,
    **special_tokens: str,
) -> PreTrainedTokenizerFast:
    """A tokenizer with these special tokens, placed as in the template ("[CLS] $A [SEP]")."""
    backend = Tokenizer.from_str(_trained_tokenizer())
    token_names = set(special_tokens.values())
    backend.add_special_tokens(sorted(token_names))
    if template is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=template,
            special_tokens=[(token, backend.token_to_id(token)) for token in token_names],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=chat_template,
        **special_tokens,
    )


_SENTENCE_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "plain": functools.partial(_make_tokenizer, None, eos_token="<|endoftext|>"),
    "bos": functools.partial(_make_tokenizer, "<s> $A", **_SENTENCE_TOKENS),
    "bos_eos": functools.partial(_make_tokenizer, "<s> $A </s>", **_SENTENCE_TOKENS),
    "cls_sep": functools.partial(
        _make_tokenizer,
        "[CLS] $A [SEP]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
    ),
    "no_pad_no_eos": functools.partial(_make_tokenizer, None, unk_token="<unk>"),
    "chat": functools.partial(
        _make_tokenizer,
        "<s> $A",
        _CHAT_TEMPLATE,
        pad_token="<pad>",
        **_SENTENCE_TOKENS,
    ),
}
