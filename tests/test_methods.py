"""Methods as data: the short form, JSON, what goes together, and what importing them costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

import st_reba
from st_reba import Method
from st_reba.methods import DEFAULT, METHODS, OPTIONS, method_of, read_value

SOME = [
    Method(), Method("reba", repeats=1), Method("prompteol", template="metaeol", filter="my filter.safetensors"),
    Method("reba", pooling="mean", repeats=1, chunk=1, max_seq_length=1),
    Method("echo", template='Say, "{text}": {text}', pooled="repeats", max_seq_length=64),
    Method("echo", template='"a" \' , =[ b {text} {text}', instruction="true"),
    Method("echo", template={"query": "q {text}", "document": "d {text}"}),
    Method("echo", template="{instruction}{text} {text}", instruction="Find: "),
    Method("classical", pooling="cls", setting="mask0-bidir", k="all", layer=(1, -2), join="concat"),
    Method("nosink", setting="mask0&bidir", k=[-1, 2], k0=0, m=0),
    Method("prompteol", template=["{text}", {"query": "q {text}"}], weights=(1, -0.5), equal_norms=False),
]  # fmt: skip


@pytest.mark.parametrize("method", SOME, ids=str)
def test_read_as_written(method: Method) -> None:
    assert Method.parse(str(method)) == method
    assert Method(**json.loads(json.dumps(method.to_dict()))) == method


def test_options_beside_the_short_form() -> None:
    assert Method.parse("echo:pooling=mean,layer=3", layer=4) == Method("echo", pooling="mean", layer=4)
    values = ("3", "True", "None", "all", '"3"', "a b")
    assert [read_value(each) for each in values] == [3, True, None, "all", "3", "a b"]


def test_where_no_method_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: mini", encoding="utf-8")
    for base in ("mini", tmp_path / "a.yaml"):
        assert str(method_of(st_reba.build(base))) == DEFAULT
    model: Any = st_reba.build("mini", template="reverseol-says", read="attention")
    assert method_of(model) == Method("prompteol", template="reverseol-says", read="attention")
    assert model[0].reading == {"of": "attention", "first": 4, "last": 6}


# Options that are refused, each with those that stand behind a comma; by method.
REFUSED = {
    "echo": """
        poling=mean pooling=meen pooling=cls instruction repeats=0 repeats=65 repeats=true chunk=8 normalize=maybe
        instruction=3 max_seq_length=1073741825 layer=[1,2,3] layer=[1,"a"] layer=low join=sum layer=[1,2],join=sum
        pooled=some m=2 setting=mask0&bidir,k=1,k0=2 setting=sideways,k=1 template=unknown template=a-{text}-{device}
        template={precision}-{text} join=concat final_norm=false equal_norms=false implementation=authors filter=5
        template=[1 template=5 template=[5,"{text}"] template={"query":5,"document":"{text}"}
    """,
    "reba": """
        pooled=end chunk=5,implementation=authors implementation=authors,include_special=true
        chunk=5,compute_matched=true
    """,
    "nosink": """
        k=3 setting=mask0-bidir setting=mask0-2,k=4,k0=1 setting=mask0&bidir,k=4 setting=inter-back,k=2,m=3
        setting=baseline,k=2 setting=extend-back,k=[1] setting=extra-bidir,k=2,layer=[1,2]
    """,
    "prompteol": """
        weights=[1,2] template=metaeol,weights=[1,2] template=reverseol,weights=["a",1] weights=2 read=values
        read=attention,join=concat read=attention,final_norm=false read=attention,setting=inter-bidir,k=1
    """,
    "classical": "repeats=2",
}


@pytest.mark.parametrize(
    "text", ["ecko", "nosink", *(f"{name}:{each}" for name, options in REFUSED.items() for each in options.split())]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Method.parse(text)


def test_method_of_what_is_not_ours() -> None:
    assert method_of(tiny_model()) is None
    model = st_reba.build("mini", "reba", check=False)
    model[0].recipe = {"name": "of a later version"}
    assert method_of(model) is None


def test_the_surface_is_small() -> None:
    assert len(st_reba.__all__) <= 20 and set(METHODS) == {"reba", "echo", "classical", "prompteol", "nosink"}
    assert all(OPTIONS.values()) and all(getattr(st_reba, name) is not None for name in st_reba.__all__)
    # A submodule takes the place of a public name that it shares; tests/test_save_load.py looks at this one.
    files = [path for path in Path(st_reba.__file__).parent.iterdir() if path.suffix in ("", ".py")]
    assert {path.stem for path in files} & {*st_reba.__all__} == {"build"}
    with pytest.raises(AttributeError):
        st_reba.nothing  # noqa: B018
