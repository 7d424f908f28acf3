"""Commands hand on all their options to the functions of the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import pytest

from st_reba.cli import main

LOADING: dict[str, Any] = {"device": "cpu", "dtype": "float16", "trust_remote_code": True}
LOADING_WORDS = "--device cpu --dtype float16 --trust-remote-code"
READING: dict[str, Any] = {
    "kind": "STS",
    "columns": {"text1": "a"},
    "labels": {"yes": "1"},
    "train": Path("train.csv"),
    "limit": 20,
    "encoding": "utf-16",
    "prompts": "echo",
    "out": Path("r.jsonl"),
    "figure": Path("f.png"),
    "seed": 3,
}
READING_WORDS = (
    "--kind STS --column text1=a --label yes=1 --train train.csv --limit 20 --encoding utf-16 "
    "--prompts echo --out r.jsonl --figure f.png --seed 3"
)
DOCUMENT_WORDS = "--text-column body --id-column key --encoding utf-16 --batch-tokens 99"
DOCUMENTS: dict[str, Any] = {
    "text_column": "body",
    "id_column": "key",
    "encoding": "utf-16",
    "batch_tokens": 99,
    "workers": 2,
    "strict": True,
}

# A command line, the function that it calls, and the call.
CALLS = [
    (
        f"verify org/model --revision v2 {LOADING_WORDS}",
        "st_reba.hub.verify",
        call("org/model", revision="v2", report_step=ANY, **LOADING),
    ),
    (
        "info org/model --revision v2 --trust-remote-code",
        "st_reba.safety.load",
        call("org/model", device="cpu", dtype="auto", revision="v2", trust_remote_code=True),
    ),
    (
        "push folder org/name --private --revision branch --create-pr --message 'All of it' "
        "--dry-run --trust-remote-code",
        "st_reba.hub.push",
        call(
            Path("folder"),
            "org/name",
            private=True,
            revision="branch",
            create_pr=True,
            message="All of it",
            dry_run=True,
            trust_remote_code=True,
        ),
    ),
    (
        "onnx org/model out --trust-remote-code",
        "st_reba.safety.load",
        call("org/model", device="cpu", dtype="float32", trust_remote_code=True),
    ),
    (
        f"evaluate org/model toy t.csv {READING_WORDS} {LOADING_WORDS}",
        "st_reba.evaluation.run.evaluate",
        call("org/model", ["toy", "t.csv"], loading=LOADING, **READING),
    ),
    (
        f"compare mini t.csv echo reba --metric paper {READING_WORDS} --dtype float16",
        "st_reba.evaluation.run.compare",
        call(
            "mini",
            "t.csv",
            ["echo", "reba"],
            metric="paper",
            loading={"dtype": "float16"},
            **READING,
        ),
    ),
    (
        "compare mini t.csv echo --vary layer=1,2 --device cpu --seed 3",
        "st_reba.evaluation.run.curve",
        call(
            "mini",
            "t.csv",
            ["echo"],
            "layer",
            [1, 2],
            metric=None,
            prompts=None,
            out=None,
            figure=None,
            seed=3,
            loading={"device": "cpu"},
        ),
    ),
    (
        "tune mini texts.txt out --sample 60 --for search --device cpu --dtype float16",
        "st_reba.evaluation.tune.tune",
        call(
            "mini",
            ["a", "b"],
            Path("out"),
            purpose="search",
            sample=60,
            max_cost=None,
            seed=0,
            report_step=ANY,
            device="cpu",
            dtype="float16",
        ),
    ),
    (
        f"encode org/model texts.txt {LOADING_WORDS}",
        "st_reba.safety.load",
        call("org/model", **LOADING),
    ),
    (
        f"index texts.txt out --model org/model {DOCUMENT_WORDS} --workers 2 --strict --overwrite "
        f"--factory Flat --parameters nprobe=2 --passages 9:1 --whiten --no-tokens {LOADING_WORDS}",
        "st_reba.index.Index.build",
        call(
            "org/model",
            "texts.txt",
            Path("out"),
            factory="Flat",
            parameters="nprobe=2",
            passages="9:1",
            whiten=True,
            tokens=False,
            overwrite=True,
            **DOCUMENTS,
            **LOADING,
        ),
    ),
    (
        f"index texts.txt out --model org/model --add {LOADING_WORDS}",
        "st_reba.index.Index.open",
        call(Path("out"), "org/model", **LOADING),
    ),
    (
        f"search out a --model org/model {LOADING_WORDS}",
        "st_reba.index.Index.open",
        call(Path("out"), "org/model", **LOADING),
    ),
    (
        f"prune out a --model org/model {LOADING_WORDS}",
        "st_reba.index.Index.open",
        call(Path("out"), "org/model", **LOADING),
    ),
    (
        "serve org/model --index i --name n --host ::1 --port 1 --batch-size 2 --max-body 3 "
        f"--max-tokens 4 --queue 5 {LOADING_WORDS}",
        "st_reba.serve.serve",
        call(
            "org/model",
            index=Path("i"),
            host="::1",
            port=1,
            name="n",
            limits={"batch_size": 2, "max_body": 3, "max_tokens": 4, "queue": 5},
            **LOADING,
        ),
    ),
    (
        f"explore mini 'mini echo' --index i --host ::1 --port 1 --open {LOADING_WORDS}",
        "st_reba.explore.launch",
        call(
            ["mini", "mini echo"],
            index=Path("i"),
            host="::1",
            port=1,
            open_browser=True,
            **LOADING,
        ),
    ),
]


@pytest.fixture(autouse=True)
def texts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has a file of texts."""
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a\nb\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("command_line", "function", "expected_call"),
    CALLS,
    ids=[f"{words.split()[0]}: {function}" for words, function, _ in CALLS],
)
def test_a_command_hands_on_its_options(
    command_line: str, function: str, expected_call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_function = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr(function, failing_function)
    assert main(shlex.split(command_line)) == 1
    assert failing_function.mock_calls == [expected_call]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What is loaded, whatever the name."""
    loaded_model = Mock()
    monkeypatch.setattr("st_reba.safety.load", Mock(return_value=loaded_model))
    return loaded_model


@pytest.mark.parametrize(
    ("command_line", "function", "texts", "options"),
    [
        (
            "encode m texts.txt --task query --batch-tokens 99",
            "st_reba.encode.encode_texts",
            ["a", "b"],
            {"task": "query", "batch_tokens": 99, "progress": ANY},
        ),
        (
            "encode m texts.txt --task query --batch-tokens 99 --word a",
            "st_reba.words.encode_words",
            [("a", (0, 1))],
            {"task": "query", "batch_tokens": 99},
        ),
    ],
    ids=["texts", "words"],
)
def test_encode_hands_on_what_it_encodes(
    command_line: str,
    function: str,
    texts: list[Any],
    options: dict[str, Any],
    model: Mock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing_function = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr(function, failing_function)
    assert main(command_line.split()) == 1
    assert failing_function.mock_calls == [call(model, texts, **options)]


@pytest.mark.parametrize("is_strict", [False, True])
def test_encode_hands_on_a_corpus(
    is_strict: bool, model: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("records.jsonl").write_text(
        '{"key": "x", "body": "a"}\n{"key": "x", "body": "b"}\n', encoding="utf-8"
    )
    encode_corpus = Mock(side_effect=ValueError("enough"))
    monkeypatch.setattr("st_reba.corpus.encode_corpus", encode_corpus)
    words = "--text-column body --id-column key --passages 9:1 --workers 2 --batch-tokens 99"
    command_line = ["encode", "m", "records.jsonl", "--out", "corpus", "--overwrite"]
    command_line += [*words.split(), *(["--strict"] if is_strict else [])]
    assert main(command_line) == 1
    ((_, source, _), _) = encode_corpus.call_args
    options = {"passages": "9:1", "workers": 2, "batch_tokens": 99, "overwrite": True}
    assert encode_corpus.mock_calls == [
        call(model, source, Path("corpus"), dtype="float32", **options)
    ]
    if is_strict:
        with pytest.raises(ValueError, match="x"):
            list(source.read())
    else:
        document, reject = source.read()
        assert (document.id, document.text) == ("x", "a")
        assert reject.kind == "id used twice"


@pytest.fixture
def opened_index(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Takes the place of every index; it fails at what it is asked for."""
    opened_index = Mock()
    for method in ("add", "upsert", "search", "compact", "export"):
        getattr(opened_index, method).side_effect = ValueError("enough")
    monkeypatch.setattr("st_reba.index.Index.open", Mock(return_value=opened_index))
    return opened_index


@pytest.mark.parametrize(
    ("command_line", "expected_call"),
    [
        (
            f"index texts.txt i --add {DOCUMENT_WORDS} --workers 2 --strict",
            call.add("texts.txt", **DOCUMENTS),
        ),
        (
            f"index texts.txt i --upsert {DOCUMENT_WORDS} --workers 2 --strict",
            call.upsert("texts.txt", **DOCUMENTS),
        ),
        (
            "search i a -k 3 --where year>1 --mode words --explain",
            call.search("a", 3, where={"year": {">": 1}}, mode="words", explain=True),
        ),
        (
            "prune i --compact --whiten --no-tokens",
            call.compact(whiten=True, tokens=False),
        ),
        ("export i x.faiss --overwrite", call.export(Path("x.faiss"), overwrite=True)),
    ],
    ids=["add", "upsert", "search", "compact", "export"],
)
def test_a_command_hands_on_what_an_index_does(
    command_line: str, expected_call: Any, opened_index: Mock
) -> None:
    assert main(command_line.split()) == 1
    assert opened_index.mock_calls == [expected_call]
