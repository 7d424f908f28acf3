"""Options, specs, and what derives from them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from typing import Any, cast

import pytest
from tiny import tiny_model

import st_reba
from st_reba import Classical, Echo, Ensemble, LayerPlan, NoSink, Prepend, ReadLayers, ReBA, Spec
from st_reba.modules.methods import method_of
from st_reba.spec import read_value

SPECS = [
    Spec(ReBA()),
    Spec(ReBA(pooling="mean", repeats=3, chunk=64)),
    Spec(Echo(template='Say, "{text}": {text}', span="repeats", max_seq_length=64)),
    Spec(Echo(template='"a" \' , " b {text} {text}')),
    Spec(Classical(pooling="mean"), (NoSink("MASK0-BIDIR", k="all"), ReadLayers([1, -2], join="concat"))),
    Spec(Echo(), (Prepend(2), LayerPlan(layers={"backward": [-1], "bidirectional": [0]}))),
    Spec(st_reba.PromptEOL(), (Ensemble(["a {text} b", "c {text}"], weights=[1, -0.5]),)),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_spec_is_equal_after_json_and_is_hashable_by_its_text(spec: Spec) -> None:
    assert Spec.of(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize("spec", SPECS[:5], ids=str)
def test_the_short_form_is_read_as_it_is_written(spec: Spec) -> None:
    assert Spec.parse(str(spec)) == spec


def test_a_text_stands_in_the_quotes_that_it_has_not() -> None:
    for text, shown in (("It's, {text}", '"It\'s, {text}"'), ('"{text}", a', "'\"{text}\", a'")):
        assert str(Spec(Classical(template=text))) == f"classical:template={shown}"


def test_nosink_is_a_setting_of_the_layers_under_a_classical_text() -> None:
    spec = Spec.make("nosink", fields={"setting": "mask0-bidir", "k": 4})
    assert spec == Spec(Classical(pooling="mean"), (NoSink("mask0-bidir", k=4),))
    assert spec.name == "nosink"
    assert Spec.make("nosink", [LayerPlan(k=1)]).name == "nosink"
    assert (Spec.make("classical").name, Spec.make("reba", [LayerPlan(k=1)]).name) == ("classical", "reba")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ecko", "Did you mean 'echo'"),
        ("echo:poling=mean", "Did you mean 'pooling'"),
        ("echo:pooling=meen", "give 'last' or 'mean'"),
        ("echo:repeats=0", "repeats=0 is not allowed: give a whole number from 1 to 64"),
        ("echo:repeats=99", "from 1 to 64"),
        ("echo:normalize=maybe", "True or False"),
        ("echo:pooling", "field=value"),
        ("echo:chunk=8", "chunk"),
        ("reba:span=end", "span"),
        ("reba:chunk=5,variant=published", "Drop one of both"),
        ("nosink", "setting"),
        ("nosink:k=3", "needs setting"),
        ("nosink:setting=mask0-bidir", "needs k"),
        ("nosink:setting=mask0-2,k=4,k0=1", "takes no k0"),
        ("nosink:setting=mask0&bidir,k=4", "needs k0"),
        ("nosink:setting=inter-back,k=2,m=3", "takes no m"),
        ("nosink:setting=mask0-bidir,k=2,variant=published", "takes no variant"),
        ("echo+layers:k=1,k0=2", "k0=2 is more than k=1"),
        ("echo+layers:kind=sideways,k=1", "'rerouted'"),
        ("echo+layers:k=1+nosink:setting=mask0-bidir,k=1", "do the same thing"),
        ("echo+read:layers=1 2 3", "the first and the last"),
        ("echo+read:join=sum", "'concat'"),
        ("echo+prepend:layers=0", "from 1 to 1,024"),
        ("echo+prepent:layers=2", "Did you mean 'prepend'"),
        ("prompteol+ensemble:weights=0 0,templates=contrastive", "all 0"),
        ("prompteol+ensemble:templates=metaeol,weights=1 2", "are 2, for 5 templates"),
    ],
)
def test_an_error_names_option_value_and_remedy(text: str, named: str) -> None:
    with pytest.raises(ValueError) as error:
        Spec.parse(text)
    assert named in str(error.value)


def test_a_stored_method_that_is_none() -> None:
    for stored, message in (
        ({"rebar": {}}, r"method \(='rebar'\) is not known: .*Did you mean 'reba'"),
        ({"reba": {}, "echo": {}}, "must be a mapping of a method's name to its options"),
        ([], r"method=\[\] must be a mapping"),
    ):
        with pytest.raises(ValueError, match=message):
            method_of(stored)  # type: ignore[arg-type]


def test_given_twice_or_not_made_here() -> None:
    for given in ({"fields": {"pooling": "last"}}, {"stages": [Prepend(2)]}):
        with pytest.raises(ValueError, match="'echo:pooling=mean' has its fields and stages in it"):
            Spec.make("echo:pooling=mean", **given)
    with pytest.raises(ValueError, match="begins with StaticEmbedding, which no st_reba built: use st_reba.build"):
        st_reba.spec_of(tiny_model())


def test_texts_at_their_edges() -> None:
    assert [read_value(text, str) for text in ('"', '""', "'a'", "a'", "None")] == ['"', "", "a", "a'", "None"]
    assert read_value("None", str | None) is None


def test_importing_and_reading_specs_needs_no_torch() -> None:
    code = (
        "import sys, st_reba; from st_reba.recipe import recipe_of; "
        "spec = st_reba.Spec.parse('echo:pooling=mean+nosink:setting=mask0-bidir,k=4+prepend:layers=2+read:layers=3'); "
        "recipe_of({'base': 'mini', **spec.to_dict()}, 'x'); "
        "assert not {'torch', 'transformers', 'sentence_transformers', 'faiss'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_public_name_stays_a_function_whatever_is_imported_first() -> None:
    """A submodule takes the place of a public name that it shares."""
    code = (
        "import pkgutil, importlib, st_reba; "
        "[importlib.import_module(f'st_reba.{each.name}') for each in pkgutil.iter_modules(st_reba.__path__)]; "
        "assert not [n for n in st_reba.__all__ if type(getattr(st_reba, n)).__name__ == 'module']"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_surface_is_small() -> None:
    assert len(st_reba.__all__) <= 25
    assert len(inspect.signature(st_reba.build).parameters) <= 12
    for name in st_reba.__all__:
        assert getattr(st_reba, name) is not None


@pytest.mark.parametrize("name", ["st_reba", "st_reba.evaluation", "st_reba.index", "st_reba.corpus"])
def test_public_values_cannot_be_changed(name: str) -> None:
    module = importlib.import_module(name)
    kinds = [each for each in (getattr(module, one) for one in module.__all__) if isinstance(each, type)]
    values = [each for each in kinds if dataclasses.is_dataclass(each)]
    assert values and [each.__name__ for each in values if not cast(Any, each).__dataclass_params__.frozen] == []
