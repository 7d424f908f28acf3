"""What a repository may say before anything of it is loaded: each check by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pipelines import transformer
from safetensors.torch import save_file
from torch import nn

from st_reba import RepeatTransformer
from st_reba.bases import EMBEDDED
from st_reba.modules.guards import check_base, check_config, check_passed_on, check_sizes, limited

MINI = str(EMBEDDED["mini"])


def test_a_configuration_that_a_save_wrote(base: Any) -> None:
    first = transformer("mini", "echo")
    known, config = RepeatTransformer.config_keys, first.get_config_dict()
    check_config(config, known, here=True)
    check_config({**config, "max_seq_length": 5, "from_base": True, "base_model": "org/base"}, known, here=False)
    for changes, message in (
        ({"stages": None}, "is missing, or lacks 'stages'"),
        ({"layout": None}, "is missing, or lacks 'layout'"),
        ({"stages": [{"evil": {}}]}, "stages .*'evil'"),
        ({"surprise": 1}, "surprise .=1. is not known"),
        ({"from_base": "yes"}, "from_base='yes' must be true or false"),
        ({"from_base": True, "base_model": "../x"}, "base_model='../x'"),
        ({"model_kwargs": {"weights_only": False}}, "weights_only'=False may not be stored"),
    ):
        with pytest.raises(ValueError, match=message):
            check_config({**config, **changes}, known, here=True)


def test_what_is_handed_to_transformers() -> None:
    """A module of ours writes a few settings; another's may not reach elsewhere, nor open a pickle."""
    for given in ({"model_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"}}, {"config_args": {}}):
        for own in (True, False):
            check_passed_on("a.json", given, own=own)
    check_passed_on("a.json", {"model_args": {"output_attentions": True}}, own=False)
    for given, own, message in (
        ({"model_args": {"output_attentions": True}}, True, "a.json: model_args: 'output_attentions'=True may not"),
        ({"model_args": {"use_safetensors": False}}, False, "'use_safetensors'=False may not"),
        ({"model_kwargs": {"proxies": {"https": "evil"}}}, False, "'proxies'=.*may not"),
        ({"tokenizer_args": 3}, False, "tokenizer_args=3 must be a mapping"),
        ({"model_kwargs": {"attn_implementation": "evil/kernel"}}, False, "evil/kernel' names a kernel elsewhere"),
        ({"x": {"y": {"num_hidden_layers": 1025}}}, False, "num_hidden_layers=1025: the most is 1024"),
    ):
        with pytest.raises(ValueError, match=message):
            check_passed_on("a.json", given, own=own)


REFUSED: list[tuple[Any, Any, str]] = [
    *((base, None, "base_model=") for base in ("/etc", "../other", f"{MINI}/../mini", "C:\\models", "file:///etc")),
    *((base, None, "base_model=") for base in ("https://example.org/model", "a/b/c", "~/model", "org/..", "", 3, None)),
    *(
        ("org/model", name, "base_revision=")
        for name in ("../../x", "https://example.org", "--upload-pack=x", "main\n")
    ),
    *(("org/model", name, "base_revision=") for name in (7, "x" * 1000)),
]


def test_bases() -> None:
    """A Hub id and a revision; on this machine a model's full path, or one that is gone, for loading to tell."""
    for base, revision, word in REFUSED:
        with pytest.raises(ValueError, match=word):
            check_base(base, revision, here=True)
    for revision in (None, "main", "v1.0", "refs/pr/3", "0" * 40, "x" * 250):
        check_base("org/model-1.5_b", revision, here=False)
    for path in (MINI, f"{MINI}/gone"):
        check_base(path, None, here=True)
        with pytest.raises(ValueError, match="is no Hub id. Download"):
            check_base(path, None, here=False)


def test_packed_weights(tmp_path: Path) -> None:
    """Quantized weights stand in whole numbers, several in one."""
    save_file({"a": torch.zeros(4, dtype=torch.int32), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert check_sizes(str(tmp_path)) == 4 * 16 + 3


def test_weights_in_several_files_or_none(tmp_path: Path) -> None:
    assert check_sizes(str(tmp_path)) is None
    for number, size in enumerate((5, 7)):
        save_file({f"w{number}": torch.zeros(size)}, tmp_path / f"{number}.safetensors")
    names = '{"weight_map": {"w0": "0.safetensors", "w1": "1.safetensors", "again": "1.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(names, encoding="utf-8")
    assert check_sizes(str(tmp_path)) == 12
    (tmp_path / "1.safetensors").write_bytes(b"no such file")
    with pytest.raises(ValueError, match="1.safetensors is no safetensors file.*Copy it again"):
        check_sizes(str(tmp_path))


def test_no_more_than_the_weights_hold() -> None:
    """Tied weights are made several times; what is made with memory, elsewhere or afterwards does not count."""
    held, most = 1 << 20, 5 << 20
    with limited(held), torch.device("meta"):
        nn.Linear(most, 1, bias=False)
        with pytest.raises(ValueError, match=r"Linear's weight of shape \(1, 1\) the model is far larger"):
            nn.Linear(1, 1, bias=False)
    with limited(held):
        thread = threading.Thread(target=lambda: nn.Linear(most + 1, 1, device="meta"))
        thread.start()
        thread.join()
        nn.Linear(1, 9)
        nn.Linear(most, 1, bias=False, device="meta")
    with limited(None):
        nn.Linear(1 << 40, 1, device="meta")
    nn.Linear(1 << 40, 1, device="meta")
