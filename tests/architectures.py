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

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY, POSITIONS = 512, 256

# Every family names the same few sizes in its own way.
_FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": POSITIONS}
_GROUPS: dict[str, Any] = {**_FALCON, "intermediate_size": 48, "num_key_value_heads": 2}
_ALTERNATING = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_WINDOWS = {**_GROUPS, **_ALTERNATING, "head_dim": 8, "sliding_window": 6}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_GEMMA = {**_WINDOWS, "query_pre_attn_scalar": 8}
# Name: model type and settings. All families but falcon_alibi and deep go by their model type.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS}),
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
        {**_WINDOWS, "rope_parameters": ROPE, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "falcon_alibi": ("falcon", {**_FALCON, "multi_query": False, "new_decoder_architecture": False, "alibi": True}),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
}
# Windows (a key is visible where query - key < window), and the layers that have them.
_OUTER = (6, (0, 2))
SLIDING = {"mistral": (5, (0, 1)), "gemma2": _OUTER, "gpt_oss": _OUTER, "gemma3_text": _OUTER}


def made(config: Any, seed: int) -> PreTrainedModel:
    """A model of a configuration: body without head, float32, eager attention, the same values on every call.

    They are far larger than a fresh model's: with those the attention is almost uniform, and a wrong layer, head, row
    or factor would hardly change a number.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of what is only added to
        model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("sinks"):
            value = noise + 1.0
        elif re.search("[qk]_(layer)?norm", name):
            # Queries and keys are normalized after their projection, whose size is lost. A weight of 0 is added to 1.
            value = (1.7 if parameter.any() and "gemma" not in model.config.model_type else 0.7) + 0.2 * noise
        elif parameter.ndim == 1 or name.endswith("bias"):
            # Norm weights keep their 1 (or 0), biases their 0.
            value = parameter + 0.2 * noise
        elif re.search("emb|wte|wpe", name):
            value = noise
        else:
            # The smaller side: most matrices are square or grow, and fused query-key-value ones do too. Experts
            # multiply their two halves: as large, they would blow up float32's rounding beyond all comparison.
            value = noise * (0.5 if re.search("expert|router", name) else 1.6) * min(parameter.shape[-2:]) ** -0.5
        parameter.data.copy_(value)
    return model.eval()


def save(name: str, folder: str | Path, tokenizer: str | PreTrainedTokenizerFast, *, causal_lm: bool = False) -> Path:
    """Write a model, with a language-modelling head as most checkpoints or without, and a tokenizer."""
    model_type, settings = MODELS[name]
    # Unset: the default ids of special tokens lie beyond this small vocabulary.
    unset = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    config = AutoConfig.for_model(model_type, **settings, **unset, vocab_size=VOCABULARY)
    model = made(config, zlib.crc32(name.encode()))
    if causal_lm:
        with torch.random.fork_rng(devices=[]):
            whole: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        whole.base_model.load_state_dict(model.state_dict())
        model = whole
    model.save_pretrained(folder)
    (TOKENIZERS[tokenizer]() if isinstance(tokenizer, str) else tokenizer).save_pretrained(folder)
    return Path(folder)


def lose(file: Path, part: str) -> None:
    """Take a weight with this part of a name out of a file."""
    weights = load_file(file)
    del weights[next(name for name in weights if part in name)]
    save_file(weights, file, {"format": "pt"})


def on_the_hub(cache: Path, name: str, folder: Path, revision: str = "main") -> Path:
    """A folder by a Hub id, as huggingface_hub's cache holds it: every file is a link."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / revision).write_text("0" * 40)
    return Path(shutil.copytree(folder, place / "snapshots" / ("0" * 40), copy_function=os.symlink))


_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@functools.cache
def _trained() -> str:
    """A byte-level BPE that leaves room in the vocabulary for special tokens, as JSON."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=VOCABULARY - 8, initial_alphabet=alphabet, show_progress=False)
    lines = Path(__file__).parent / "data" / "lines.txt"
    tokenizer.train_from_iterator(lines.read_text(encoding="utf-8").splitlines(), trainer)
    return str(tokenizer.to_str())


def _tokenizer(template: str | None, chat: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    """A tokenizer with these special tokens, placed as in the template ("[CLS] $A [SEP]")."""
    backend = Tokenizer.from_str(_trained())
    backend.add_special_tokens(sorted(set(special.values())))
    if template is not None:
        ids = [(token, backend.token_to_id(token)) for token in set(special.values())]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=POSITIONS, clean_up_tokenization_spaces=False, chat_template=chat,
        **special,
    )  # fmt: skip


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "plain": functools.partial(_tokenizer, None, eos_token="<|endoftext|>"),
    "bos": functools.partial(_tokenizer, "<s> $A", bos_token="<s>", eos_token="</s>"),
    "bos_eos": functools.partial(_tokenizer, "<s> $A </s>", bos_token="<s>", eos_token="</s>"),
    "cls_sep": functools.partial(
        _tokenizer, "[CLS] $A [SEP]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    ),
    "no_pad_no_eos": functools.partial(_tokenizer, None, unk_token="<unk>"),
    "chat": functools.partial(_tokenizer, "<s> $A", _CHAT, bos_token="<s>", eos_token="</s>", pad_token="<pad>"),
}
