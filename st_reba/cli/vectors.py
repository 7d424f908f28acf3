"""The commands that encode: texts (encode), words in them (words), and a corpus of any size (encode-corpus)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import places
from .app import app, command
from .options import (
    CORPUS_FILES,
    MODEL,
    PROMPT,
    TASK,
    Engine,
    Output,
    Records,
    Running,
    Texts,
    arg,
    choice,
    dumped,
    opt,
    texts_of,
)

if TYPE_CHECKING:
    from ..corpus import Corpus
    from ..corpus.encode import Run

_PANEL = "Texts into vectors"
# Written out, so that help needs no library; the tests hold them against the package.
STORE_DTYPES = ("float32", "float16")


def _one_of(to: Path | None, out: Output, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse unless the vectors have one place to go to."""
    if (to is None) == (not out.json):
        raise ValueError("Give either --out FILE or --json (and not both).")
    if to is not None:
        places.expect_writable(to, suffixes)


@command(app, _PANEL)
def encode(
    *,
    model: str = MODEL,
    read: Texts,
    run: Running,
    out: Output,
    file: str = arg("[FILE]", "Texts: .txt (one on each line), .jsonl, .csv or .tsv; -: standard input.", "-"),
    to: Path | None = opt(None, "Write the vectors here, [texts, dimension] float32.", "X.npy", "--out"),
    task: str | None = TASK,
    prompt: str | None = PROMPT,
) -> None:
    """Encode texts, from a file or from standard input.

    The vectors go to --out X.npy; or with --json to stdout, one object for each text (text, vector).

    Examples:
        st-reba encode my_model corpus.jsonl --out vectors.npy
        echo 你好 | st-reba encode my_model --json
    """
    _one_of(to, out)
    places.expect_model("MODEL", model)
    texts = texts_of(file, read.text_column)
    from ..encode import encode_file, encode_stream

    given: dict[str, Any] = {"task": task, "prompt": prompt, "show_progress_bar": out.bar, **read.sizes}
    loaded = run.load(model)
    if to is not None:
        count, dimension = encode_file(loaded, texts, to, **given)
        out.report(f"{to}: {count} vectors of {dimension} dimensions")
        return
    for chunk, vectors in encode_stream(loaded, texts, **given):
        for text, vector in zip(chunk, vectors.tolist(), strict=True):
            print(dumped({"text": text, "vector": vector}))


@command(app, _PANEL)
def words(
    *,
    model: str = MODEL,
    file: str = arg("FILE", "Texts, as for encode; -: standard input."),
    read: Texts,
    run: Running,
    out: Output,
    word: str | None = opt(None, "Only this word, wherever it occurs. [default: all words]", "WORD"),
    to: Path | None = opt(None, ".npy: [words, dimension] float32; .jsonl: one object for each word.", "FILE", "--out"),
    task: str | None = TASK,
    prompt: str | None = PROMPT,
) -> None:
    """Encode words in their context: all words of the texts, or every occurrence of one.

    A Chinese character is a word, unless --word names a longer one. The vectors go to --out; or with --json to stdout,
    one object for each word (text, word, start, end, vector).

    Examples:
        st-reba words my_model texts.txt --out words.jsonl
        echo 他在银行取钱 | st-reba words my_model - --word 银行 --json
    """
    _one_of(to, out, (".npy", ".jsonl"))
    places.expect_model("MODEL", model)
    texts = list(texts_of(file, read.text_column))
    from ..splitting import words_of

    items = [item for text in texts for item in words_of(text, word)]
    if not items:
        raise ValueError(
            f"FILE {file!r} has no words."
            if word is None
            else f"--word {word!r} is in none of the texts. Correct it, or leave it out for all words."
        )
    import numpy as np

    from ..files import whole_file
    from ..words import encode_words, unseen_words

    loaded = run.load(model)
    given: dict[str, Any] = {"prompt": prompt, "task": task}
    if unseen := unseen_words(loaded, items, **given):
        text, (start, end) = items[min(unseen)]
        print(
            f"{len(unseen)} words are past the cut or on no token, and left out: first {text[start:end]!r} in "
            f"{text!r:.60}",
            file=sys.stderr,
        )
        items = [item for place, item in enumerate(items) if place not in unseen]
    bar = sys.stderr.isatty() if out.bar is None else out.bar
    vectors = encode_words(loaded, items, show_progress_bar=bar, **given, **read.sizes)
    if to is not None and to.suffix == ".npy":
        with whole_file(to) as stream:
            np.save(stream, vectors)
    else:
        lines = (
            dumped({"text": text, "word": text[start:end], "start": start, "end": end, "vector": vector.tolist()})
            for (text, (start, end)), vector in zip(items, vectors, strict=True)
        )
        if to is None:
            for line in lines:
                print(line)
            return
        with whole_file(to) as stream:
            stream.writelines(f"{line}\n".encode("utf-8", "surrogatepass") for line in lines)
    out.report(f"{to}: {len(vectors)} words of {vectors.shape[1]} dimensions")


