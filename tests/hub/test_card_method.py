"""What a card says of filters, norms, cut vectors and prompts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from marks import Base
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers.processors import TemplateProcessing

import st_reba
from st_reba.bases import BUNDLED, resolve_bundled
from st_reba.cli import main
from st_reba.hub import save
from st_reba.hub.card import card_values
from st_reba.hub.card_base import describe_base
from st_reba.hub.card_method import describe_input, describe_method
from st_reba.hub.card_recipe import describe_options

TEXTS = [f"{name} sells {number} books." for name in ("Ann", "王芳", "Tom") for number in range(40)]
INSTRUCTION_OF_QUERIES = {"query": "Find it", "document": "Doc: "}
IN_FRONT = (
    "comes right after `<s>`. It is part of the input, but it is not pooled; `include_prompt` in 1_Pooling/config.json "
    "has no effect."
)


@pytest.fixture(scope="module")
def search_model() -> SentenceTransformer:
    model = st_reba.build("mini", device="cpu")
    return st_reba.fit_filter(model, TEXTS, "whiten", power=0.25, queries=True, tokens=True)


@pytest.fixture(scope="module")
def cut_model() -> SentenceTransformer:
    return st_reba.build("mini", "echo", truncate_dim=64, device="cpu")


def card_of(model: SentenceTransformer, folder: Path) -> str:
    save(model, folder, golden=False)
    return (folder / "README.md").read_text(encoding="utf-8")


def test_the_recipe_of_a_filtered_model_builds_it_without_the_filter(
    search_model: SentenceTransformer, tmp_path: Path
) -> None:
    card = card_of(search_model, tmp_path / "model")
    recipe_text = card.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "recipe.yaml").write_text(recipe_text, encoding="utf-8")
    rebuilt_model = st_reba.build(tmp_path / "recipe.yaml", device="cpu")
    unfiltered_model = st_reba.build("mini", device="cpu")
    expected_vector = unfiltered_model.encode_query("猫在睡觉")
    assert np.array_equal(rebuilt_model.encode_query("猫在睡觉"), expected_vector)
    assert "builds the model by `st-reba build recipe.yaml my_model`, without its filter:" in card
    assert "- `filter`" not in card
    assert "| filter | a linear map of 192 to 192 dimensions, fitted on texts |" in card


@pytest.mark.parametrize(
    ("method", "option", "option_help"),
    [
        ("nosink:setting=mask0-bidir,k=all", "k", "the converted layers"),
        (
            "nosink:setting=mask0-mid,k=2,k0=1",
            "k0",
            "half of it, at least 1, is how many of the converted layers, counted from the top, "
            "hide the sink",
        ),
        (
            "classical:pooling=cls",
            "pooling",
            "how the formula pools the positions; the other choices are `last` and `mean`",
        ),
    ],
)
def test_the_help_of_an_option_follows_its_value(
    cut_model: SentenceTransformer, method: str, option: str, option_help: str
) -> None:
    described_options = describe_options(cut_model, st_reba.Method.parse(method))
    assert described_options[option] == option_help


def test_a_dense_layer_with_an_activation_is_no_filter(tmp_path: Path) -> None:
    model = st_reba.build("mini", "echo", device="cpu")
    model.append(Dense(192, 32))
    card = card_of(model, tmp_path / "model")
    assert "fitted on texts" not in card
    assert "Tanh of W s, a layer after the pooling" in card


@pytest.mark.parametrize(
    ("base_name", "states"),
    [
        ("llama", "the mean of the attention outputs of layers 2 to 3"),
        (
            "gemma3_text",
            "the sum of two unit vectors: that of the mean of the attention outputs of layers 2 to 3, and that of"
            " their mean after the norms that follow them,",
        ),
    ],
)
@pytest.mark.parametrize("template", [None, "{topic}: {text}"])
def test_norms_behind_the_attention_are_told(
    base: Base, base_name: str, states: str, template: str | None
) -> None:
    options = {} if template is None else {"template": template}
    model = st_reba.build(base(base_name), "prompteol", read="attention", device="cpu", **options)
    assert describe_method(model, describe_base(model[0])).states == states


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ({"layer": 0}, "the hidden state of layer 0"),
        (
            {"layer": [2, 4], "join": "concat"},
            "the concatenation of the hidden states of layers 2 to 4, each divided by its length,",
        ),
    ],
    ids=["embeddings", "several layers"],
)
def test_the_layers_that_are_read_are_told(options: dict[str, Any], states: str) -> None:
    model = st_reba.build("mini", "echo", device="cpu", **options)
    assert describe_method(model, describe_base(model[0])).states == states


def test_a_card_of_cut_vectors_does_not_claim_their_length(
    cut_model: SentenceTransformer, tmp_path: Path
) -> None:
    card = card_of(cut_model, tmp_path / "model")
    assert "| dimensions | 64, the first of 192, not normalized |" in card
    assert "s      = s / ‖s‖₂\nvector = the first 64 dimensions of s\n" in card
    vector = cut_model.encode("猫在睡觉")
    assert vector.shape == (64,)
    assert np.linalg.norm(vector) < 0.99


def test_the_command_of_a_card_cuts_vectors_too(
    cut_model: SentenceTransformer, tmp_path: Path
) -> None:
    card = card_of(cut_model, tmp_path / "model")
    command = "st-reba build recipe.yaml my_model --set truncate_dim=64"
    assert f"builds the model by `{command}`:" in card
    recipe = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert recipe == {"base": "mini", "method": "echo"}


def test_cut_vectors_have_a_name_of_their_own(
    cut_model: SentenceTransformer, tmp_path: Path
) -> None:
    """Results are kept by it."""
    save(cut_model, tmp_path / "model", golden=False)
    names: set[str | None] = set()
    for dimension in (None, 64, 65):
        with cut_model.truncate_embeddings(dimension):
            names.add(card_values(cut_model, tmp_path / "model").card_data.model_name)
    assert len(names) == 3


@pytest.mark.parametrize("dimension", [None, 192, 500])
def test_vectors_that_are_not_cut_have_length_1(
    cut_model: SentenceTransformer, tmp_path: Path, dimension: int | None
) -> None:
    save(cut_model, tmp_path / "model", golden=False)
    with cut_model.truncate_embeddings(dimension):
        values = card_values(cut_model, tmp_path / "model")
    assert values.is_normalized
    assert values.whole_dimension is None
    assert values.method.formula[-1] == "vector = s / ‖s‖₂"


@pytest.mark.parametrize(
    ("template", "prompts", "default_name", "expected_lines"),
    [
        (
            "echo-instruct",
            INSTRUCTION_OF_QUERIES,
            None,
            [
                f"A prompt given to `encode_document` {IN_FRONT}",
                'Prompt `query`, where the template has `{instruction}`: `"Find it"`.',
                'Prompt `document`, right after `<s>`: `"Doc: "`.',
            ],
        ),
        (
            "{instruction} {text} {text}",
            INSTRUCTION_OF_QUERIES,
            None,
            [
                'Prompt `query`, where the template has `{instruction}`: `"Find it"`.',
                'Prompt `document`, where the template has `{instruction}`: `"Doc: "`.',
            ],
        ),
        (
            "echo-instruct",
            {"other": "Find it"},
            None,
            [
                f"A prompt given to `encode_document` {IN_FRONT}",
                'Prompt `other`, where the template has `{instruction}`: `"Find it"`.',
            ],
        ),
        (
            {"query": "{text}{text}", "document": "{instruction} {text}{text}"},
            {"other": "Find it"},
            "other",
            [
                f"A prompt given to `encode_query` {IN_FRONT}",
                "Prompt `other`, the default, where a template has `{instruction}`, otherwise right after "
                '`<s>`: `"Find it"`.',
            ],
        ),
        (
            "echo",
            INSTRUCTION_OF_QUERIES,
            None,
            [
                f"A prompt given to `encode` {IN_FRONT}",
                'Prompt `query`, right after `<s>`: `"Find it"`.',
                'Prompt `document`, right after `<s>`: `"Doc: "`.',
            ],
        ),
    ],
    ids=["of queries", "of all", "by name", "default", "in front"],
)
def test_the_place_of_a_prompt_is_that_in_its_tasks_template(
    template: Any, prompts: dict[str, str], default_name: str | None, expected_lines: list[str]
) -> None:
    model = build_echo(template, prompts)
    if default_name is not None:
        # Prompts that sentence-transformers adds by itself would go before the default one.
        model.prompts = dict(prompts)
        model.default_prompt_name = default_name
    lines = describe_input(model).layout_lines
    assert [line for line in lines if line.lower().startswith(("prompt", "a prompt"))] == (
        expected_lines
    )


def build_echo(template: Any, prompts: dict[str, str]) -> SentenceTransformer:
    return st_reba.build("mini", "echo", template=template, prompts=prompts, device="cpu")


@pytest.mark.parametrize(
    ("prompts", "query_arguments", "document_arguments"),
    [
        ({}, ', instruction="…", topic="…"', ', instruction="…"'),
        ({"query": "Find it"}, ', topic="…"', ', instruction="…"'),
        (INSTRUCTION_OF_QUERIES, ', topic="…"', ""),
    ],
)
def test_the_example_gives_the_fields_that_no_saved_prompt_fills(
    prompts: dict[str, str], query_arguments: str, document_arguments: str
) -> None:
    template = {
        "query": "{instruction} {topic} {text}{text}",
        "document": "{instruction} {text}{text}",
    }
    description = describe_input(build_echo(template, prompts))
    assert description.query_arguments == query_arguments
    assert description.document_arguments == document_arguments


def test_the_saved_prompt_in_a_template_counts_as_part_of_the_input() -> None:
    model = build_echo("echo-instruct", INSTRUCTION_OF_QUERIES)
    limits = {limit.subject: limit for limit in describe_input(model).limits}
    layout = model[0].row_layouts("Find it", "query")[0]
    assert limits["a query"].overhead == layout.overhead
    assert limits["a query"].longest_text == model[0].budget("Find it", "query")


LONG_TEXT = "Someone makes music " * 9


def build_mean(**options: Any) -> SentenceTransformer:
    return st_reba.build("mini", "echo", pooling="mean", device="cpu", **options)


def parse_recipe(card: str) -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    return recipe


def rebuilt(card: str, folder: Path) -> SentenceTransformer:
    """What the command of a card builds."""
    (folder / "recipe.yaml").write_text(yaml.safe_dump(parse_recipe(card)), encoding="utf-8")
    command = re.search("builds the model by `st-reba (build recipe.yaml .*?)`", card)
    assert command is not None
    assert main([*shlex.split(command[1]), "--json"]) == 0
    return st_reba.load(folder / "my_model", device="cpu")


def assert_rebuilt(model: SentenceTransformer, folder: Path) -> None:
    """The command of a model's card builds a model with its vectors."""
    rebuilt_model = rebuilt(card_of(model, folder / "model"), folder)
    assert rebuilt_model.max_seq_length == model.max_seq_length
    assert rebuilt_model.similarity_fn_name == model.similarity_fn_name
    # Both are loaded, as some versions of transformers then compute 4 and 8 bits in another number type.
    saved_model = st_reba.load(folder / "model", device="cpu")
    for text in ("你好，世界。", LONG_TEXT):
        assert np.abs(rebuilt_model.encode(text) - saved_model.encode(text)).max() < 1e-5


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"quantization": "nf4"}, "quantization", "nf4"),
        ({"quantization": "int8"}, "quantization", "int8"),
        ({"processor_kwargs": {"model_max_length": 24}}, "max_seq_length", 24),
    ],
    ids=str,
)
def test_options_of_loading_are_in_the_recipe(
    options: dict[str, Any],
    name: str,
    value: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "quantization":
        pytest.importorskip("bitsandbytes")
    monkeypatch.chdir(tmp_path)
    model = build_mean(**options)
    assert_rebuilt(model, tmp_path)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert parse_recipe(card)[name] == value
    assert "given in Python" not in card


def test_another_tokenizer_is_in_the_recipe_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer_folder = tmp_path / "own_tokenizer"
    tokenizer_folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED["mini"] / name, tokenizer_folder)
    shutil.copy(BUNDLED["mini"] / "config.json", tokenizer_folder)
    tokenizer_file = tokenizer_folder / "tokenizer.json"
    tokenizer = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:50]
    tokenizer_file.write_text(json.dumps(tokenizer), encoding="utf-8")
    model = build_mean(tokenizer=str(tokenizer_folder))
    assert np.abs(model.encode(LONG_TEXT) - build_mean().encode(LONG_TEXT)).max() > 1e-3
    assert_rebuilt(model, tmp_path)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert parse_recipe(card)["tokenizer"] == "own_tokenizer"
    assert ". If the tokenizer is a folder or file, write its path:" in card
    assert str(tmp_path) not in card


