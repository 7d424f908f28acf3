"""An exported folder as a repository: its card, its golden vectors, and what push takes and refuses."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from huggingface_hub import HfApi, ModelCard
from server import Hub

import st_reba
from st_reba import zoo
from st_reba.hub import onnx as exporting
from st_reba.hub.onnx.int8 import quantize
from st_reba.hub.push import push
from st_reba.hub.saving import save
from st_reba.hub.verify import verify
from st_reba.persistence import load

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("onnx")

# pytest would keep every record of the tracer, which are many.
logging.getLogger("torch.__trace").propagate = False

REPO = "org/model-onnx"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A recipe's model, saved, and exported with a graph of 8 bits; slow."""
    folder = tmp_path_factory.mktemp("recipe")
    loaded = zoo.load("mini-reba")
    save(st_reba.build("zoo:mini-reba", device="cpu"), folder / "model", about=loaded.about, name="mini-reba")
    model = load(folder / "model", device="cpu", dtype="float32")
    exporting.export_onnx(model, folder / "onnx", int8=True)
    return {"model": folder / "model", "onnx": folder / "onnx"}


@pytest.fixture(scope="module")
def tiny(base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query's graph of a tiny model, its weights beside it."""
    model = st_reba.build(
        base("gpt2", "bos"),
        "echo",
        template={"query": "Ask: {text} again {text}", "document": "{text} {text}"},
        prompts={"query": "Q: "},
        normalize=False,
        dtype="float32",
        device="cpu",
    )
    folder = tmp_path_factory.mktemp("tiny") / "onnx"
    exporting.export_onnx(model, folder, task="query", largest=0)
    return folder


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "onnx"))


def quiet(line: str) -> None:
    pass


