"""The corpus and the tokenizer of the tiny bilingual language model; `train_mini_lm.py prepare` runs it."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

VOCABULARY = 8192
ENGLISH_CHARACTERS = 22_000_000


def clean(text: str) -> str:
    """Normalize to NFKC, drop markup and the empty brackets it leaves behind, and squeeze blanks."""
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"&lt;.*?&gt;|<[^>]+>|\(\)", "", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def clean_markdown(text: str) -> str:
    """Keep the lines of a markdown article that are Chinese prose; code, links and short lines go."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"https?://\S+", "", text)
    text = re.sub(r"[#*`>\-|=]+", " ", text)
    lines = (clean(line) for line in text.split("\n"))
    return "\n".join(
        line for line in lines if len(line) > 30 and sum("\u4e00" <= c <= "\u9fff" for c in line) > 0.4 * len(line)
    )


def wiki_articles(files: Iterable[Path]) -> Iterator[str]:
    """Yield the raw text of every `<doc …>` element in WikiExtractor files."""
    for file in files:
        content = file.read_text(encoding="utf-8", errors="ignore")
        yield from re.findall(r"<doc [^>]*>\n(.*?)</doc>", content, re.DOTALL)


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Files below a folder, sorted, so that every run reads them alike."""
    if files := sorted(folder.rglob(pattern)):
        return files
    raise SystemExit(f"{folder}: no {pattern} there")


def read_corpus(zh_wiki: Path, en_wiki: Path, lctt: Path, shuffle: random.Random) -> tuple[list[str], list[str]]:
    """The Chinese and the English documents, shuffled; so little English that it does not crowd Chinese out."""
    import opencc

    simplify = opencc.OpenCC("t2s").convert
    files = tqdm(files_in(zh_wiki, "wiki_*"), desc="Chinese wiki", unit="file")
    chinese = [text for article in wiki_articles(files) if len(text := clean(simplify(article))) > 150]
    for file in tqdm(files_in(lctt, "*.md"), desc="LCTT", unit="file"):
        article = clean_markdown(file.read_text(encoding="utf-8", errors="ignore"))
        if len(article) > 200:
            chinese.append(article)

    files = files_in(en_wiki, "wiki_*")
    shuffle.shuffle(files)
    english: list[str] = []
    for file in tqdm(files, desc="English wiki", unit="file"):
        english += [text[:4000] for article in wiki_articles([file]) if len(text := clean(article)) > 300]
        if sum(map(len, english)) > ENGLISH_CHARACTERS:
            break
    shuffle.shuffle(chinese)
    shuffle.shuffle(english)
    return chinese, english


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-fallback BPE tokenizer, trained; a character outside its alphabet becomes its UTF-8 bytes."""
    markers = ["<pad>", "<s>", "</s>", "<unk>"]
    tokenizer: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    splits: list[Any] = [
        pre_tokenizers.Split("\n", "isolated"),
        pre_tokenizers.Punctuation(),
    ]
    splits.append(pre_tokenizers.Digits(individual_digits=True))
    splits.append(pre_tokenizers.Metaspace(prepend_scheme="never", split=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    special = [*markers, *(f"<0x{byte:02X}>" for byte in range(256))]
    limits: dict[str, Any] = {
        "limit_alphabet": 5200,
        "min_frequency": 3,
        "max_token_length": 8,
    }
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        show_progress=False,
        **limits,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )
    # The trainer reserves the 256 byte entries only as special tokens. Left so, decoding would skip them and a text
    # that spells "<0x41>" would be read as that byte.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in markers]
    return Tokenizer.from_str(json.dumps(state))


def prepare(zh_wiki: Path, en_wiki: Path, lctt: Path, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and tokens.npy (uint16: `<s>` document `</s>`, …)."""
    shuffle = random.Random(0)
    chinese, english = read_corpus(zh_wiki, en_wiki, lctt, shuffle)
    sample = [
        *(text[:1500] for text in chinese[:26_000]),
        *(text[:1000] for text in english[:4500]),
    ]
    tokenizer = train_tokenizer(sample)
    wrap: Any = PreTrainedTokenizerFast
    markers = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    settings = {
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    wrapped = wrap(tokenizer_object=tokenizer, **markers, **settings)
    out.mkdir(parents=True, exist_ok=True)
    wrapped.save_pretrained(out)

    documents = chinese + english
    shuffle.shuffle(documents)
    end = tokenizer.token_to_id("</s>")
    rows: list[np.ndarray] = []
    for start in tqdm(range(0, len(documents), 512), desc="tokens", unit="batch"):
        for encoding in tokenizer.encode_batch(documents[start : start + 512]):
            rows.append(np.array([*encoding.ids, end], dtype=np.uint16))
    tokens = np.concatenate(rows)
    np.save(out / "tokens.npy", tokens)
    print(f"{out}: {len(chinese):,} Chinese and {len(english):,} English documents, {len(tokens):,} tokens")
