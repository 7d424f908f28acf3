"""A corpus that is encoded again: what is kept, what is made anew, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

from st_reba.corpus import Corpus, encode_corpus
from st_reba.corpus.options import EncodeOptions

MODEL = tiny_model()
TEXTS = ["cat", "dog", "ship"]


def encode(path: Path, **options: Any) -> Corpus:
    """A corpus of three parts."""
    return encode_corpus(MODEL, TEXTS, path, part_size=1, show_progress_bar=False, **options)


def test_a_damaged_part_after_a_missing_one_is_encoded_again(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    corpus.vectors_path(0).unlink()
    corpus.vectors_path(1).write_bytes(b"damaged")
    encode(corpus.path).verify()


def test_a_part_without_a_summary_is_not_encoded(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    corpus.summary_path(1).unlink()
    assert corpus.progress() == (2, 3)
    encode(corpus.path).verify()


def test_other_files_among_those_of_the_parts_are_no_obstacle(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    note = corpus.path / "documents" / "note.txt"
    note.touch()
    encode(corpus.path).verify()
    assert note.exists()


@pytest.mark.parametrize(
    ("first_options", "later_options", "beginning"),
    [
        ({"batch_tokens": 64}, {}, "batch_tokens=None, but it was begun with 64"),
        ({}, {"batch_tokens": 64}, "batch_tokens=64, but it was begun without it"),
    ],
    ids=["left out", "added"],
)
def test_another_setting_is_told_with_the_one_of_the_beginning(
    tmp_path: Path,
    first_options: dict[str, int],
    later_options: dict[str, int],
    beginning: str,
) -> None:
    encode(tmp_path / "corpus", **first_options)
    with pytest.raises(ValueError, match=beginning):
        encode(tmp_path / "corpus", **later_options)


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    leftovers = []
    for folder_name in ("documents", "vectors"):
        folder = tmp_path / "corpus" / folder_name
        folder.mkdir(parents=True)
        leftovers.append(folder / ".00000.1.tmp")
        leftovers[-1].touch()
    (tmp_path / "corpus" / "corpus.json").write_text("{}", encoding="utf-8")
    encode(tmp_path / "corpus")
    assert not any(leftover.exists() for leftover in leftovers)


@pytest.mark.parametrize(
    ("vectors", "dtype"),
    [(np.ones(16), "float32"), (np.ones((1, 16)), "float64")],
    ids=["shape", "type"],
)
def test_vectors_of_another_shape_or_type_are_not_read(
    tmp_path: Path, vectors: Any, dtype: str
) -> None:
    """Also where their digest is right."""
    corpus = encode(tmp_path / "corpus")
    corpus.write_vectors(0, vectors, dtype)
    with pytest.raises(ValueError, match=f"{dtype} .*encode again"):
        corpus.vectors(0)


def test_vectors_that_were_written_again_are_compared_again(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    corpus.vectors(0)
    corpus.write_vectors(0, np.ones((1, 16), np.float32), "float32")
    np.save(corpus.vectors_path(0), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="its SHA-256 is not that"):
        corpus.vectors(0)


def test_vectors_that_came_back_are_compared_again(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    corpus.vectors(0)
    summary = corpus.summary_path(0).read_bytes()
    corpus.remove_vectors(0)
    corpus.summary_path(0).write_bytes(summary)
    np.save(corpus.vectors_path(0), np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="its SHA-256 is not that"):
        corpus.vectors(0)


@pytest.mark.parametrize(
    "content",
    [
        {"model": {}, "settings": {"part_size": 1}},
        {"model": {"vectors": []}, "settings": {}},
    ],
    ids=["model", "settings"],
)
def test_a_header_in_which_something_is_missing_is_damaged(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    corpus = Corpus(tmp_path)
    corpus.write_header(content)
    with pytest.raises(ValueError, match="not the header of a corpus, or damaged"):
        corpus.header()


def test_numbers_of_options_are_below_two_to_the_31st() -> None:
    assert EncodeOptions(batch_tokens=2**31 - 1).batch_tokens == 2**31 - 1
    with pytest.raises(ValueError, match="batch_tokens=2147483648 must be a whole number"):
        EncodeOptions(batch_tokens=2**31)
