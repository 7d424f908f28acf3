"""GGUF files: split texts as their rule says, or are refused; shards and gaps in metadata are refused at once."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from gguf_writing import gguf_file
from pipelines import build
from tokenizers import Regex, pre_tokenizers

import st_reba
from st_reba import gguf_files
from st_reba.gguf_files import PATTERNS, check_gguf, complete_tokenizer, read_gguf
from st_reba.safety import Repository, RepositoryRefused
from st_reba.safety.numbers import limit_numbers

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "GgufConfig"), reason="no GGUF file is made dense"
)
TEXT = "AB aB  12 123 it'S it's\n\nab.\n  ¿x₂? ١٢ 12ab ǅa"


def tokens_of(model: Any, text: str = TEXT) -> list[str]:
    tokenizer = model.tokenizer
    return list(
        tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])
    )


def split_by(pattern: Any, text: str = TEXT) -> list[str]:
    return [piece for piece, _ in pattern.pre_tokenize_str(text)]


# How the original tokenizers of these models split, as their tokenizer.json says.
ORIGINALS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "olmo": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    "qwen2": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}
ORIGINALS |= {"starcoder": ORIGINALS["smollm"], "stablelm2": ORIGINALS["qwen2"]}


@pytest.mark.parametrize("rule", ORIGINALS)
def test_a_text_is_split_as_by_the_original_tokenizer(rule: str, tmp_path: Path) -> None:
    model: Any = build(gguf_file(tmp_path, tokenizer_pre=rule), "echo")
    assert split_by(model.tokenizer.backend_tokenizer.pre_tokenizer) == split_by(ORIGINALS[rule])


def test_rules_that_differ_give_other_tokens(tmp_path: Path) -> None:
    tokens = {}
    for rule in ("gpt-2", "smollm", "glm4", "stablelm2"):
        tokens[rule] = tuple(tokens_of(build(gguf_file(tmp_path, tokenizer_pre=rule), "echo")))
    assert "12" in tokens["gpt-2"] and "12" not in tokens["smollm"]
    assert "12" in tokens["glm4"] and "12" not in tokens["stablelm2"]
    assert "'S" in tokens["glm4"] and "'S" not in tokens["smollm"]
    assert len(set(tokens.values())) == 4


@pytest.mark.parametrize("rule", sorted(PATTERNS))
def test_every_rule_keeps_every_character(rule: str) -> None:
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[rule]
    ]
    assert "".join(split_by(pre_tokenizers.Sequence(steps))) == TEXT


def test_llama3_takes_whole_pieces_and_begins_with_its_bos(tmp_path: Path) -> None:
    """Unless the file says otherwise of its BOS."""
    file = gguf_file(tmp_path, tokenizer_pre="llama-bpe", token_merges=["a b"])
    model: Any = build(file, "echo")
    tokenizer = model.tokenizer
    assert tokens_of(model, "AB") == ["AB"], "a token that no merge makes"
    assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    file = gguf_file(tmp_path, tokenizer_pre="llama-bpe", add_bos_token=False)
    tokenizer = build(file, "echo").tokenizer
    assert tokenizer("a")["input_ids"] == tokenizer("a", add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    "metadata", [{"tokenizer_pre": "deepseek-llm"}, {"without": ["tokenizer_pre"]}]
)
def test_a_rule_that_is_not_known_is_refused_and_another_tokenizer_is_the_remedy(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    file = gguf_file(tmp_path, **metadata)
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre=.*Give tokenizer="):
        st_reba.build(file)
    build(gguf_file(tmp_path, name="known.gguf"), "echo").tokenizer.save_pretrained(
        tmp_path / "tokenizer"
    )
    model: Any = build(file, "echo", tokenizer=tmp_path / "tokenizer")
    assert model.encode("A text.").shape == (64,)


SHARD_MESSAGE = r"one of 2 shards.*llama-gguf-split --merge \S+-00001-of-00002\.gguf"


@pytest.mark.parametrize("puts_space", [True, False])
@pytest.mark.parametrize("file_says", [True, False, None])
def test_a_space_before_a_text_is_refused_where_the_file_says_none(
    puts_space: bool, file_says: bool | None
) -> None:
    file: Any = Mock(path="a.gguf", metadata={"tokenizer.ggml.model": "llama"})
    if file_says is not None:
        file.metadata["tokenizer.ggml.add_space_prefix"] = file_says
    tokenizer = Mock()
    tokenizer.backend_tokenizer.encode.return_value.tokens = ["▁a" if puts_space else "a"]
    if puts_space and file_says is False:
        with pytest.raises(ValueError, match="puts no space before a text"):
            complete_tokenizer(tokenizer, file)
    else:
        complete_tokenizer(tokenizer, file)


def test_a_shard_is_refused_by_its_name(tmp_path: Path) -> None:
    file = gguf_file(tmp_path, name="tiny-00001-of-00002.gguf")
    with pytest.raises(ValueError, match=SHARD_MESSAGE):
        st_reba.build(file, tokenizer="mini")


def test_a_shard_is_refused_by_its_metadata(tmp_path: Path) -> None:
    """Those of a second shard hold nothing else."""
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "renamed.gguf"
    writer = gguf.GGUFWriter(file, "")
    writer.kv_data[0].clear()
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    writer.add_tensor("blk.1.attn_q.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=SHARD_MESSAGE):
        st_reba.build(file, tokenizer="mini")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("architecture", "general.architecture"),
        ("context_length", "llama.context_length"),
        ("embedding_length", "llama.embedding_length"),
        ("block_count", "llama.block_count"),
        ("head_count", "llama.attention.head_count"),
        ("head_count_kv", "llama.attention.head_count_kv"),
        ("layer_norm_rms_eps", "llama.attention.layer_norm_rms_epsilon"),
        ("token_list", "tokenizer.ggml.tokens"),
        ("tokenizer_model", "tokenizer.ggml.model"),
        ("token_merges", "tokenizer.ggml.merges"),
        ("blk.1.", "layer 1 of 2"),
        ("token_embd", "token_embd.weight"),
    ],
)
def test_a_gap_is_refused_and_named(missing: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        st_reba.build(gguf_file(tmp_path, without=[missing]))
    assert "\n" not in str(raised.value)


def test_quantization_splitting_rule_and_shapes_are_read(tmp_path: Path) -> None:
    file = read_gguf(str(gguf_file(tmp_path, "Q8_0", tokenizer_pre="smollm")))
    assert (file.quantization, file.pre_tokenizer) == ("Q8_0", "smollm")
    assert file.shapes["token_embd.weight"] == (64, file.metadata["tokenizer.ggml.tokens"])


UINT8, UINT32, FLOAT32, STRING, ARRAY = 0, 4, 6, 8, 9


def write_fields(file: Path, **fields: tuple[int, bytes]) -> Path:
    """Write a GGUF file that holds only some metadata, each as its type and its bytes."""
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for name, (value_type, value) in fields.items():
        key = name.replace("__", ".").encode()
        content += struct.pack("<Q", len(key)) + key + struct.pack("<I", value_type) + value
    file.write_bytes(content)
    return file


def test_lists_within_lists_for_ever_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    list_of_one_list = struct.pack("<IQ", ARRAY, 1)
    file = write_fields(tmp_path / "nested.gguf", a=(ARRAY, list_of_one_list * 3000))
    with pytest.raises(ValueError, match="is not a complete GGUF file"):
        st_reba.build(file)


def test_more_values_than_a_vocabulary_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read by itself, and takes hundreds of bytes."""
    pytest.importorskip("gguf")
    monkeypatch.setattr(gguf_files, "_FREE_READS", 10_000)
    count = 30_000
    values = struct.pack("<IQ", UINT8, count) + bytes(count)
    file = write_fields(tmp_path / "long.gguf", x=(ARRAY, values))
    with pytest.raises(ValueError, match="more values than its weights can need"):
        st_reba.build(file)
    # The larger a file, the more it may hold.
    monkeypatch.setattr(gguf_files, "_BYTES_OF_A_READ", 1)
    assert read_gguf(str(file)).metadata["x"] == count


