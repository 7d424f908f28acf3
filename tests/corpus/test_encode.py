"""A corpus is complete or goes on; finished parts are never encoded again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import WORDS, tiny_model

import st_reba
import st_reba.corpus.encode as encoding
import st_reba.corpus.encode_part as encode_part_module
import st_reba.encode as encode_module
from st_reba.corpus import Corpus, Document, encode_corpus, open_source
from st_reba.corpus.passages import PassageSize
from st_reba.files import sole_writer

MODEL = tiny_model()
MODEL[0].embedding.weight.data[0] = 0  # words that it does not know have no vector
QUIET: dict[str, Any] = {"show_progress_bar": False}


def text_of(start: int) -> str:
    numbers = range(start, start + 1 + start % 5)
    return " ".join(WORDS[number % 12] for number in numbers)


TEXTS = [text_of(start) for start in range(20)]


@pytest.fixture
def encoded_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are encoded from now on."""
    recorded_texts: list[str] = []
    encode_texts = encode_part_module.encode_texts

    def record_and_encode(model: Any, texts: list[str], **options: Any) -> Any:
        recorded_texts.extend(texts)
        return encode_texts(model, texts, **options)

    monkeypatch.setattr(encode_part_module, "encode_texts", record_and_encode)
    return recorded_texts


def encode(path: Path, input: Any = TEXTS, model: Any = MODEL, **options: Any) -> Corpus:
    all_options = {"part_size": 6, **QUIET, **options}
    return encode_corpus(model, input, path, **all_options)


def read_files(corpus: Corpus) -> dict[str, bytes]:
    """The content of every file by its name."""
    contents = {}
    for path in corpus.path.rglob("*"):
        if path.is_file() and path.name != ".lock":
            contents[path.relative_to(corpus.path).as_posix()] = path.read_bytes()
    return contents


