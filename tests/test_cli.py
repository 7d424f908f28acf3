"""The command line: every command does its work, and every mistake ends in one line on stderr and status 2."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba import cli
from st_reba.bases import EMBEDDED
from st_reba.corpus import part as corpus_part
from st_reba.encode import Task
from st_reba.filters import postfilter_of
from st_reba.index import Index
from st_reba.modules import Stage
from st_reba.spec import METHODS

COMMANDS = (
    "demo",
    "build",
    "zoo",
    "encode",
    "words",
    "encode-corpus",
    "index",
    "search",
    "add",
    "upsert",
    "delete",
    "compact",
    "export",
    "info",
    "verify",
    "push",
    "export-onnx",
    "evaluate",
    "report",
    "compose",
    "compare",
    "attention",
    "postfilter",
)
ROOT = Path(st_reba.__file__).parents[1]
TEXTS = ["A cat sleeps on the warm roof.", "The ship left the harbour.", "银行昨天提高了存款利率。"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not there is not asked of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command: exit status, stdout and stderr; a mistake that ends in a traceback fails the test."""

    def call(*arguments: object, stdin: str | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capfd.readouterr()
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Run a command that must fail cleanly: status 2, nothing on stdout, one line of message, which is returned."""

    def call(*arguments: object, **kwargs: Any) -> str:
        status, out, err = run(*arguments, **kwargs)
        assert status == 2
        assert out == "" and "Traceback" not in err
        lines = err.strip().splitlines()
        if lines[0].startswith("usage: "):
            assert lines[-1].startswith("st-reba") and ": error: " in lines[-1]
        else:
            assert len(lines) == 1 and lines[0].startswith("st-reba: ")
        return lines[-1]

    return call


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and an index beside each other; not to be changed."""
    folder = tmp_path_factory.mktemp("saved")
    model = st_reba.build("mini", pooling="mean", prompts={"query": "Query: "})
    model.save_pretrained(str(folder / "model"))
    Index.build(model, TEXTS, folder / "index", model_source=folder / "model").close()
    (folder / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def model(saved: Path) -> SentenceTransformer:
    return SentenceTransformer(str(saved / "model"), device="cpu")


# Help and names


@pytest.mark.parametrize("command", COMMANDS)
def test_help(run: Run, command: str) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0 and out.startswith(f"usage: st-reba {command}")
    assert "example:\n" in out and re.search(rf"\n  (.*\| )?st-reba {command}", out)
    assert out.count("\n  --help") + out.count("-h, --help") == 1


def test_help_of_all(run: Run, refused: Callable[..., str]) -> None:
    status, out, _ = run("--help")
    assert status == 0 and [command for command in COMMANDS if command not in out] == []
    assert "st-reba demo" in out
    assert run("--version")[1].split() == ["st-reba", st_reba.__version__]
    assert "COMMAND" in refused()
    assert "'rebuild'" in refused("rebuild")


def test_help_is_light() -> None:
    """It imports no library that takes seconds."""
    code = (
        "import sys\nfrom st_reba import cli\ntry:\n    cli.main(['build', '--help'])\nexcept SystemExit:\n    pass\n"
    )
    code += "print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    imported = found.stdout.splitlines()[-1].split()
    assert "st_reba.cli.models" in imported
    assert not {"torch", "transformers", "sentence_transformers", "numpy"} & set(imported)


def test_build_offers_every_field_of_every_method(run: Run) -> None:
    shown = run("build", "--help")[1]
    for kinds in METHODS.values():
        for kind in kinds:
            assert [
                name for name in kind.names() if f"--{name.replace('_', '-')} " not in shown.replace(",", " ")
            ] == []
    assert [name for name in Stage.registry if name not in shown] == []
    for task in get_args(Task):
        assert cli.parser().parse_args(["encode", "model", "--task", task]).task == task


# build and info


def test_build(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    status, printed, _ = run("build", "mini", out)
    assert status == 0 and printed.splitlines()[0].split() == ["base", "mini"]
    wanted = st_reba.build("mini").encode(TEXTS)
    assert np.allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), wanted, atol=1e-5)
    status, again, _ = run("info", out)
    assert (status, again) == (0, printed)
    status, printed, _ = run("info", out, "--json")
    assert status == 0
    about = json.loads(printed)
    assert (about["method"], about["copies"], about["tokens_per_copy"]) == ("reba", 2, 511)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (
            "--repeats 3 --pooling mean --variant published --no-normalize --max-seq-length 99 --dtype float16",
            {"repeats": 3, "pooling": "mean", "variant": "published", "normalize": False, "max_seq_length": 99},
        ),
        (
            "--template {text}/{text} --include-special --normalize-weights --prompt query=Q:= --prompt document=",
            {
                "template": "{text}/{text}",
                "include_special": True,
                "normalize_weights": True,
                "prompts": {"query": "Q:=", "document": ""},
            },
        ),
        (
            "--method echo --template {instruction}:{text}/{text} --instruction find --span end --compute-matched",
            {
                "method": "echo",
                "template": "{instruction}:{text}/{text}",
                "instruction": "find",
                "span": "end",
                "compute_matched": True,
            },
        ),
        (
            "--method nosink --setting mask0-bidir --k 2 --stage prepend:layers=2 --stage read:layers=5",
            {
                "method": "nosink",
                "setting": "mask0-bidir",
                "k": 2,
                "stages": [st_reba.Prepend(2), st_reba.ReadLayers(5)],
            },
        ),
        ("--method prompteol+ensemble:templates=contrastive", {"method": "prompteol+ensemble:templates=contrastive"}),
    ],
    ids=["reba", "special", "echo", "stages", "short"],
)
def test_options_of_build(run: Run, tmp_path: Path, arguments: str, options: dict[str, Any]) -> None:
    status, out, _ = run("build", "mini", tmp_path, *arguments.split(), "--json", "--no-golden")
    assert status == 0
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert st_reba.spec_of(model) == st_reba.spec_of(st_reba.build("mini", check=False, **options))
    assert {name: text for name, text in model.prompts.items() if text} == json.loads(out)["prompts"]
    # The numbers of a type that was asked for are those that are stored.
    assert json.loads(out)["dtype"] == ("float16" if "float16" in arguments else "bfloat16")