def card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_card_of_a_recipe_s_graph(recipe: dict[str, Path]) -> None:
    text, torch_text = card(recipe["onnx"]), card(recipe["model"])
    data, torch_data = (cast(Any, ModelCard(each).data).to_dict() for each in (text, torch_text))
    assert data.pop("model_name") == "mini-reba-onnx" and torch_data.pop("model_name") == "mini-reba"
    assert set(data.pop("tags")) == {*torch_data.pop("tags"), "onnx"}
    assert data == torch_data and data["library_name"] == "sentence-transformers" and data["license"] == "apache-2.0"
    assert "\n# mini with ReBA (mean), as one ONNX graph\n" in text and "st-reba verify path/to/model\n" in text
    (recipe_text,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert recipe_text in torch_text and "method: reba" in recipe_text
    licence = torch_text.partition("## Licence")[2].partition("\nThe code of")[0].strip()
    assert licence and licence in text
    measured = json.loads((recipe["onnx"] / "onnx" / "model_quantized.json").read_text(encoding="utf-8"))
    for name in ("alone_against_float32", "batched_against_float32", "batched_against_alone"):
        assert f"| {measured[name]['min']} | {measured[name]['mean']} |" in text
    assert f"{measured['bytes']['int8']:,} bytes" in text
    assert "None" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for word in ("{{", "/work", "/tmp", "/home", "import st_reba", "encode_query` does", "\n\n\n"):
        assert word not in text, word


@pytest.mark.slow
def test_the_card_says_what_is_asked_and_what_stands_around_it(tiny: Path) -> None:
    text = card(tiny)
    assert (
        'the model\'s `encode_query` does: the template `"Ask: {text} again {text}"`, with the prompt `"Q: "`' in text
    )
    assert "It embeds queries only; documents need a graph of their own." in text
    assert "model_quantized" not in text and "np.linalg.norm" not in text
    assert "| length of a vector | not scaled |" in text


@pytest.mark.slow
def test_the_card_s_example_runs(recipe: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def fetched(repo: str, *, revision: str) -> str:
        asked.append((repo, revision))
        return str(recipe["onnx"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    (block,) = re.findall(r"```python\n(.*?)```", card(recipe["onnx"]), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    wanted = load(recipe["model"], device="cpu", dtype="float32").encode(names["texts"])
    assert asked == [("path/to/model", "main")] and np.abs(names["vectors"] - wanted).max() < 1e-5


@pytest.mark.slow
def test_another_graph_is_found(recipe: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recipe["onnx"], tmp_path / "onnx"))
    assert verify(folder).ok
    rounded = folder / "onnx" / "model_quantized.onnx"
    shutil.copy(rounded, folder / "onnx" / "model.onnx")
    report = verify(folder)
    assert not report.ok and all(each.difference > 1e-4 for each in report.texts)


@pytest.mark.slow
def test_pushed_and_verified_by_name(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its golden vectors are checked in a fresh process on the way."""
    said: list[str] = []
    quantize(folder, ["One text.", "第二个。"])
    pushed = push(folder, REPO, say=said.append)
    files = hub.repos[REPO].files()
    assert {"README.md", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_quantized.onnx"} < set(pushed.files)
    assert set(pushed.files) == set(files) - {".gitattributes"}
    assert not any(path.endswith((".py", ".safetensors")) for path in files)
    assert any(line.endswith("onnx/model.onnx_data") for line in said)
    assert "Checking the golden vectors in a process of its own ..." in said
    assert 'snapshot_download("org/model-onnx", revision="main")' in files["README.md"].data.decode()
    report = verify(REPO, revision=pushed.commit, cache_folder=str(tmp_path / "cache"))
    assert report.ok and report.graph == "onnx/model.onnx"
    assert report.rounded is not None
    # Only what is run is fetched.
    assert not list((tmp_path / "cache").rglob("model_quantized.json"))
    assert push(folder, REPO, say=said.append).unchanged
    # A graph that is no longer there goes; what no loader reads stays.
    HfApi().upload_file(path_or_fileobj=b"by hand", path_in_repo="notes/about.txt", repo_id=REPO)
    (folder / "onnx" / "model_quantized.onnx").unlink()
    assert push(folder, REPO, verify=False, say=quiet).removed == ("onnx/model_quantized.onnx",)
    assert "notes/about.txt" in hub.repos[REPO].files()


@pytest.mark.slow
def test_a_graph_that_changed_is_not_published(hub: Hub, folder: Path) -> None:
    data = folder / "onnx" / "model.onnx_data"
    content = bytearray(data.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    data.write_bytes(content)
    with pytest.raises(ValueError, match=r"does not give its golden vectors.*\d+ of \d+ texts differ"):
        push(folder, REPO, say=quiet)
    assert hub.repos == {}


@pytest.mark.slow
def test_vectors_of_the_other_are_not_taken_for_its_own(hub: Hub, recipe: dict[str, Path], tmp_path: Path) -> None:
    """A graph beside a model would vouch for the model's weights."""
    both = Path(shutil.copytree(recipe["model"], tmp_path / "both"))
    shutil.copytree(recipe["onnx"] / "onnx", both / "onnx")
    shutil.copy(recipe["onnx"] / "golden.json", both)
    with pytest.raises(ValueError, match="its golden.json is of another kind of model"):
        push(both, REPO, say=quiet)
    with pytest.raises(ValueError, match="tokenizer.json names no padding"):
        verify(both)


@pytest.mark.parametrize("name", ["modules.json", "README.md", "golden.json", "tokenizer.json", "onnx/model.onnx"])
def test_an_incomplete_folder_is_refused(hub: Hub, by_hand: Path, name: str) -> None:
    (by_hand / name).unlink()
    with pytest.raises(ValueError, match=f"holds no {name}, so it is not complete.*st-reba onnx"):
        push(by_hand, REPO, say=quiet)
    assert hub.seen == []


@pytest.mark.parametrize("name", ["model.safetensors", "custom.py", "onnx/model.bin", "onnx/run.sh"])
def test_what_does_not_belong_is_refused(hub: Hub, by_hand: Path, name: str) -> None:
    (by_hand / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=f"is not published: {name}[. ]"):
        push(by_hand, REPO, say=quiet)
    assert hub.seen == []


@pytest.mark.slow
def test_neither_overwrites_the_other(hub: Hub, recipe: dict[str, Path]) -> None:
    push(recipe["model"], "org/mini", verify=False, say=quiet)
    with pytest.raises(
        ValueError, match=r"org/mini \(main\) holds a model in torch, and FOLDER an exported graph.*as org/mini-onnx"
    ):
        push(recipe["onnx"], "org/mini", verify=False, say=quiet)
    push(recipe["onnx"], "org/mini-onnx", verify=False, say=quiet)
    with pytest.raises(
        ValueError, match=r"org/mini-onnx \(main\) holds an exported graph, and FOLDER a model in torch: "
    ):
        push(recipe["model"], "org/mini-onnx", verify=False, say=quiet)
    # Someone else's graph, without golden vectors.
    api = HfApi()
    api.create_repo("org/other")
    api.upload_file(path_or_fileobj=b"graph", path_in_repo="onnx/model.onnx", repo_id="org/other")
    with pytest.raises(ValueError, match=r"org/other \(main\) holds something else"):
        push(recipe["onnx"], "org/other", verify=False, say=quiet)
    assert set(hub.repos["org/mini"].files()) >= {"st_reba.py"} and hub.count("commit") == 3
