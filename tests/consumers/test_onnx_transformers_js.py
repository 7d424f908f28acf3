"""An exported folder in transformers.js, under node: the same ids and vectors as here. ``scripts/test --onnx``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENIZERS, save
from given import exported

import st_reba
from st_reba.hub.graph import LEAST
from st_reba.modules.layout import special_tokens
from st_reba.onnx import tracing
from st_reba.onnx.folder import write_folder
from st_reba.onnx.graph import EmbeddingGraph

FOLDER, GOLDEN, WANTED = exported()
PLAIN = ["A small dog slept.", "银行今天关门了。", " two  spaces\nand a line ", "naïve 👍 Ærø"]
LONG = "word " * 300


def spelling(tokenizer: Any) -> list[str]:
    """Texts that spell each token that was added to a tokenizer: alone, inside a word, among words."""
    added = sorted(map(str, tokenizer.get_added_vocab()))
    return [text for token in added for text in (token, f"a{token}b", f"The river {token} runs.", f"银行{token} 关门")]


def in_node(tokenizers: dict[str, list[str]], models: list[dict[str, Any]]) -> dict[str, Any]:
    script = Path(__file__).with_name("transformers_js.mjs")
    given = json.dumps({"tokenizers": tokenizers, "models": models})
    run = subprocess.run(["node", str(script)], input=given, capture_output=True, text=True, env=os.environ)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout))


def test_vectors() -> None:
    """In float32, alone and in a batch; in 8 bits alone, as dtype "q8" loads onnx/model_quantized.onnx."""
    model = st_reba.load(FOLDER.parent / "model", device="cpu", dtype="float32")
    spelled = [*spelling(model.tokenizer), "word and 字 " * 600]
    wanted = np.concatenate([WANTED, model.encode(spelled)])
    texts = [*GOLDEN, *spelled]
    alone, exact, rounded = [[text] for text in texts], {"dtype": "fp32"}, {"dtype": "q8"}
    jobs = [{**exact, "batches": alone}, {**exact, "batches": [texts[:-1]]}, {**rounded, "batches": alone}]
    found = in_node({}, [{"folder": str(FOLDER), **job} for job in jobs])["models"]
    np.testing.assert_allclose(found[0], wanted, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found[1], wanted[:-1], atol=1e-5, rtol=0)
    cosines = (np.array(found[2]) * wanted).sum(axis=1)
    assert LEAST["min"] < cosines.min() < 1 - 1e-5 and cosines.mean() > LEAST["mean"]


def test_ids(tmp_path: Path) -> None:
    """Of byte-level BPE, also where a text spells a special token or one beyond the vocabulary."""
    tokenizer = TOKENIZERS["bos_eos"]()
    tokenizer.add_tokens(["<tool_call>"])
    save("gpt2", tmp_path / "base", tokenizer)
    model: Any = st_reba.build(str(tmp_path / "base"), "echo", dtype="float32", device="cpu")
    target, graph = tmp_path / "onnx", EmbeddingGraph(model)
    target.mkdir()
    write_folder(model, graph, target)
    texts = [*PLAIN, *spelling(model.tokenizer)]
    before, after = special_tokens(model.tokenizer)
    wanted = [[*before, *each[: graph.budget], *after] for each in model[0].content(texts)["input_ids"]]
    assert in_node({str(target): texts}, [])["tokenizers"][str(target)] == wanted


def test_weights_beside_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a model beyond 2 GB are; of both graphs."""
    pytest.importorskip("onnxscript")
    from st_reba.onnx import export

    save("gpt2", tmp_path / "base", "bos_eos")
    model = st_reba.build(str(tmp_path / "base"), "classical", pooling="mean", dtype="float32", device="cpu")
    monkeypatch.setattr(tracing, "MAX_BYTES", 0)
    export(model, tmp_path / "onnx", quantize="int8")
    texts = [*PLAIN[:3], LONG]
    target = {"folder": str(tmp_path / "onnx"), "batches": [[text] for text in texts]}
    exact, rounded = in_node({}, [{**target, "dtype": "fp32"}, {**target, "dtype": "q8"}])["models"]
    assert np.abs(np.array(exact) - model.encode(texts)).max() < 1e-5
    assert (np.array(rounded) * model.encode(texts)).sum(axis=1).min() > LEAST["min"]