def test_a_length_that_was_changed_is_in_the_recipe_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = build_mean()
    built_length = model.max_seq_length
    model.max_seq_length = 24
    assert_rebuilt(model, tmp_path)
    loaded_model = st_reba.load(tmp_path / "model", device="cpu")
    assert parse_recipe(card_of(loaded_model, tmp_path / "again"))["max_seq_length"] == 24
    model.max_seq_length = built_length
    assert "max_seq_length" not in parse_recipe(card_of(model, tmp_path / "as_built"))
    model = build_mean(max_seq_length=48)
    model.max_seq_length = 24
    assert parse_recipe(card_of(model, tmp_path / "shorter"))["max_seq_length"] == 24


def test_the_command_of_a_card_sets_what_no_recipe_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt's name may need quotation marks, and look like a number."""
    monkeypatch.chdir(tmp_path)
    model = build_mean(
        prompts={"of all": "Hello ", "7": "Bye "},
        default_prompt_name="of all",
        similarity_fn_name="dot",
    )
    assert_rebuilt(model, tmp_path)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "--set 'default_prompt_name=of all' --set similarity_fn_name=dot`:" in card
    assert "- Prompt `of all`, the default, right after" in card
    assert "- Prompt `7`, right after" in card
    model.default_prompt_name = "7"
    shutil.rmtree(tmp_path / "my_model")
    rebuilt_model = rebuilt(card_of(model, tmp_path / "seven"), tmp_path)
    assert rebuilt_model.default_prompt_name == "7"


