"""Tiny tokenizers of the families that checkpoints have, each with special tokens in its own way."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from architectures import _LINES, POSITIONS, TOKENIZERS, VOCABULARY
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

# Roughly how the tokenizers of Llama 3 and Qwen cut words.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


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
    backend = Tokenizer(models.BPE(ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        _LINES,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 8, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    backend.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return _wrapped(backend, "<|begin_of_text|> $A", bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def _sentencepiece() -> PreTrainedTokenizerFast:
    """BPE as Llama 2 and Gemma have it: no words but a sign for each space, bytes for unknown characters."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.train_from_iterator(
        _LINES,
        trainers.BpeTrainer(vocab_size=VOCABULARY - 4, special_tokens=special, limit_alphabet=120, show_progress=False),
    )
    # Only three of them are special: bytes are not.
    backend = Tokenizer.from_str(_only_special(backend.to_str(), special[:3]))
    return _wrapped(backend, "<s> $A", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _wordpiece() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        _LINES, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
    )
    return _wrapped(
        backend,
        "[CLS] $A [SEP]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )


def _unigram() -> PreTrainedTokenizerFast:
    """As XGLM has it: special tokens are pieces like any other."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(
        _LINES,
        trainers.UnigramTrainer(
            vocab_size=VOCABULARY - 60,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    return _wrapped(backend, "</s> $A", bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>")


def _wordlevel() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(
        _LINES,
        trainers.WordLevelTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]", "[BOS]"], show_progress=False),
    )
    return _wrapped(backend, "[BOS] $A", bos_token="[BOS]", unk_token="[UNK]")


def _only_special(tokenizer: str, special: list[str]) -> str:
    values = json.loads(tokenizer)
    values["added_tokens"] = [each for each in values["added_tokens"] if each["content"] in special]
    return json.dumps(values)


FAMILIES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gpt2": TOKENIZERS["bos_eos"],
    "llama3": _llama3,
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "wordlevel": _wordlevel,
}
FAMILIES = {name: functools.cache(make) for name, make in FAMILIES.items()}


def spelling(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Texts that spell each token that was added to a tokenizer: alone, inside a word, among words, doubled."""
    added = sorted(map(str, tokenizer.get_added_vocab()))
    return [
        text
        for token in added
        for text in (token, f"a{token}b", f"The river {token} runs.", f"银行{token}{token} 关门")
    ]
