"""Tiny tokenizers as decoders have them, each with special tokens in its own way."""

from __future__ import annotations

import json
from typing import Any

from architectures import _LINES, POSITIONS, TOKENIZERS, VOCABULARY
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

# Roughly how the tokenizers of Llama 3 and Qwen cut words.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _trained(model: Any, cut: Any, size: int, **options: Any) -> Any:
    backend = Tokenizer(model)
    backend.pre_tokenizer = cut
    backend.train_from_iterator(_LINES, trainers.BpeTrainer(vocab_size=size, show_progress=False, **options))
    return backend


def _wrapped(backend: Any, template: str, **special: str) -> PreTrainedTokenizerFast:
    names = [each for each in template.split() if each != "$A"]
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, backend.token_to_id(name)) for name in names]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=POSITIONS, clean_up_tokenization_spaces=False, **special
    )


def _llama3() -> PreTrainedTokenizerFast:
    """Byte-level BPE that takes whole words first, with special and other tokens beyond its vocabulary."""
    cut = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model = models.BPE(ignore_merges=True)
    backend = _trained(model, cut, VOCABULARY - 8, initial_alphabet=alphabet)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return _wrapped(backend, "<|begin_of_text|> $A", bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def _sentencepiece() -> PreTrainedTokenizerFast:
    """BPE as Llama 2 and Gemma have it: no words but a sign for each space, bytes for unknown characters."""
    special = ["<unk>", "<s>", "</s>"]
    everything = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    cut = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    options: dict[str, Any] = {"special_tokens": everything, "limit_alphabet": 120}
    values = json.loads(_trained(model, cut, VOCABULARY - 4, **options).to_str())
    # Bytes are not special.
    values["added_tokens"] = [each for each in values["added_tokens"] if each["content"] in special]
    backend = Tokenizer.from_str(json.dumps(values))
    return _wrapped(backend, "<s> $A", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


FAMILIES = {
    "gpt2": TOKENIZERS["bos_eos"],
    "llama3": _llama3,
    "sentencepiece": _sentencepiece,
}


def spelling(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Texts that spell each token that was added to a tokenizer: alone, inside a word, among words, doubled."""
    added = sorted(map(str, tokenizer.get_added_vocab()))
    return [
        text
        for token in added
        for text in (token, f"a{token}b", f"The river {token} runs.", f"银行{token}{token} 关门")
    ]