def test_a_card_says_which_options_its_recipe_lacks(tmp_path: Path) -> None:
    model = build_mean(config_kwargs={"num_hidden_layers": 3}, processor_kwargs={"use_fast": True})
    card = card_of(model, tmp_path / "model")
    assert "`, without the `processor_kwargs` and `config_kwargs` given in Python:" in card
    assert "given in Python" not in card_of(build_mean(), tmp_path / "plain")


def test_no_recipe_holds_the_length_of_an_embedder(tmp_path: Path) -> None:
    modules = [Transformer(resolve_bundled("mini")), Pooling(192, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "base"))
    model = st_reba.build(tmp_path / "base", "nosink:setting=mask0-bidir,k=2", device="cpu")
    card = card_of(model, tmp_path / "model")
    assert "given in Python" not in card
    # The base makes the input, and may have been trained, though not here.
    for words in ("is tokenized", "fine-tuned", "## Training", "Nothing was trained"):
        assert words not in card
    model.max_seq_length = 24
    card = card_of(model, tmp_path / "shorter")
    assert "`, without the `max_seq_length` given in Python. If the base is a folder" in card
    assert "max_seq_length" not in parse_recipe(card)


def test_a_strangers_record_of_loading_stays_text(tmp_path: Path) -> None:
    model = build_mean()
    record = {"tokenizer": "x`\n```", "python_options": ["`code`"]}
    model[0].recipe = {"name": "echo", "pooling": "mean", "loading": record}
    card = card_of(model, tmp_path / "model")
    assert parse_recipe(card)["tokenizer"] == "x' '''"
    assert "given in Python" not in card
    model[0].recipe = {"name": "echo", "loading": 3}
    assert parse_recipe(card_of(model, tmp_path / "other"))["method"] == "echo"


def test_special_tokens_on_either_side_are_told() -> None:
    model = build_mean()
    tokenizer = model.tokenizer
    processors = {
        "$A </s>": [
            "The tokenizer ends the input with `</s>` and adds nothing at its start.",
            "comes at the very start of the input. ",
            ": copy 1, copy 2, `</s>`.",
        ],
        "<s> $A </s>": [
            "The tokenizer starts the input with `<s>` and ends it with `</s>`.",
            "comes right after `<s>`. ",
            ": `<s>`, copy 1, copy 2, `</s>`.",
        ],
    }
    for template, expected_words in processors.items():
        special_tokens = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<s>", "</s>")]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=template, special_tokens=special_tokens
        )
        description = describe_input(model)
        text = "\n".join([description.tokenization, *description.layout_lines])
        for words in expected_words:
            assert words in text


def test_a_row_of_many_copies_is_shortened() -> None:
    words = "Its token ids stand 5 times in the input: `<s>`, copy 1, copy 2, …, copy 5."
    assert describe_input(build_mean(repeats=5)).tokenization.endswith(words)
