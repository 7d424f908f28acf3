"""The stock files around a graph, and the tokenizer: no graph is needed to write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

import st_reba
from st_reba.hub.onnx.folder import write_folder
from st_reba.hub.onnx.method import method_of

TEXTS = ["A cat sleeps on the roof.", "银行今天关门了。", "hi", "x </s> <s> [SEP]"]
LONG = "The old mill stands under the bridge, and 河的两行柳树 beside it. " * 12
# Base, tokenizer, options of the model.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "bos", {"pooling": "mean", "max_seq_length": 220}),
    "gpt2": ("gpt2", "plain", {"repeats": 3, "max_seq_length": 200}),
    "qwen3": ("qwen3", "bos_eos", {"method": "echo", "template": "echo-instruct", "instruction": "Find it."}),
    "gemma2": ("gemma2", "cls_sep", {"pooling": "mean", "normalize": False}),
}


@dataclass
class Written:
    model: SentenceTransformer
    folder: Path
    task: dict[str, Any]

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=CASES)
def written(request: pytest.FixtureRequest, base: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    architecture, tokenizer, options = CASES[request.param]
    task: dict[str, Any] = {"task": "query"} if "template" in options else {}
    model = st_reba.build(base(architecture, tokenizer), dtype="float32", device="cpu", check=False, **options)
    folder = tmp_path_factory.mktemp("written")
    write_folder(model, method_of(model, **task), folder)
    return Written(model, folder, task)


def test_stock_files(written: Written) -> None:
    first: Any = written.model[0]
    before, after = (len(each) for each in first.token_layout.special)
    length = first.budget(**written.task) + before + after
    types = [each["type"] for each in written.json("modules.json")]
    normalized = any(type(module).__name__ == "Normalize" for module in written.model)
    assert types == [
        f"sentence_transformers.models.{name}" for name in ["Transformer", "Pooling", "Normalize"][: 2 + normalized]
    ]
    assert written.json("sentence_bert_config.json") == {
        "max_seq_length": length,
        "do_lower_case": False,
        "model_args": {"file_name": "onnx/model.onnx", "export": False},
    }
    pooling = written.json("1_Pooling/config.json")
    assert pooling["pooling_mode"] == "mean" and pooling["embedding_dimension"] == first.get_embedding_dimension()
    assert [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value] == [
        "pooling_mode_mean_tokens"
    ]
    config = written.json("config.json")
    positions = first.config.max_position_embeddings
    assert config["max_position_embeddings"] == max(positions // first.repeats, length)
    assert config["model_type"] == first.config.model_type and isinstance(config["eos_token_id"], int)
    assert AutoConfig.from_pretrained(str(written.folder)).max_position_embeddings == config["max_position_embeddings"]
    assert {file.suffix for file in written.folder.rglob("*") if file.is_file()} == {".json"}
    assert written.json("config_sentence_transformers.json")["prompts"] == {"query": "", "document": ""}


def test_tokenizer(written: Written) -> None:
    assert written.json("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    again = AutoTokenizer.from_pretrained(str(written.folder))
    bare: Any = Tokenizer.from_file(str(written.folder / "tokenizer.json"))
    assert bare.padding is not None, "a Runner asks for it"
    bare.no_padding()
    own: Any = written.model.tokenizer
    around = own("a")["input_ids"], own("a", add_special_tokens=False)["input_ids"]
    for text in (*TEXTS, LONG):
        ids = own(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        given = again(text, truncation=True)["input_ids"]
        assert given == bare.encode(text).ids and len(given) <= again.model_max_length
        extra = len(around[0]) - len(around[1])
        assert len(given) == min(len(ids) + extra, again.model_max_length)
    padded = again([*TEXTS, LONG], padding=True, truncation=True, return_tensors="np")
    assert padded["input_ids"].shape == (len(TEXTS) + 1, again.model_max_length) and set(padded) == {
        "input_ids",
        "attention_mask",
    }
