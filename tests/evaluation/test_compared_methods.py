"""Methods as people write them, what they build, and what tells two results apart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.evaluation.methods import Base, Limit, Method, identity, methods_for, read_methods

TEXTS = ["天气很好", "He took money from the bank.", "他在银行取钱，然后去公园散步"]


@pytest.mark.parametrize(
    ("word", "name", "arguments"),
    [
        ("reba", "reba-2 last", {"method": "reba"}),
        ("reba-3", "reba-3 last", {"method": "reba", "repeats": 3}),
        ("echo:repeats=4,pooling=mean", "echo-4 mean", {"method": "echo", "repeats": 4, "pooling": "mean"}),
        ("classical:pooling=cls", "classical cls", {"method": "classical", "pooling": "cls"}),
        ("prompteol", "prompteol last", {"method": "prompteol"}),
        (
            "nosink:setting=MASK0-BIDIR,k=4",
            "nosink mask0-bidir mean k=4",
            {"method": "nosink", "setting": "MASK0-BIDIR", "k": 4},
        ),
        (
            "echo-3:pooling=mean+nosink:setting=mask0-bidir,k=4+read:layers=2 3",
            "echo-3 mask0-bidir mean k=4 read layers=[2, 3]",
            {
                "method": "echo",
                "repeats": 3,
                "pooling": "mean",
                "stages": [{"nosink": {"setting": "mask0-bidir", "k": 4}}, {"read": {"layers": [2, 3]}}],
            },
        ),
        (
            "echo:compute_matched=true",
            "echo-2 last compute_matched=true",
            {"method": "echo", "compute_matched": True},
        ),
        ("echo:template=echo", "echo last template=echo", {"method": "echo", "template": "echo"}),
        ("reba:variant=published", "reba-2 last variant=published", {"method": "reba", "variant": "published"}),
    ],
)
def test_methods_as_people_write_them(word: str, name: str, arguments: dict[str, Any]) -> None:
    (method,) = read_methods(word)
    assert (method.name, dict(method.arguments)) == (name, arguments)


def test_a_recipe_is_a_method_without_its_base(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("base: gpt2\nrepeats: 3\nmax_seq_length: 64\nrevision: null\n", encoding="utf-8")
    (method,) = read_methods([str(path)])
    assert dict(method.arguments) == {"method": "reba", "repeats": 3, "max_seq_length": 64}
    assert Limit(32).build(method, Base("mini")).max_seq_length == 32


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "name one at least"),
        ("mean", "'mean' is not known: choose from"),
        ("echo,echo:repeats=2,pooling=last", "'echo-2 last' stands twice"),
        ("classical-2", "only .* take a number of copies"),
        ("echo-two", "'echo-two' is not known: .*Did you mean 'echo'"),
        ("echo:pooling", "'pooling' must be written field=value"),
        ("echo:pool=mean", "echo: pool .*Did you mean 'pooling'"),
        ("echo+layer:k=1", "stages .*Did you mean 'layers'"),
        ("echo:dtype=bfloat16", "echo: dtype .* is not known"),
    ],
)
def test_what_is_no_method_is_named(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_methods(words)


@pytest.mark.parametrize("word", ["classical:pooling=mean+read:layers=3", "reba-3", "nosink:setting=mask0-bidir,k=2"])
def test_methods_build_what_build_does(word: str) -> None:
    (method,) = read_methods(word)
    wanted = st_reba.build("mini", **method.arguments).encode(TEXTS)
    np.testing.assert_array_equal(method.build(Base("mini")).encode(TEXTS), wanted)


def test_names_differ_where_options_do() -> None:
    long = [{"method": "echo", "template": f"{'a long template ' * 5}{n} {{text}} {{text}}"} for n in range(2)]
    names = [Method(arguments).name for arguments in long]
    assert names[0] != names[1] and max(map(len, names)) < 80
    assert Method(long[0], label="echo").name == "echo"
    (plain, prepended) = read_methods("echo,echo+prepend")
    assert (plain.name, prepended.name) == ("echo-2 last", "echo-2 last prepend")
    assert Method(long[0], label="echo").changed(pooling="mean").name.startswith("echo mean")


def test_a_saved_embedder_has_its_own_method(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo", pooling="mean")
    model.save_pretrained(str(tmp_path / "saved"))
    base = Base(str(tmp_path / "saved"))
    assert base.saved and base.label == "saved" and not Base("mini").saved
    (method,) = methods_for(base, None)
    assert method.name == "as saved"
    np.testing.assert_allclose(method.build(base).encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    assert Limit(9).build(method, base).max_seq_length == 9
    with pytest.raises(ValueError, match="is an embedder already, of one method"):
        methods_for(base, "reba")
    with pytest.raises(ValueError, match="cannot be changed"):
        method.build(Base(base.name, tokenizer="gpt2"))
    assert [each.name for each in methods_for(Base("mini"), None)] == ["classical last", "echo-2 last", "reba-2 last"]


@pytest.mark.parametrize(
    "word", ["classical", "echo", "reba-3", "prompteol", "echo:template=echo,compute_matched=true"]
)
@pytest.mark.parametrize("tokens", [2, 6])
def test_a_limit_of_content_is_what_a_copy_holds(word: str, tokens: int) -> None:
    (method,) = read_methods(word)
    model: Any = Limit(tokens, "content").build(method, Base("mini"))
    assert model[0].budget() == tokens
    # Not one position more than that takes.
    model.max_seq_length -= 1
    assert model[0].budget() < tokens


def test_a_limit_of_content_makes_room_for_each_prompt(base: Callable[..., str]) -> None:
    limit = Limit(5, "content")
    model: Any = limit.build(Method({"method": "echo"}), Base("mini"), "短")
    for prompt in ("短", "一个长得多的提示，写在每个文本前面：", None):
        limit.fit(model, prompt)
        assert model[0].budget(prompt) == 5
    total = Limit(20)
    model = total.build(Method({"method": "echo"}), Base("mini"))
    total.fit(model, "一个长得多的提示")
    assert model.max_seq_length == 20
    # Positions that the backbone has not are told, and nothing is changed.
    with pytest.raises(ValueError, match="but the backbone has"):
        Limit(10_000, "content").fit(model)
    assert model.max_seq_length == 20


@pytest.mark.parametrize("values", [{"tokens": 0}, {"tokens": True}, {"tokens": 5, "of": "both"}])
def test_limits_that_are_none(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be a whole number|is not known"):
        Limit(**values)


def test_identity_tells_apart_what_decides_a_score(base: Callable[..., str], tmp_path: Path) -> None:
    folder = base("llama")
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    echo = Method({"method": "echo"})
    same = identity(Base(folder), echo, task="a", layer=3)
    # Where a folder lies, and where it runs, change nothing; nor does the order of settings.
    assert identity(Base(str(copy)), echo, layer=3, task="a") == same
    assert identity(Base(folder, device="cpu"), Method({"method": "echo"}, label="other"), task="a", layer=3) == same
    others = [
        identity(Base(folder), echo, task="b", layer=3),
        identity(Base(folder), echo, task="a"),
        identity(Base(folder), echo.changed(pooling="mean"), task="a", layer=3),
        identity(Base(folder, dtype="bfloat16"), echo, task="a", layer=3),
        identity(Base(folder, revision="main"), echo, task="a", layer=3),
        identity(Base(folder, tokenizer=base("gpt2")), echo, task="a", layer=3),
        identity(Base("mini"), echo, task="a", layer=3),
    ]
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    others.append(identity(Base(str(copy)), echo, task="a", layer=3))
    assert len({same, *others}) == 9
