"""build and info: what they make, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import TEXTS, Refused, Run
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.filters import postfilter_of


def test_build(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    status, printed, _ = run("build", "mini", out)
    assert status == 0 and printed.splitlines()[0].split() == ["base", "mini"]
    wanted = st_reba.build("mini").encode(TEXTS)
    assert np.allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), wanted, atol=1e-5)
    status, again, _ = run("info", out)
    assert (
        status == 0 and printed == f"{again}\nsaved: SentenceTransformer({str(out)!r}) loads it after import st_reba\n"
    )
    about = json.loads(run("info", out, "--json")[1])
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
    status, out, err = run("build", "mini", tmp_path, *arguments.split(), "--json", "--no-golden")
    assert status == 0, err
    model = SentenceTransformer(str(tmp_path), device="cpu")
    assert st_reba.spec_of(model) == st_reba.spec_of(st_reba.build("mini", check=False, **options))
    assert {name: text for name, text in model.prompts.items() if text} == json.loads(out)["prompts"]
    # The numbers of a type that was asked for are those that are stored.
    assert json.loads(out)["dtype"] == ("float16" if "float16" in arguments else "bfloat16")
    assert not (tmp_path / "golden.json").exists()


def test_a_field_overrides_a_recipe_both_ways(run: Run, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("base: mini\nmethod: echo\nnormalize: false\ncompute_matched: true\n")
    run("build", tmp_path / "r.yaml", tmp_path / "m", "--normalize", "--no-compute-matched", "--no-golden")
    assert str(st_reba.spec_of(SentenceTransformer(str(tmp_path / "m"), device="cpu"))) == "echo"


def test_build_with_a_postfilter(run: Run, refused: Refused, tmp_path: Path) -> None:
    model = st_reba.build("mini", "classical", pooling="mean")
    texts = [f"第{n}个文件" for n in range(120)]
    postfilter_of(model, texts, "center").save(tmp_path / "f.safetensors")
    how = ("--method", "classical", "--pooling", "mean", "--stage")
    assert run("build", "mini", tmp_path / "model", *how, f"filter:file={tmp_path / 'f.safetensors'}")[0] == 0
    wanted = st_reba.fit_postfilter(model, texts, "center").encode(TEXTS)
    got = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS)
    assert np.allclose(got, wanted, atol=1e-5) and not np.allclose(got, model.encode(TEXTS), atol=0.1)
    gone = tmp_path / "gone.safetensors"
    assert "gone.safetensors" in refused("build", "mini", tmp_path / "no", "--stage", f"filter:file={gone}")


def test_build_does_not_write_over(run: Run, refused: Refused, tmp_path: Path) -> None:
    out = tmp_path / "model"
    out.mkdir()
    assert run("build", "mini", out)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert "give another path, or --overwrite to replace" in refused("build", "mini", out, "--method", "echo")
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert run("build", "mini", out, "--method", "echo", "--overwrite", "--quiet") == (0, "", "")
    assert json.loads(run("info", out, "--json")[1])["method"] == "echo"
    file = tmp_path / "file"
    file.write_text("mine")
    for more in ([], ["--overwrite"]):
        assert "file is there" in refused("build", "mini", file, *more)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # An option that the method has not is refused, and the method that has it is named.
        ("--method echo --chunk 3", ["echo: --chunk 3", "of reba"]),
        ("--setting mask0-bidir --k 2", ["reba: --setting 'mask0-bidir'", "--method 'nosink'"]),
        ("--method echo:pooling=mean --pooling last", ["echo:pooling=mean"]),
        ("--pooling cls", ["--pooling 'cls'", "'last' or 'mean'"]),
        ("--repeats 3 --template echo", ["--repeats 3", "template"]),
        ("--template {text", ["{text", "brace"]),
        ("--stage prepend:layers=9", ["prepend", "9"]),
        ("--stage prepend:layers=2 --stage prepend", ["'prepend'", "Keep one"]),
        ("--max-seq-length nan", ["--max-seq-length 'nan'", "whole number"]),
        ("--max-seq-length 4000", ["4000", "1024"]),
        ("--max-seq-length 2", ["2"]),
        ("--prompt query", ["--prompt", "'query'", "NAME=TEXT"]),
        ("--layer 3", ["--layer"]),
        ("--tokenizer ./nowhere", ["--tokenizer", "nowhere"]),
    ],
)
def test_bad_options_of_build(refused: Refused, tmp_path: Path, arguments: str, words: list[str]) -> None:
    message = refused("build", "mini", tmp_path / "out", *arguments.split())
    assert [word for word in words if word not in message] == [], message
    assert not (tmp_path / "out").exists()


def test_bad_bases(refused: Refused, saved: Path, tmp_path: Path) -> None:
    assert "is a file" in refused("build", saved / "texts.txt", tmp_path / "out")
    assert "BASE" in refused("build")
    # The message of an unreachable Hub is several lines long; the command's is one.
    for name in ("org/no-such-model", str(saved / "nowhere")):
        assert repr(name) in refused("build", name, tmp_path / "out")


def test_info_and_verify_of_what_is_no_model(refused: Refused, saved: Path, tmp_path: Path) -> None:
    for command in ("info", "verify"):
        for path in (saved / "texts.txt", tmp_path, EMBEDDED["mini"], "mini", "no-such-model", "org/no-such-model"):
            assert str(path) in refused(command, path)
    assert "more" in refused("info", saved / "model", "more")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "modules.json"])
def test_damaged_model(refused: Refused, copied: Path, name: str) -> None:
    model = copied / "model"
    for content in (b"garbage" * 10, None):
        (model / name).unlink()
        if content is not None:
            (model / name).write_bytes(content)
        assert str(model) in refused("encode", model, copied / "texts.txt", "--json")