def test_build_with_a_postfilter(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    how = ("--method", "classical", "--pooling", "mean")
    model = st_reba.build("mini", "classical", pooling="mean")
    texts = [f"第{n}个文件" for n in range(120)]
    postfilter_of(model, texts, "center").save(tmp_path / "f.safetensors")
    assert (
        run("build", "mini", tmp_path / "model", *how, "--stage", f"filter:file={tmp_path / 'f.safetensors'}")[0] == 0
    )
    wanted = st_reba.fit_postfilter(model, texts, "center").encode(TEXTS)
    got = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    assert np.allclose(got, wanted, atol=1e-5) and not np.allclose(got, model.encode(TEXTS), atol=0.1)
    assert "gone.safetensors" in refused(
        "build", "mini", tmp_path / "no", "--stage", f"filter:file={tmp_path / 'gone.safetensors'}"
    )


def test_build_does_not_write_over(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    assert run("build", "mini", out)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert "--overwrite" in refused("build", "mini", out, "--method", "echo")
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert run("build", "mini", out, "--method", "echo", "--overwrite")[0] == 0
    assert json.loads(run("info", out, "--json")[1])["method"] == "echo"


def test_failed_build_writes_nothing(refused: Callable[..., str], tmp_path: Path) -> None:
    for arguments in (
        ["mini", tmp_path / "out", "--max-seq-length", "2"],
        ["mini", tmp_path / "out", "--pooling", "cls"],
        [tmp_path / "nowhere", tmp_path / "out"],
    ):
        refused("build", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method rebar", ["'rebar'", "Did you mean 'reba'", "prompteol"]),
        ("--pooling cls", ["pooling='cls'", "'last' or 'mean'"]),
        # An option that the method has not is refused, and those that it has are named.
        ("--method echo --chunk 3", ["echo: chunk", "pooling", "compute_matched"]),
        ("--setting mask0-bidir --k 2", ["reba: setting", "pooling"]),
        ("--method echo:pooling=mean --pooling last", ["echo:pooling=mean"]),
        ("--dtype float8", ["'float8'", "bfloat16"]),
        ("--repeats two", ["repeats='two'", "from 1 to 64"]),
        ("--repeats 3 --template echo", ["repeats=3", "template"]),
        ("--template {text", ["{text", "brace"]),
        ("--stage prepend:layers=9", ["prepend", "9"]),
        ("--stage prepent:layers=2", ["Did you mean 'prepend'"]),
        ("--stage prepend:layers=2 --stage prepend", ["'prepend'", "Keep one"]),
        ("--max-seq-length nan", ["max_seq_length='nan'", "whole number"]),
        ("--max-seq-length 4000", ["4000", "1024"]),
        ("--prompt query", ["--prompt", "'query'", "NAME=TEXT"]),
        ("--layer 3", ["--layer"]),
    ],
)
def test_bad_options_of_build(refused: Callable[..., str], tmp_path: Path, arguments: str, words: list[str]) -> None:
    message = refused("build", "mini", tmp_path / "out", *arguments.split())
    assert [word for word in words if word not in message] == []
    assert not (tmp_path / "out").exists()


def test_bad_bases(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    assert "is a file" in refused("build", saved / "texts.txt", tmp_path / "out")
    assert "BASE" in refused("build")
    # The message of an unreachable Hub is several lines long; the command's is one.
    for name in ("no-such-model", str(saved / "nowhere")):
        message = refused("build", name, tmp_path / "out")
        assert repr(name) in message and "mini" in message


def test_operands_behind_options(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "late.npy"
    assert cli.main(["encode", str(saved / "model"), "--out", str(out), str(saved / "texts.txt")]) == 0
    assert out.is_file()
    assert cli.main(["search", str(saved / "index"), "ship", "-k", "1", "cat", "--json"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()[-2:]) == 2
    with pytest.raises(SystemExit):
        cli.main(["info", str(saved / "model"), "more"])


def test_build_onto_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for arguments in ([], ["--overwrite"]):
        message = refused("build", "mini", file, *arguments)
        assert "file is there" in message and "Errno" not in message
    assert file.read_text() == "mine"


def test_info_on_what_is_no_model(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    for path in (saved / "texts.txt", tmp_path, EMBEDDED["mini"], "mini", "no-such-model"):
        message = refused("info", path)
        assert repr(str(path)) in message and "st-reba build" in message


# encode


def test_encode_to_a_file(run: Run, saved: Path, model: SentenceTransformer, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    for arguments, wanted in (
        ([], model.encode(TEXTS)),
        (["--batch-size", "1"], model.encode(TEXTS)),
        (["--batch-tokens", "1"], model.encode(TEXTS)),
        (["--task", "query"], model.encode_query(TEXTS)),
        (["--task", "document"], model.encode_document(TEXTS)),
        (["--prompt", "Query: "], model.encode_query(TEXTS)),
        (["--dtype", "float32", "--device", "cpu"], model.encode(TEXTS)),
    ):
        status, printed, err = run("encode", saved / "model", saved / "texts.txt", "--out", out, *arguments)
        assert (status, err) == (0, "") and "3 vectors of 192" in printed and str(out) in printed
        assert np.allclose(np.load(out), wanted, atol=1e-5)


def test_encode_to_json(run: Run, saved: Path, model: SentenceTransformer) -> None:
    status, out, err = run("encode", saved / "model", saved / "texts.txt", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "") and [line["text"] for line in lines] == TEXTS
    assert np.allclose([line["vector"] for line in lines], model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("file", [["-"], []])
def test_encode_standard_input(run: Run, saved: Path, model: SentenceTransformer, file: list[str]) -> None:
    status, out, _ = run("encode", saved / "model", *file, "--json", stdin="\n".join(TEXTS) + "\r\n\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["text"] for line in lines] == TEXTS
    assert np.allclose([line["vector"] for line in lines], model.encode(TEXTS), atol=1e-5)


def test_encode_a_column(run: Run, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("body,id\none,1\ntwo,2\n")
    status, out, _ = run("encode", saved / "model", tmp_path / "a.csv", "--text-column", "body", "--json")
    assert status == 0 and [json.loads(line)["text"] for line in out.splitlines()] == ["one", "two"]


@pytest.mark.slow
def test_encode_stops_when_its_reader_does(saved: Path) -> None:
    """A pipe that is closed early, as by `head`, is no error."""
    command = [sys.executable, "-m", "st_reba.cli", "encode", str(saved / "model"), "-", "--json"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b"a text\n" * 60)
        process.stdin.close()
        assert json.loads(process.stdout.readline())["text"] == "a text"
        process.stdout.close()
        assert process.wait(60) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("command", ["encode", "index"])
def test_sizes_of_batches(
    run: Run, refused: Callable[..., str], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What is given reaches the model; both at once are refused, and the help tells the two apart."""
    arguments = [command, saved / "model", saved / "texts.txt", *(["--out"] if command == "encode" else [])]
    sizes: list[int] = []
    real = SentenceTransformer.encode

    def encode(self: SentenceTransformer, *texts: Any, **options: Any) -> Any:
        sizes.append(options["batch_size"])
        return real(self, *texts, **options)

    monkeypatch.setattr(SentenceTransformer, "encode", encode)
    for number, (given, wanted) in enumerate([(["--batch-tokens", "1"], [1, 1, 1]), (["--batch-size", "7"], [7])]):
        sizes.clear()
        assert run(*arguments, tmp_path / f"{number}.npy", *given)[0] == 0
        # The probes of an index are not asked for any size.
        assert [size for size in sizes if size != 32] == [
            min(size, len(TEXTS)) if command == "index" else size for size in wanted
        ]
    message = refused(*arguments, tmp_path / "both.npy", "--batch-tokens", "512", "--batch-size", "8")
    assert "--batch-size" in message and "--batch-tokens" in message and "not allowed" in message
    shown = " ".join(run(command, "--help")[1].split())
    assert "default: 4096" in shown and "5 % is padding" in shown and "[--batch-tokens N | --batch-size N]" in shown


# index and search

FILES = {
    "a.txt": "\n".join(TEXTS),
    "a.jsonl": "\n".join(json.dumps({"text": text, "id": f"d{row}", "row": row}) for row, text in enumerate(TEXTS)),
    "a.csv": "id,text,row\n" + "\n".join(f"d{row},{text},{row}" for row, text in enumerate(TEXTS)),
    "a.tsv": "id\ttext\trow\n" + "\n".join(f"d{row}\t{text}\t{row}" for row, text in enumerate(TEXTS)),
}


@pytest.mark.parametrize("name", FILES)
def test_index_and_search(run: Run, saved: Path, model: SentenceTransformer, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    status, out, _ = run("index", saved / "model", tmp_path / name, tmp_path / "index")
    assert status == 0 and "3 vectors of 192" in out
    queries = ["银行", "a cat on a roof"]
    status, out, err = run("search", tmp_path / "index", *queries, "-k", 2, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "") and [each["query"] for each in found] == queries
    scores = model.encode_query(queries) @ model.encode_document(TEXTS).T
    for each, row in zip(found, scores, strict=True):
        order = np.argsort(-row)[:2]
        assert [result["rank"] for result in each["results"]] == [1, 2]
        assert [result["text"] for result in each["results"]] == [TEXTS[one] for one in order]
        assert [result["id"] for result in each["results"]] == [
            str(one) if name == "a.txt" else f"d{one}" for one in order
        ]
        assert np.allclose([result["score"] for result in each["results"]], row[order], atol=1e-4)
        if name != "a.txt":
            assert [int(result["metadata"]["row"]) for result in each["results"]] == order.tolist()
    status, out, _ = run("search", tmp_path / "index", queries[0])
    lines = out.splitlines()
    assert status == 0 and len(lines) == 3 and lines[0].split()[0] == "1."
    assert lines[0].endswith(found[0]["results"][0]["text"])


def test_index_again(run: Run, refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    arguments = ["index", saved / "model", saved / "texts.txt", tmp_path / "index"]
    status, out, _ = run(*arguments, "--json")
    assert status == 0
    built = {"path": str(tmp_path / "index"), "documents": 3, "dimension": 192, "metric": "cosine", "factory": "Flat"}
    report = json.loads(out)
    assert {key: report[key] for key in built} == built
    assert (report["recall"], report["rejected"]) == (None, {})
    before = (tmp_path / "index" / "index.sqlite").read_bytes()
    assert "already there" in refused(*arguments)
    assert (tmp_path / "index" / "index.sqlite").read_bytes() == before
    assert run(*arguments, "--overwrite")[0] == 0
    assert "not an index" in refused(*arguments[:3], saved / "model", "--overwrite")


def test_messages_name_the_options_of_the_command(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    arguments = ["index", saved / "model", saved / "texts.txt"]
    assert "--overwrite" in refused(*arguments, saved / "index")
    (tmp_path / "a.csv").write_text("words\nx\n")
    assert "--text-column" in refused("index", saved / "model", tmp_path / "a.csv", tmp_path / "index")


def test_queries_of_a_file_and_conditions(
    run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries come from a file, from standard input, or are asked for; conditions choose among documents."""
    (tmp_path / "a.csv").write_text(FILES["a.csv"], encoding="utf-8")
    assert run("index", saved / "model", tmp_path / "a.csv", tmp_path / "index")[0] == 0
    (tmp_path / "queries.txt").write_text("ship\n\ncat\n")
    search = ["search", tmp_path / "index", "--ids-only", "--json"]
    out = run(*search, "--queries", tmp_path / "queries.txt", "--where", "row>=1")[1]
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["query"] for each in found] == ["ship", "cat"]
    assert all({result["id"] for result in each["results"]} == {"d1", "d2"} for each in found)
    assert all(set(result) == {"rank", "score", "id"} for result in found[0]["results"])
    assert [
        json.loads(line) for line in run(*search, "--where", "row>=1", stdin="ship\ncat\n")[1].splitlines()
    ] == found
    monkeypatch.setattr(cli.index.sys.stdin, "isatty", lambda: True, raising=False)
    asked = iter(["ship", "cat", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(asked))
    again = [json.loads(line) for line in run(*search, "--where", "row>=1")[1].splitlines()]
    ids = [[[result["id"] for result in each["results"]] for each in every] for every in (again, found)]
    assert ids[0] == ids[1]


def test_ctrl_c_says_what_is_kept(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    real = corpus_part.encode_batch

    def interrupted(*arguments: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(corpus_part, "encode_batch", interrupted)
    arguments = ["index", saved / "model", saved / "texts.txt", tmp_path / "index", "--part-size", "1"]
    status, out, err = run(*arguments)
    assert (status, out) == (
        130,
        "",
    ) and "interrupted; 2 of 3 parts are encoded and kept; the same command goes on" in err
    assert run(*arguments)[0] == 0 and len(done) == 4


def test_life_of_an_index(run: Run, refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    """add, upsert, delete, compact, export, info and verify say what they did."""
    index = shutil.copytree(saved, tmp_path / "saved") / "index"
    (tmp_path / "more.jsonl").write_text('{"text": "Bread rises.", "id": "b"}\n{"text": "new", "id": "0"}\n')
    out = run("add", index, tmp_path / "more.jsonl")[1]
    assert "1 added, set aside: 1 id in the index" in out and "st-reba upsert" in out and "4 documents" in out
    assert "1 replaced, 1 unchanged; 4 documents" in run("upsert", index, tmp_path / "more.jsonl")[1]
    assert "nope" in refused("delete", index, "b", "nope")
    assert json.loads(run("delete", index, "b", "--json")[1])["deleted"] == 1
    about = json.loads(run("info", index, "--json")[1])
    assert (about["documents"], about["pending"], about["deleted"]) == (3, 1, 2)
    assert "2 vectors removed from the disk; 3 documents" in run("compact", index)[1]
    assert "3 vectors" in run("export", index, tmp_path / "out.parquet")[1]
    assert "--overwrite" in refused("export", index, tmp_path / "out.parquet")
    assert "3 documents and 3 vectors are as they were written" in run("verify", index)[1]
    assert "dimension     192" in run("info", index)[1]


def test_model_and_index_move_together(run: Run, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(saved, tmp_path / "one")
    wanted = run("search", saved / "index", "ship")[1]
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    shutil.move(tmp_path / "one", tmp_path / "elsewhere" / "two")
    monkeypatch.chdir(tmp_path / "elsewhere" / "deep")
    status, out, err = run("search", "../two/index", "ship")
    assert (status, err) == (0, "") and out == wanted
    monkeypatch.chdir(tmp_path / "elsewhere" / "two")
    assert run("search", "index", "ship")[1] == wanted
    shutil.move("model", "renamed")
    assert run("search", "index", "ship", "--model", "renamed")[1] == wanted


@pytest.mark.parametrize("absolute", [True, False])
def test_model_that_is_gone(
    refused: Callable[..., str], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absolute: bool
) -> None:
    """The remembered folder is not taken for a Hub id, whatever its name: --model is asked for."""
    shutil.copytree(saved / "index", tmp_path / "index")
    monkeypatch.chdir(tmp_path)
    message = refused("search", tmp_path / "index" if absolute else "index", "ship")
    assert "--model" in message and "model'" in message
    assert "huggingface" not in message and "Repo id" not in message


def test_index_without_its_model_named(
    refused: Callable[..., str], run: Run, model: SentenceTransformer, saved: Path, tmp_path: Path
) -> None:
    Index.build(model, TEXTS, tmp_path / "index").close()
    assert "--model" in refused("search", tmp_path / "index", "ship")
    assert run("search", tmp_path / "index", "ship", "--model", saved / "model")[0] == 0


def test_other_model_is_refused(run: Run, refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    assert run("build", "mini", tmp_path / "other", "--method", "classical")[0] == 0
    message = refused("search", saved / "index", "ship", "--model", tmp_path / "other")
    assert "differ" in message and "probe texts" in message


def test_query_of_a_template_with_an_instruction(run: Run, saved: Path, tmp_path: Path) -> None:
    """A model whose queries need an instruction can be searched with, too."""
    assert run("build", "mini", tmp_path / "model", "--method", "echo", "--template", "echo-instruct")[0] == 0
    assert run("index", tmp_path / "model", saved / "texts.txt", tmp_path / "index")[0] == 0
    status, out, err = run("search", tmp_path / "index", "ship", "--prompt", "Find the sentence", "--json")
    assert (status, err) == (0, "") and len(json.loads(out)["results"]) == 3


# Mistakes


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, ["missing.txt", "no such file"]),
        ("empty.txt", "", ["empty|no documents"]),
        ("a.json", "{}", ["a.json", "'.json'", ".jsonl"]),
        ("folder", None, ["folder", ".txt"]),
        ("bad.csv", "words\nx\n", ["bad.csv", "line 1", "no column", "'words'"]),
        ("wide.csv", "text\na,b\n", ["wide.csv", "line 2"]),
        ("bad.jsonl", '{"text": "x"}\nnot json\n', ["bad.jsonl", "line 2", "JSON"]),
        ("nan.jsonl", '{"text": NaN}\n', ["nan.jsonl", "line 1", "number"]),
        ("key.jsonl", '{"words": "x"}\n', ["key.jsonl", "line 1", "'words'"]),
        ("latin.txt", b"caf\xe9\n", ["latin.txt", "line 1", "UTF-8"]),
    ],
)
def test_bad_files(
    refused: Callable[..., str], saved: Path, tmp_path: Path, name: str, content: str | bytes | None, words: list[str]
) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.iterdir())
    for arguments in (["encode", "--out", tmp_path / "v.npy"], ["index"]):
        rest = [tmp_path / "index", "--strict"] if arguments == ["index"] else arguments[1:]
        message = refused(arguments[0], saved / "model", tmp_path / name, *rest)
        assert [word for word in words if not any(part in message for part in word.split("|"))] == []
        assert sorted(tmp_path.iterdir()) == before


def test_ids_used_twice(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "id": "1"}\n{"text": "b", "id": "1"}\n')
    arguments = ["index", saved / "model", tmp_path / "a.jsonl", tmp_path / "index"]
    assert "used twice: '1'" in refused(*arguments, "--strict")


def test_bad_records_are_set_aside(run: Run, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\nnot json\n{"text": "b", "id": "0"}\n{"text": "c"}\n')
    status, out, _ = run("index", saved / "model", tmp_path / "a.jsonl", tmp_path / "index")
    assert status == 0 and "2 vectors" in out and "set aside: 1 wrong type, 1 id used twice" in out
    rejects = [json.loads(line) for line in run("info", tmp_path / "index", "--rejects", "--json")[1].splitlines()]
    assert [each["place"] for each in rejects] == ["a.jsonl, line 2", "record 2"]


def test_bad_options_of_encode(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    arguments = ["encode", saved / "model", saved / "texts.txt"]
    assert "--out" in refused(*arguments) and "--json" in refused(*arguments)
    assert "--out" in refused(*arguments, "--json", "--out", tmp_path / "v.npy")
    assert "does not exist" in refused(*arguments, "--out", tmp_path / "nowhere" / "v.npy")
    assert "'guess'" in refused(*arguments, "--json", "--task", "guess")
    for size in ("0", "-1", "nan", "1.5"):
        assert "--batch-size" in refused(*arguments, "--json", "--batch-size", size)
        assert "--batch-tokens" in refused(*arguments, "--json", "--batch-tokens", size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--json"], ["--out", "v.npy"]])
def test_nothing_on_standard_input(refused: Callable[..., str], saved: Path, arguments: list[str]) -> None:
    assert "empty" in refused("encode", saved / "model", "-", *arguments, stdin="\n \n")


def test_encode_onto_a_folder(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    message = refused("encode", saved / "model", saved / "texts.txt", "--out", tmp_path)
    assert "is a folder" in message and "Errno" not in message


def test_bad_options_of_search(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    for k in ("0", "-1", "nan", "1.5"):
        assert "-k" in refused("search", saved / "index", "ship", "-k", k)
    assert "QUERY" in refused("search", saved / "index", stdin="\n")
    assert "no index is there" in refused("search", tmp_path / "nowhere", "ship")
    assert "no index is there" in refused("search", saved / "model", "ship")
    assert "--where 'lang'" in refused("search", saved / "index", "ship", "--where", "lang")
    assert "'like'" in refused("search", saved / "index", "ship", "--where", '{"lang": {"like": "z"}}')


def test_search_in_a_file(refused: Callable[..., str], saved: Path) -> None:
    message = refused("search", saved / "texts.txt", "ship")
    assert "no index is there" in message and "Errno" not in message


def test_damaged_index(refused: Callable[..., str], saved: Path, tmp_path: Path) -> None:
    for name in ("vectors-1.faiss", "index.sqlite"):
        index = shutil.copytree(saved / "index", tmp_path / name)
        (index / name).write_bytes(b"garbage" * 100)
        assert name in refused("search", index, "ship", "--model", saved / "model")


@pytest.mark.parametrize("command", ["encode", "index", "search"])
def test_bad_models(refused: Callable[..., str], saved: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()

    def message(model: object) -> str:
        if command == "search":
            return refused("search", saved / "index", "ship", "--model", model)
        return refused(command, model, saved / "texts.txt", *out)

    out = [tmp_path / "index"] if command == "index" else ["--json"]
    assert "base model" in message("mini") and "st-reba build" in message("mini")
    for path in (tmp_path / "empty", EMBEDDED["mini"]):
        assert "modules.json" in message(path) and "st-reba build" in message(path)
    assert "texts.txt" in message(saved / "texts.txt") and "file" in message(saved / "texts.txt")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "no/where/at/all"])
def test_model_that_is_not_there(refused: Callable[..., str], saved: Path, name: str) -> None:
    message = refused("encode", name, saved / "texts.txt", "--json")
    assert f"MODEL={name!r}" in message


@pytest.mark.parametrize("command", ["build", "encode", "search"])
def test_device_that_is_not_there(refused: Callable[..., str], saved: Path, tmp_path: Path, command: str) -> None:
    arguments = {
        "build": ["mini", tmp_path / "out"],
        "encode": [saved / "model", saved / "texts.txt", "--json"],
        "search": [saved / "index", "ship"],
    }[command]
    assert "nonsense" in refused(command, *arguments, "--device", "nonsense")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "modules.json"])
def test_damaged_model(refused: Callable[..., str], saved: Path, tmp_path: Path, name: str) -> None:
    model = shutil.copytree(saved / "model", tmp_path / "model")
    for content in (b"garbage" * 10, None):
        (model / name).unlink()
        if content is not None:
            (model / name).write_bytes(content)
        assert str(model) in refused("encode", model, saved / "texts.txt", "--json")


def test_verbose_shows_errors_in_full(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="base model"):
        cli.main(["encode", "mini", str(saved / "texts.txt"), "--json", "--verbose"])
    with pytest.raises(FileNotFoundError):
        cli.main(["search", str(tmp_path / "nowhere"), "ship", "--verbose"])


def test_interrupt(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(SentenceTransformer, "encode", interrupt)
    status, _, err = run("encode", saved / "model", saved / "texts.txt", "--json")
    assert status == 130 and err.strip() == "st-reba: interrupted"