def test_vectors_are_those_of_the_model(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    rows = []
    row_vectors = []
    for part_number in range(corpus.part_count()):
        for row, vectors in corpus.read(part_number):
            rows.append((row.text, row.document().id))
            row_vectors.append(vectors)
    assert rows == [(text, str(number)) for number, text in enumerate(TEXTS)]
    expected_vectors = MODEL.encode_document(TEXTS, show_progress_bar=False)
    assert np.array_equal(np.concatenate(row_vectors), expected_vectors)
    corpus.verify()


def test_totals_are_in_the_header(tmp_path: Path) -> None:
    header = encode(tmp_path / "corpus").header()
    assert header["similarity"] == "cosine"
    assert header["totals"] == {
        "parts": 4,
        "documents": 20,
        "vectors": 20,
        "truncated": 0,
        "rejected": 0,
    }


def test_vectors_of_another_shape_are_refused(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    np.save(corpus.vectors_path(0), np.zeros(16, np.float32))
    with pytest.raises(ValueError, match="damaged"):
        Corpus(corpus.path).vectors(0)


@pytest.mark.bars
def test_bars_are_shown_on_request(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    encode(tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    corpus = encode(tmp_path / "shown", show_progress_bar=True)
    assert "20/20" in capsys.readouterr().err
    corpus.vectors_path(1).unlink()
    encode(corpus.path, show_progress_bar=True)
    assert "20/20" in capsys.readouterr().err


def test_vectors_may_be_stored_in_float16(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus", dtype="float16", part_size=99)
    assert corpus.part_count() == 1
    vectors = corpus.vectors(0)
    assert vectors.dtype == np.float16
    expected_vectors = MODEL.encode_document(TEXTS, show_progress_bar=False)
    assert np.abs(vectors - expected_vectors).max() < 1e-2


def test_a_stopped_run_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoded_texts: list[str],
) -> None:
    whole_files = read_files(encode(tmp_path / "whole"))
    assert sorted(encoded_texts) == sorted(TEXTS)
    write_vectors = Corpus.write_vectors

    def write_and_stop(corpus: Corpus, part_number: int, *arguments: Any) -> None:
        write_vectors(corpus, part_number, *arguments)
        if part_number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Corpus, "write_vectors", write_and_stop)
        encode(tmp_path / "corpus")
    with pytest.raises(ValueError, match="not encoded to its end"):
        Corpus(tmp_path / "corpus").verify()
    encoded_texts.clear()
    assert read_files(encode(tmp_path / "corpus")) == whole_files
    assert sorted(encoded_texts) == sorted(TEXTS[12:])


def test_a_complete_corpus_is_not_encoded_again(
    tmp_path: Path,
    encoded_texts: list[str],
) -> None:
    files = read_files(encode(tmp_path / "corpus"))
    encoded_texts.clear()
    assert read_files(encode(tmp_path / "corpus")) == files
    assert encoded_texts == []


def test_a_run_that_was_killed_at_its_beginning_begins_again(tmp_path: Path) -> None:
    for folder_name in ("documents", "vectors"):
        (tmp_path / "corpus" / folder_name).mkdir(parents=True)
    for file_name in (".corpus.json.1.tmp", ".lock"):
        (tmp_path / "corpus" / file_name).touch()
    encode(tmp_path / "corpus").verify()


def test_vectors_of_another_part_are_encoded_again(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    files_before = read_files(corpus)
    for find_file in (corpus.vectors_path, corpus.summary_path):
        contents = [find_file(part_number).read_bytes() for part_number in (0, 1)]
        find_file(0).write_bytes(contents[1])
        find_file(1).write_bytes(contents[0])
    with pytest.raises(ValueError, match="of other documents"):
        Corpus(corpus.path).vectors(0)
    assert read_files(encode(tmp_path / "corpus")) == files_before


@pytest.mark.parametrize("truncated", [None, 5, ["x"]])
def test_a_damaged_summary_is_made_again(tmp_path: Path, truncated: Any) -> None:
    corpus = encode(tmp_path / "corpus")
    files_before = read_files(corpus)
    path = corpus.summary_path(1)
    summary = json.loads(path.read_bytes())
    path.write_text(json.dumps({**summary, "truncated": truncated}), encoding="utf-8")
    with pytest.raises(ValueError, match="encode again"):
        corpus.truncated(1)
    assert read_files(encode(tmp_path / "corpus")) == files_before


def test_a_folder_where_a_file_should_be_is_named(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    path = corpus.documents_path(1)
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError, match=r"00001\.parquet: a folder.*remove it"):
        encode(tmp_path / "corpus", overwrite=True)


@pytest.mark.parametrize(
    ("owner", "name", "input"),
    [
        (Path, "unlink", TEXTS[::-1]),
        (Path, "unlink", TEXTS[:12]),
        (encoding, "_encode_pending", TEXTS),
    ],
    ids=["documents", "removal", "vectors"],
)
def test_a_corpus_that_changes_is_not_complete(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    input: list[str],
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    corpus = encode(tmp_path / "corpus")
    corpus.vectors_path(3).unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, stop)
        encode(corpus.path, input, overwrite=True)
    assert not {"totals", "digest"} & corpus.header().keys()


ALTERATIONS: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("alter", ALTERATIONS.values(), ids=ALTERATIONS)
@pytest.mark.parametrize("name", ["documents/00001.parquet", "vectors/00001.npy"])
def test_an_altered_file_is_made_again(
    tmp_path: Path,
    encoded_texts: list[str],
    name: str,
    alter: Callable[[Path], object],
) -> None:
    corpus = encode(tmp_path / "corpus", [*TEXTS, ""])
    files = read_files(corpus)
    alter(corpus.path / name)
    with pytest.raises(ValueError):
        corpus.verify()
    encoded_texts.clear()
    assert read_files(encode(corpus.path, [*TEXTS, ""])) == files
    assert set(encoded_texts) <= set(TEXTS[6:12])


def test_a_part_of_another_model_is_noticed(tmp_path: Path) -> None:
    """Its vectors fit their summary and the documents."""
    corpus = encode(tmp_path / "corpus")
    other_corpus = encode(tmp_path / "other", model=tiny_model(1))
    shutil.copy(other_corpus.vectors_path(1), corpus.vectors_path(1))
    shutil.copy(other_corpus.summary_path(1), corpus.summary_path(1))
    with pytest.raises(ValueError, match="a part is missing, or not what was written"):
        Corpus(corpus.path).verify()


OTHER_TEXTS = [*TEXTS[:7], "gold", *TEXTS[8:]]
OTHER_CALLS: dict[str, dict[str, Any]] = {
    "input": {"input": OTHER_TEXTS},
    "shorter input": {"input": TEXTS[:12]},
    "dtype": {"dtype": "float16"},
    "part size": {"part_size": 7},
    "model": {"model": tiny_model(1)},
}


@pytest.mark.parametrize("options", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_another_input_model_or_setting_is_refused(
    tmp_path: Path,
    options: Any,
) -> None:
    files = read_files(encode(tmp_path / "corpus"))
    with pytest.raises(ValueError, match="overwrite=True|cannot be used"):
        encode(tmp_path / "corpus", **options)
    assert read_files(Corpus(tmp_path / "corpus")) == files


@pytest.mark.parametrize("options", OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_overwriting_gives_the_same_as_a_new_corpus(
    tmp_path: Path,
    options: Any,
) -> None:
    """Also where the earlier one is not complete."""
    corpus = encode(tmp_path / "corpus")
    corpus.vectors_path(2).unlink()
    corpus.documents_path(3).unlink()
    overwritten = encode(tmp_path / "corpus", overwrite=True, **options)
    overwritten.verify()
    assert read_files(overwritten) == read_files(encode(tmp_path / "other", **options))


def test_overwriting_keeps_equal_parts(
    tmp_path: Path,
    encoded_texts: list[str],
) -> None:
    encode(tmp_path / "corpus")
    encoded_texts.clear()
    encode(tmp_path / "corpus", OTHER_TEXTS, overwrite=True)
    assert sorted(encoded_texts) == sorted(OTHER_TEXTS[6:12])


def test_the_part_size_may_be_left_out_to_go_on(tmp_path: Path) -> None:
    encode(tmp_path / "corpus")
    assert encode(tmp_path / "corpus", part_size=None).part_count() == 4


MIXED_INPUT: list[Any] = [
    "cat",
    "",
    Document("dog", "1"),
    Document("ship", "1"),
    {"text": 7},
    "zzzz",
    Document("gold", "0"),
]


def test_rejects_are_listed(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus", MIXED_INPUT, part_size=99)
    rejects = [(reject.place, reject.kind, reject.id, reject.text) for reject in corpus.rejects()]
    assert rejects == [
        ("record 1", "no text", None, ""),
        ("record 3", "id used twice", "1", "ship"),
        ("record 4", "wrong type", None, "7"),
        ("record 6", "id used twice", "0", "gold"),
        ("record 5", "no vector", "5", "zzzz"),
    ]
    lines = (corpus.path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()
    places = [json.loads(line)["place"] for line in lines]
    assert places == [row_place for row_place, *_ in rejects]
    assert corpus.header()["totals"]["rejected"] == 5
    # Without vectors, those of them that cannot be used are not known.
    corpus.vectors_path(0).unlink()
    assert len(list(corpus.rejects())) == 4


def test_a_part_may_have_rejects_alone(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus", ["", "cat"], part_size=1)
    assert corpus.vectors(0).shape == (0, 16)


def test_a_strict_source_stops_at_a_reject(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record 1"):
        encode(tmp_path / "corpus", open_source(MIXED_INPUT).strict())
    assert not (tmp_path / "corpus").exists()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("place", "value", "row", "fault"),
    [(1, 0, 0, "zero"), ((-2, 0), 1e6, 1, "NaN or infinite in float16")],
)
def test_one_unusable_vector_rejects_its_document(
    tmp_path: Path,
    place: Any,
    value: float,
    row: int,
    fault: str,
) -> None:
    """One passage's is enough, and one value of it that is not finite; a single zero is fine."""
    texts = ["A long text in passages.", "Short.", "Other."]
    corpus = encode_corpus(st_reba.build("mini"), texts, tmp_path / "corpus", passages="4")
    vectors = np.array(corpus.vectors(0))
    vectors[-1, 0] = 0
    assert len(vectors) > 3
    assert corpus.unusable(0) == {}
    vectors[place] = value
    corpus.write_vectors(0, vectors, "float16")
    rejects = corpus.unusable(0)
    assert list(rejects) == [row]
    assert rejects[row].id == str(row)
    assert f"it is {fault};" in rejects[row].reason


def test_parts_of_long_texts_are_short(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "MAX_PART_CHARACTERS", 100)
    long_rows = [{"text": "cat " * 10, "more": "a" * 40}] * 5
    assert encode(tmp_path / "corpus", long_rows, part_size=100).part_count() == 3


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"input": []}, ValueError),
        ({"input": "missing.txt"}, FileNotFoundError),
        ({"workers": 0}, ValueError),
        ({"dtype": "int8"}, ValueError),
        ({"part_size": 0}, ValueError),
        ({"batch_tokens": True}, ValueError),
        ({"passages": "8:2"}, ValueError),  # its tokenizer gives no offsets
    ],
)
def test_options_that_are_refused_leave_nothing(
    tmp_path: Path,
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        encode(tmp_path / "corpus", **options)
    assert not (tmp_path / "corpus").exists()


def test_folders_and_files_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("cat", encoding="utf-8")
    (tmp_path / "file").touch()
    (tmp_path / "other" / "documents").mkdir(parents=True)
    (tmp_path / "other" / "documents" / "a.txt").touch()
    for name in ("mine", "file", "other"):
        with pytest.raises(FileExistsError):
            encode(tmp_path / name, overwrite=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.txt"]


def test_a_second_writer_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.files.WRITER_PATIENCE", 0.1)
    encode(tmp_path / "corpus")
    with sole_writer(tmp_path / "corpus", "*"), pytest.raises(BlockingIOError):
        encode(tmp_path / "corpus")


def test_passages_are_encoded(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba", pooling="mean")
    model.tokenizer.model_max_length = 20  # a passage may be longer
    long_text = "春天来了，河边的柳树发了新芽，孩子们在草地上放风筝。" * 4
    corpus = encode(tmp_path / "corpus", [long_text, "猫"], model, passages="16:4")
    (long_row, long_vectors), (short_row, short_vectors) = corpus.read(0)
    tokens = model.tokenizer(long_text, add_special_tokens=False, return_offsets_mapping=True)
    expected_spans = PassageSize(16, 4).find_spans(tokens["offset_mapping"], len(long_text))
    assert long_row.spans == expected_spans
    assert len(long_vectors) > 3
    assert short_row.passages == ["猫"]
    assert len(short_vectors) == 1
    expected_vectors = model.encode_document(long_row.passages, show_progress_bar=False)
    assert np.abs(long_vectors - expected_vectors).max() < 1e-5
    assert corpus.header()["settings"] == {
        "dtype": "float32",
        "batch_tokens": None,
        "passages": "16:4",
        "part_size": 6,
        "dtype of the model": "float32",
        "max_seq_length": model.max_seq_length,
    }


def test_no_character_is_lost_between_passages() -> None:
    """Spans are of the tokens of "  cats sleep  here "."""
    token_spans = [(2, 6), (7, 12), (14, 18)]
    assert PassageSize(1, 0).find_spans(token_spans, 19) == [0, 7, 7, 14, 14, 19]


def test_sizes_of_passages_are_parsed() -> None:
    assert PassageSize.parse("8") == PassageSize(8, 0)
    assert PassageSize.parse("8:2") == PassageSize(8, 2)


@pytest.mark.parametrize("passages", ["0", "8:8", "x"])
def test_wrong_sizes_of_passages_are_refused(passages: str) -> None:
    with pytest.raises(ValueError):
        PassageSize.parse(passages)


def test_passages_hold_every_character() -> None:
    # The first two tokens are bytes of one letter.
    token_spans = [(0, 1), (0, 1), (1, 3), (4, 5), (5, 6), (6, 7), (8, 9)]
    assert PassageSize(3, 1).find_spans(token_spans, 9) == [0, 4, 1, 6, 5, 9]
    assert PassageSize(1).find_spans(token_spans[:3], 3) == [0, 1, 0, 1, 1, 3]
    assert PassageSize(1).find_spans([(0, 2), (3, 5)], 5) == [0, 3, 3, 5]


@pytest.mark.parametrize("header", ["", "[]", "{}", '{"model": 1, "settings": 2}'])
def test_a_damaged_header_is_refused_or_overwritten(
    tmp_path: Path,
    header: str,
) -> None:
    corpus = encode(tmp_path / "corpus")
    (corpus.path / "corpus.json").write_text(header, encoding="utf-8")
    with pytest.raises(ValueError):
        encode(corpus.path)
    assert encode(corpus.path, overwrite=True).header()["totals"]["documents"] == 20


def test_workers_encode_all_parts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[list[int], int]] = []

    def encode_on_ray(
        model: Any,
        corpus: Corpus,
        part_numbers: list[int],
        progress: Any,
        workers: int,
    ) -> None:
        calls.append((part_numbers, workers))
        for part_number in part_numbers:
            encode_part_module.encode_part(model, corpus, part_number, progress)

    ray = SimpleNamespace(encode_on_ray=encode_on_ray)
    monkeypatch.setitem(sys.modules, "st_reba.corpus.ray", ray)
    monkeypatch.setattr(encoding, "hint_at_bfloat16", None)  # this process does not encode
    encode(tmp_path / "corpus", workers=2)
    assert calls == [([0, 1, 2, 3], 2)]


@pytest.mark.parametrize(("rate", "part_size"), [(0.1, 64), (100, 1024), (1e6, 16_384)])
def test_a_quick_model_gets_larger_parts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rate: float,
    part_size: int,
) -> None:
    monkeypatch.setattr(encoding, "encoding_rate", lambda model: rate)
    corpus = encode(tmp_path / "corpus", part_size=None)
    assert corpus.header()["settings"]["part_size"] == part_size


def test_the_last_part_may_be_full(tmp_path: Path) -> None:
    assert encode(tmp_path / "corpus", ["cat", "dog"] * 6).part_count() == 2


def test_a_part_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    corpus = encode(tmp_path / "corpus")
    corpus.remove_part(3)
    assert corpus.part_count() == 3
    with pytest.raises(ValueError, match="not the documents of a part"):
        corpus.part_info(3)


def test_a_corpus_that_goes_on_is_not_told_of_another_number_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_counts: list[int] = []
    monkeypatch.setattr(encoding, "hint_at_bfloat16", lambda _, count: told_counts.append(count))
    corpus = encode(tmp_path / "corpus")
    assert len(told_counts) == 1
    corpus.vectors_path(1).unlink()
    encode(corpus.path)
    assert len(told_counts) == 1


def test_long_texts_of_a_corpus_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = st_reba.build("mini", "echo", max_seq_length=32)
    encode(tmp_path / "corpus", ["long text " * 40, "short"], model)
    assert "1 of 2 documents is longer than the model reads" in caplog.text
    assert "(max_seq_length 32)" in caplog.text


def test_a_corpus_is_told_as_many_positions_as_its_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_counts: list[int] = []
    for module in (encoding, encode_module):
        monkeypatch.setattr(module, "hint_at_bfloat16", lambda _, count: told_counts.append(count))
    model = st_reba.build("mini", "prompteol:template=three-questions", check=False, device="cpu")
    encode_module.encode_texts(model, TEXTS, show_progress_bar=False)
    encode(tmp_path / "corpus", model=model, part_size=len(TEXTS))
    of_texts, of_corpus, *_ = told_counts
    assert of_corpus == of_texts