@command(app, _PANEL, names={"dtype": "--store-dtype"})
def encode_corpus(
    *,
    model: str = MODEL,
    input: str = arg("INPUT", f"{CORPUS_FILES}; -: standard input, which must be the same to continue."),
    folder: Path = arg("OUT", "The folder to write, or to continue."),
    records: Records,
    engine: Engine,
    run: Running,
    out: Output,
    store_dtype: str = choice(
        "float32", STORE_DTYPES, "Of the stored vectors; float16 needs half the disk, and keeps three digits."
    ),
    overwrite: bool = opt(False, "Replace a corpus that does not fit; go on with one that does."),
) -> int:
    """Encode a corpus of any size into a folder of parts.

    If it is killed, run the same command again to continue. st-reba index build makes an index of the folder.

    Examples:
        st-reba encode-corpus my_model corpus.jsonl my_corpus
        st-reba encode-corpus my_model texts my_texts --store-dtype float16
    """
    places.expect_model("MODEL", model)
    if places.kind_of(folder) not in (None, "an empty folder") and not (folder / "documents").is_dir():
        places.expect("OUT", folder, "an encoded corpus")
    from ..corpus import encode_corpus as encode
    from ..corpus.encode import Engine as Workers
    from ..corpus.encode import Run, Settings

    settings = records.settings
    names = ("batch_size", "batch_tokens", "part_size", "passages")
    Settings(**{name: settings[name] for name in names})
    Workers(engine.engine, engine.workers, engine.settings["devices"])
    source = records.open(input)
    doing = Run()
    try:
        corpus = encode(
            run.load(model),
            source,
            folder,
            dtype=store_dtype,  # type: ignore[arg-type]
            overwrite=overwrite,
            model_source=model,
            run=doing,
            show_progress_bar=out.bar,
            **engine.settings,
            **settings,
        )
    except KeyboardInterrupt:
        done = f"{doing.records:,} were read"
        if doing.total:
            done = f"{doing.kept:,} of {doing.total:,} texts are encoded and kept"
        raise KeyboardInterrupt(f"{done}; run the same command again to continue") from None
    about = _about(corpus, doing)
    out.report(_said(about), about)
    return 0


def _about(corpus: Corpus, run: Run) -> dict[str, Any]:
    header = corpus.header()
    return {
        "path": str(corpus.path),
        **header["totals"],
        "dimension": header["model"]["dimension"],
        "dtype": header["settings"]["dtype"],
        "rejects": str(corpus.path / "rejects.jsonl"),
        "kinds": dict(Counter(reject.kind for reject in corpus.rejects())),
        # Of this run.
        "encoded": run.texts,
        "seconds": run.seconds,
        "texts_per_second": run.texts / run.seconds if run.texts else None,
        "tokens_per_second": run.positions / run.seconds if run.positions else None,
    }


def _said(about: dict[str, Any]) -> str:
    lines = [
        f"{about['path']}: {about['documents']:,} documents, {about['vectors']:,} vectors of {about['dimension']} "
        f"dimensions ({about['dtype']}) in {about['parts']:,} parts"
    ]
    if about["kinds"]:
        lines.append(f"set aside: {counted(about['kinds'])}; each with its reason in {about['rejects']}")
    if about["encoded"]:
        tokens = about["tokens_per_second"]
        rate = f"{about['texts_per_second']:,.0f} texts/s" + ("" if tokens is None else f", {tokens:,.0f} tokens/s")
        lines.append(f"encoded now: {about['encoded']:,} texts in {about['seconds']:,.1f} s, {rate}")
    else:
        lines.append("nothing to do: all of it was encoded already")
    return "\n".join(lines)


def counted(kinds: dict[str, int]) -> str:
    """Records that were set aside, by reason."""
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