TEXT_VALUE = (STRING, struct.pack("<Q", 1) + b"3")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("split__count", TEXT_VALUE),
        ("general__file_type", TEXT_VALUE),
        ("general__file_type", (ARRAY, struct.pack("<IQ", UINT32, 0))),
        ("general__file_type", (UINT32, struct.pack("<I", 9999))),
        ("general__name", (STRING, struct.pack("<Q", 1) + b"\xff")),
        ("split__count", (FLOAT32, struct.pack("<f", 3.0))),
    ],
)
def test_metadata_of_a_wrong_type_are_refused(
    name: str, value: tuple[int, bytes], tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    file = write_fields(tmp_path / "typed.gguf", **{name: value})
    with pytest.raises(ValueError, match="is not a complete") as raised:
        st_reba.build(file)
    assert "typed.gguf" in str(raised.value)


@pytest.mark.parametrize("block_count", ["2", 2.0])
def test_a_number_of_layers_that_is_no_number_is_refused(block_count: Any, tmp_path: Path) -> None:
    file = read_gguf(str(gguf_file(tmp_path)))
    metadata = file.metadata | {"llama.block_count": block_count}
    with pytest.raises(ValueError, match="block_count=.* is not a whole number"):
        check_gguf(replace(file, metadata=metadata), has_other_tokenizer=False)


def test_a_tokenizer_that_splits_by_no_rule_needs_neither_rule_nor_merges(tmp_path: Path) -> None:
    file = read_gguf(str(gguf_file(tmp_path)))
    metadata = file.metadata | {"tokenizer.ggml.model": "llama"}
    for name in ("tokenizer.ggml.pre", "tokenizer.ggml.merges"):
        del metadata[name]
    check_gguf(replace(file, metadata=metadata), has_other_tokenizer=False)


def without_attention(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if ".attn_" not in name}


def with_as_many_keys(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return shapes | {"blk.0.attn_k.weight": shapes["blk.0.attn_q.weight"]}


@pytest.mark.parametrize(
    ("change_shapes", "needless_fields"),
    [
        (without_attention, ["head_count", "head_count_kv", "layer_norm_rms_epsilon"]),
        (with_as_many_keys, ["head_count_kv"]),
    ],
    ids=["no attention", "a key for each query"],
)
def test_only_what_its_tensors_need_must_be_in_a_file(
    change_shapes: Any, needless_fields: list[str], tmp_path: Path
) -> None:
    file = read_gguf(str(gguf_file(tmp_path)))
    metadata = dict(file.metadata)
    for field_name in needless_fields:
        del metadata[f"llama.attention.{field_name}"]
    with pytest.raises(ValueError, match="its metadata lack llama.attention"):
        check_gguf(replace(file, metadata=metadata), has_other_tokenizer=True)
    shapes = change_shapes(file.shapes)
    check_gguf(replace(file, metadata=metadata, shapes=shapes), has_other_tokenizer=True)


def test_a_pipe_is_no_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ValueError, match="a pipe or a device"):
        st_reba.build(tmp_path, gguf_file="pipe.gguf")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_config.json", "{}"),
        ("tokenizer_config.json", '{"tokenizer_class": "AutoModel"}'),
        ("config.json", '{"_attn_implementation": "evil/kernel"}'),
    ],
)
def test_files_beside_a_gguf_file_are_checked(name: str, content: str, tmp_path: Path) -> None:
    """Transformers reads them: an adapter's would lead to another base."""
    file = gguf_file(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(RepositoryRefused, match=name):
        st_reba.build(file, "echo", device="cpu")


def test_a_gguf_file_may_lie_among_other_things(tmp_path: Path) -> None:
    file = gguf_file(tmp_path)
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "pipe")
    (tmp_path / "README.md").write_text("Mine.", encoding="utf-8")
    assert build(file, "echo").encode("a").shape == (64,)


def test_a_model_is_not_far_larger_than_its_file(tmp_path: Path) -> None:
    with (tmp_path / "a.gguf").open("wb") as stream:
        stream.truncate(10**7)  # at most 6 · 10⁷ numbers
    with limit_numbers(Repository(str(tmp_path))):
        torch.nn.Linear(17_000, 10_000, device="meta")
        with pytest.raises(RepositoryRefused):
            torch.nn.Linear(2_000, 10_000, device="meta")
