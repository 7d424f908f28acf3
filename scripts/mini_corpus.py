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
MARKERS = ["<pad>", "<s>", "</s>", "<unk>"]
ENGLISH_CHARACTERS = 22_000_000  # enough, without crowding Chinese out
# Shorter documents, and shorter lines of Markdown, are left out. All are numbers of characters.
SHORTEST_CHINESE_ARTICLE = 150
SHORTEST_LCTT_ARTICLE = 200
SHORTEST_ENGLISH_ARTICLE = 300
LONGEST_ENGLISH_ARTICLE = 4000  # the rest is cut off
LONGEST_SKIPPED_LINE = 30
MIN_SHARE_OF_CHINESE = 0.4
# What the tokenizer is trained on: numbers of documents, and of their first characters.
CHINESE_SAMPLE = 26_000
CHINESE_SAMPLE_CHARACTERS = 1500
ENGLISH_SAMPLE = 4500
ENGLISH_SAMPLE_CHARACTERS = 1000


def clean(raw_text: str) -> str:
    """Normalize to NFKC, drop markup and the empty brackets it leaves behind, and squeeze blanks."""
    raw_text = unicodedata.normalize("NFKC", raw_text)
    raw_text = re.sub(r"&lt;.*?&gt;|<[^>]+>|\(\)", "", raw_text)
    return re.sub(r"[ \t]+", " ", raw_text).strip()


def clean_markdown(raw_text: str) -> str:
    """Keep the lines of a markdown article that are Chinese prose; code, links and short lines go."""
    raw_text = re.sub(r"```.*?```", "", raw_text, flags=re.DOTALL)
    raw_text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", raw_text)
    raw_text = re.sub(r"https?://\S+", "", raw_text)
    raw_text = re.sub(r"[#*`>\-|=]+", " ", raw_text)
    prose_lines: list[str] = []
    for line in raw_text.split("\n"):
        clean_line = clean(line)
        if len(clean_line) <= LONGEST_SKIPPED_LINE:
            continue
        if share_of_chinese(clean_line) > MIN_SHARE_OF_CHINESE:
            prose_lines.append(clean_line)
    return "\n".join(prose_lines)


def share_of_chinese(raw_text: str) -> float:
    chinese_count = sum("\u4e00" <= character <= "\u9fff" for character in raw_text)
    return chinese_count / len(raw_text)


def wiki_articles(files: Iterable[Path]) -> Iterator[str]:
    """Yield the raw text of every `<doc …>` element in WikiExtractor files."""
    for file in files:
        content = file.read_text(encoding="utf-8", errors="ignore")
        yield from re.findall(r"<doc [^>]*>\n(.*?)</doc>", content, re.DOTALL)


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Files below a folder, sorted, so that every run reads them alike."""
    matching_files = sorted(folder.rglob(pattern))
    if not matching_files:
        raise SystemExit(f"{folder}: no {pattern} there")
    return matching_files


def read_chinese(wiki_folder: Path, articles_folder: Path) -> list[str]:
    """Articles of the Chinese Wikipedia in simplified characters, and LCTT's."""
    import opencc

    simplify = opencc.OpenCC("t2s").convert
    documents: list[str] = []
    wiki_files = files_in(wiki_folder, "wiki_*")
    for raw_text in wiki_articles(tqdm(wiki_files, desc="Chinese wiki", unit="file")):
        document = clean(simplify(raw_text))
        if len(document) > SHORTEST_CHINESE_ARTICLE:
            documents.append(document)
    article_files = files_in(articles_folder, "*.md")
    for article_file in tqdm(article_files, desc="LCTT", unit="file"):
        document = clean_markdown(article_file.read_text(encoding="utf-8", errors="ignore"))
        if len(document) > SHORTEST_LCTT_ARTICLE:
            documents.append(document)
    return documents


def read_english(wiki_folder: Path, random_state: random.Random) -> list[str]:
    """So little that it does not crowd Chinese out."""
    wiki_files = files_in(wiki_folder, "wiki_*")
    random_state.shuffle(wiki_files)
    documents: list[str] = []
    character_count = 0
    for wiki_file in tqdm(wiki_files, desc="English wiki", unit="file"):
        for raw_text in wiki_articles([wiki_file]):
            document = clean(raw_text)
            if len(document) > SHORTEST_ENGLISH_ARTICLE:
                documents.append(document[:LONGEST_ENGLISH_ARTICLE])
                character_count += len(documents[-1])
        if character_count > ENGLISH_CHARACTERS:
            break
    return documents


def train_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-fallback BPE tokenizer, trained; a character outside its alphabet becomes its UTF-8 bytes."""
    tokenizer: Any = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Metaspace(prepend_scheme="never", split=True),
        ]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*MARKERS, *byte_tokens],
        show_progress=False,
        limit_alphabet=5200,
        min_frequency=3,
        max_token_length=8,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )
    return without_special_bytes(tokenizer)


def without_special_bytes(tokenizer: Any) -> Any:
    """The trainer reserves the 256 byte entries only as special tokens.

    Left so, decoding would skip them and a text that spells "<0x41>" would be read as that byte.
    """
    state = json.loads(tokenizer.to_str())
    added_tokens = state["added_tokens"]
    state["added_tokens"] = [token for token in added_tokens if token["content"] in MARKERS]
    return Tokenizer.from_str(json.dumps(state))


def save_tokenizer(tokenizer: Any, out_folder: Path) -> None:
    fast_tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    out_folder.mkdir(parents=True, exist_ok=True)
    fast_tokenizer.save_pretrained(out_folder)


def encode_documents(tokenizer: Any, documents: list[str]) -> np.ndarray:
    """`<s>` document `</s>`, and so on, in 16 bits."""
    end_token = tokenizer.token_to_id("</s>")
    rows: list[np.ndarray] = []
    for start in tqdm(range(0, len(documents), 512), desc="tokens", unit="batch"):
        for encoding in tokenizer.encode_batch(documents[start : start + 512]):
            rows.append(np.array([*encoding.ids, end_token], dtype=np.uint16))
    return np.concatenate(rows)


def prepare(zh_wiki: Path, en_wiki: Path, lctt: Path, out_folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and tokens.npy (uint16: `<s>` document `</s>`, …)."""
    random_state = random.Random(0)
    chinese_documents = read_chinese(zh_wiki, lctt)
    english_documents = read_english(en_wiki, random_state)
    random_state.shuffle(chinese_documents)
    random_state.shuffle(english_documents)
    chinese_sample = [
        document[:CHINESE_SAMPLE_CHARACTERS] for document in chinese_documents[:CHINESE_SAMPLE]
    ]
    english_sample = [
        document[:ENGLISH_SAMPLE_CHARACTERS] for document in english_documents[:ENGLISH_SAMPLE]
    ]
    tokenizer = train_tokenizer([*chinese_sample, *english_sample])
    save_tokenizer(tokenizer, out_folder)
    documents = chinese_documents + english_documents
    random_state.shuffle(documents)
    tokens = encode_documents(tokenizer, documents)
    np.save(out_folder / "tokens.npy", tokens)
    counts = f"{len(chinese_documents):,} Chinese and {len(english_documents):,} English documents"
    print(f"{out_folder}: {counts}, {len(tokens):,} tokens")
