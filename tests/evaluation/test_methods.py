"""Methods as people write them, what they build, and what tells two results apart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import st_reba
from st_reba.evaluation import methods as module
from st_reba.evaluation.methods import Base, Limit, Method, methods_for, read_methods
from st_reba.evaluation.results import identity

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
    path.write_text(
        "base: gpt2\nrepeats: 3\nmax_seq_length: 64\nrevision: null\nprompts: {query: 'Q: '}\n", encoding="utf-8"
    )
    (method,) = read_methods([str(path)])
    assert dict(method.arguments) == {"method": "reba", "repeats": 3, "max_seq_length": 64, "prompts": {"query": "Q: "}}
    assert Limit(32).build(method, Base("mini")).max_seq_length == 32


def test_a_base_runs_no_code_of_its_own_unasked() -> None:
    assert Base("mini") == Base("mini", trust_remote_code=False)


def test_recipes_with_a_filter_are_told_apart(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one/recipe.yaml", "two/recipe.yaml", "two/other.yaml")]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text("base: mini\nstages:\n- filter: {file: postfilter.safetensors}\n", encoding="utf-8")
    assert [method.name for method in read_methods([str(path) for path in files])] == ["one", "two", "other"]


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
    (copy / ".git").mkdir()
    (copy / ".git" / "index").write_text("hidden", encoding="utf-8")
    echo = Method({"method": "echo"})

    def key(base: Base, method: Method = echo) -> str:
        return identity(base, method, task="a", layer=3)

    same = key(Base(folder))
    # Where a folder lies, a name and a revision that mean nothing, and the default written out change nothing.
    assert key(Base(str(copy))) == key(Base(folder, device="cpu", dtype="float32")) == same
    assert key(Base(folder, revision="main"), Method({"method": "echo"}, label="other")) == same
    others = [
        key(Base(folder), Method({"method": "echo", "pooling": "mean"})),
        key(Base(folder, dtype="bfloat16")),
        key(Base(folder, tokenizer=base("gpt2"))),
        key(Base("mini")),
    ]
    (copy / "config.json").write_text("{}", encoding="utf-8")
    assert len({same, *others, key(Base(str(copy)))}) == 6


def test_a_byte_in_the_middle_of_large_weights_counts(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    content = bytearray(5 << 20)
    found = set()
    for place in (None, 5 << 19, 3 << 20):
        if place is not None:
            content[place] ^= 1
        weights.write_bytes(content)
        os.utime(weights, ns=(0, len(found)))
        found.add(identity(Base(str(tmp_path)), Method({"method": "echo"})))
    assert len(found) == 3


def test_a_hub_id_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Hub has moved on, old scores are not reused; and what is named is what is built."""
    now = {"org/model": "1" * 40}
    built: list[Any] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path / "snapshots" / now[name]))
    monkeypatch.setattr(st_reba, "build", lambda name, **options: built.append((name, options["revision"])))
    monkeypatch.setattr("st_reba.bases.is_repository", lambda *_: False)
    echo, found = Method({"method": "echo"}), []
    for commit in ("1" * 40, "2" * 40):
        module._commit.cache_clear()
        now["org/model"] = commit
        found.append(identity(Base("org/model"), echo))
        # A long run builds the commit that it has begun with.
        now["org/model"] = "3" * 40
        echo.build(Base("org/model"))
        assert built[-1] == ("org/model", commit)
    assert found[0] != found[1] and Base("mini").commit is None
    module._commit.cache_clear()


def test_models_that_are_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="./nope: there is no such folder"):
        Base("./nope").identity  # noqa: B018
    with pytest.raises(OSError, match="st-reba-tests/nope: neither a folder, nor to be had from the Hub"):
        Base("st-reba-tests/nope").identity  # noqa: B018


def test_a_filter_counts_by_what_its_file_holds(tmp_path: Path) -> None:
    found = []
    for folder, value in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "filter.safetensors"
        path.write_bytes(value)
        found.append(identity(Base("mini"), Method({"method": "echo", "stages": [{"filter": {"file": str(path)}}]})))
    assert found[0] == found[1] != found[2]
