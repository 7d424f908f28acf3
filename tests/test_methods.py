"""Methods as data: the short form, JSON, what goes together, and what importing them costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

import st_reba
from st_reba import Method
from st_reba.methods import DEFAULT_METHOD, METHODS, OPTIONS, method_of, read_value
from st_reba.modules import layout, settings
from st_reba.poolings import poolings_of

WRITTEN_METHODS = [
    Method(),
    Method("reba", repeats=1),
    Method("reba", pooling="mean", repeats=1, chunk=1, max_seq_length=1),
    Method("prompteol", template="metaeol", filter="my filter.safetensors"),
    Method(
        "prompteol",
        template=["{text}", {"query": "q {text}"}],
        weights=(1, -0.5),
        equal_norms=False,
    ),
    Method("prompteol", template=["{text}"], weights=(2,)),
    Method("echo", template='Say, "{text}": {text}', pooled="repeats", max_seq_length=64),
    Method("echo", template='"a" \' , =[ b {text} {text}', instruction="true"),
    Method("echo", template={"query": "q {text}", "document": "d {text}"}),
    Method("echo", template="{instruction}{text} {text}", instruction="Find: "),
    Method(
        "classical", pooling="cls", setting="mask0-bidir", k="all", layer=(1, -2), join="concat"
    ),
    Method("nosink", setting="mask0&bidir", k=[-1, 2], k0=0, m=0),
    Method("nosink", setting="extend-bidir", k=2, layer=(1, 2)),
    Method("nosink", setting="extra-bidir", k=2, implementation="authors", layer=(1, 2)),
    Method("prompteol", read="attention", setting="mask0-bidir", k=1),
]


@pytest.mark.parametrize("method", WRITTEN_METHODS, ids=str)
def test_a_method_is_read_as_it_was_written(method: Method) -> None:
    assert Method.parse(str(method)) == method
    assert Method(**json.loads(json.dumps(method.to_dict()))) == method


@pytest.mark.parametrize("normalize_weights", [False, True])
def test_the_formula_divides_weights_where_the_method_does(normalize_weights: bool) -> None:
    method = Method("reba", normalize_weights=normalize_weights)
    formula = "\n".join(poolings_of("reba")["last"].describe(method, ""))
    assert ("divided by their sum" in formula) == normalize_weights


def test_the_short_form_shows_letters_of_every_script() -> None:
    assert "{text}，即" in str(Method("prompteol", template="{text}，即"))


def test_options_by_name_come_before_those_of_the_short_form() -> None:
    method = Method.parse("echo:pooling=mean,layer=3", layer=4)
    assert method == Method("echo", pooling="mean", layer=4)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("True", True), ("None", None), ("all", "all"), ('"3"', "3"), ("a b", "a b")],
)
def test_the_short_form_reads_numbers_truth_values_and_texts(text: str, value: object) -> None:
    assert read_value(text) == value


def test_a_path_of_a_filter_becomes_its_name() -> None:
    path = Path("a", "b.safetensors")
    assert Method("echo", filter=path).filter == str(path)  # type: ignore[arg-type]


def test_the_default_holds_where_no_method_is_named(tmp_path: Path) -> None:
    recipe_file = tmp_path / "a.yaml"
    recipe_file.write_text("base: mini", encoding="utf-8")
    assert str(method_of(st_reba.build("mini"))) == DEFAULT_METHOD
    assert str(method_of(st_reba.build(recipe_file))) == DEFAULT_METHOD


def test_options_without_a_method_are_those_of_prompteol() -> None:
    model: Any = st_reba.build("mini", template="reverseol-says", read="attention")
    assert method_of(model) == Method("prompteol", template="reverseol-says", read="attention")
    assert model[0].reading == {"of": "attention", "first": 4, "last": 6}


@pytest.mark.parametrize(
    ("options", "expected_layers"),
    [
        ({}, (6, 6)),
        ({"layer": 0}, (0, 0)),
        ({"layer": -7}, (0, 0)),
        ({"layer": (1, -2)}, (1, 5)),
        ({"read": "attention"}, (4, 6)),
        ({"read": "attention", "layer": 1}, (1, 1)),
    ],
    ids=str,
)
def test_layers_are_counted_from_either_end(
    options: dict[str, Any], expected_layers: tuple[int, int]
) -> None:
    assert Method("echo", **options).read_layers(6) == expected_layers


@pytest.mark.parametrize(
    ("options", "lowest_layer"),
    [
        ({"layer": 7}, 0),
        ({"layer": -8}, 0),
        ({"layer": (-8, 6)}, 0),
        ({"layer": (0, 7)}, 0),
        ({"layer": (3, 2)}, 0),
        ({"read": "attention", "layer": 0}, 1),
    ],
    ids=str,
)
def test_layers_that_are_not_there_are_refused(options: dict[str, Any], lowest_layer: int) -> None:
    with pytest.raises(ValueError, match=f"give {lowest_layer} to 6, or -1"):
        Method("echo", **options).read_layers(6)


def test_templates_without_weights_are_averaged() -> None:
    method = Method("prompteol", template=["{text} is", "{text} says", "{text}!", "{text}:"])
    assert method.template_weights == (0.25,) * 4


# By method, options that are refused; commas join those that are refused together.
REFUSED_OPTIONS = {
    "echo": """
        poling=mean pooling=meen pooling=cls instruction=3 chunk=8 normalize=maybe filter=5
        repeats=0 repeats=65 repeats=true max_seq_length=1073741825 pooled=some implementation=authors
        layer=[1,2,3] layer=[1,"a"] layer=low join=sum layer=[1,2],join=sum join=concat final_norm=false
        m=2 setting=mask0&bidir,k=1,k0=2 setting=sideways,k=1 equal_norms=false
        template=unknown template=a-{text}-{device} template={precision}-{text}
        template=[1 template=5 template=[5,"{text}"] template={"query":5,"document":"{text}"}
    """,
    "reba": """
        pooled=end chunk=5,implementation=authors implementation=authors,include_special=true
        chunk=5,compute_matched=true
    """,
    "nosink": """
        k=3 setting=mask0-bidir setting=mask0-2,k=4,k0=1 setting=mask0&bidir,k=4
        setting=inter-back,k=2,m=3 setting=baseline,k=2 setting=extend-back,k=[1]
        setting=extra-bidir,k=2,layer=[1,2]
    """,
    "prompteol": """
        weights=[1,2] template=metaeol,weights=[1,2] template=reverseol,weights=["a",1] weights=2
        read=values read=attention,join=concat read=attention,final_norm=false
        read=attention,setting=inter-bidir,k=1
    """,
    "classical": "repeats=2",
}
REFUSED_METHODS: list[str] = []
for method_name, options in REFUSED_OPTIONS.items():
    REFUSED_METHODS += [f"{method_name}:{option}" for option in options.split()]


@pytest.mark.parametrize("text", REFUSED_METHODS)
def test_a_refused_option_is_named(text: str) -> None:
    names = re.findall(r"[a-z]\w*(?==)", text)
    with pytest.raises(ValueError) as raised:
        Method.parse(text)
    # Some messages repeat the whole text, which names every option.
    explanation = str(raised.value).replace(text, "")
    assert set(names) & set(re.findall(r"\w+", explanation))


@pytest.mark.parametrize(
    ("text", "part_of_message"),
    [
        ("ecko", "method='ecko' is not known"),
        ("nosink", "nosink needs setting="),
        ("echo:instruction", "'instruction' must be written KEY=VALUE"),
        (
            'prompteol:template=["metaeol","prompteol"]',
            "template='metaeol' names an ensemble, which cannot stand in a list",
        ),
    ],
)
def test_methods_that_lack_something_are_refused(text: str, part_of_message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part_of_message)):
        Method.parse(text)


def test_a_model_that_is_not_ours_has_no_method() -> None:
    assert method_of(tiny_model()) is None


def test_a_method_of_a_later_version_is_not_known() -> None:
    model = st_reba.build("mini", "reba", check=False)
    model[0].recipe = {"name": "of a later version"}
    assert method_of(model) is None


def test_the_public_names_are_few_and_all_there() -> None:
    assert len(st_reba.__all__) <= 20
    assert set(METHODS) == {"reba", "echo", "classical", "prompteol", "nosink"}
    assert all(OPTIONS.values())
    for name in st_reba.__all__:
        assert getattr(st_reba, name) is not None
    with pytest.raises(AttributeError):
        st_reba.nothing  # noqa: B018


def test_one_public_name_is_that_of_a_file() -> None:
    """A submodule takes the place of a name that it shares; `build` is imported before that can be."""
    package_folder = Path(st_reba.__file__).parent
    module_names = {path.stem for path in package_folder.iterdir() if path.suffix in ("", ".py")}
    assert module_names & set(st_reba.__all__) == {"build"}


def test_the_bound_on_repeats_is_that_of_the_code_that_travels() -> None:
    assert settings.MAX_REPEATS == layout.MAX_REPEATS
