"""The card: what it says is what the model has."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.bases import BUNDLED
from st_reba.hub import save
from st_reba.hub.card import (
    TEMPLATE,
    CardValues,
    card_values,
    unique_name,
    write_card,
)
from st_reba.hub.card_base import Licence
from st_reba.hub.card_method import describe_method
from st_reba.methods import Method
from st_reba.modules.transformer import CARD_MARKS
from st_reba.recipe import zoo_recipe

RECORDED = Path(st_reba.__file__).parents[1] / "model_cards"
# Options of build, and what the card of such a model says.
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "default": (
        {"method": None},
        [
            """- A query is laid out, in JSON's notation, as `"Query: """,
            "s      = v_T, T the last position of the input\nvector = s / ‖s‖₂\n",
            " tokens for a document, ",
            " for a query, ",
            " for a text given to `encode`; the input",
            "- A document of more than ",
            "(the PromptEOL paper, cited below)",
            "- `template`: the words around the text, ",
            "is tokenized separately from the template, any prompt and the special tokens.",
        ],
    ),
    "reba": (
        {"pooling": "mean", "prompts": {"query": "问："}},
        [
            '- Prompt `query`, right after `<s>`: `"问："`',
            "\n  query: 问：\n",
            "(section 3 of the ReBA paper, cited below)",
            "Its token ids stand twice in the input: `<s>`, copy 1, copy 2.\n",
            "It is part of the input, but it is not pooled.\n",
            "- `pooled` in sentence_bert_config.json has no effect here: `ReBAPooling` takes",
            "- `pooling`: how the formula pools the positions; the other choice is `last`.",
            "- A text of more than 511 tokens is cut to its first 511.\n",
            "Content positions are those of the text's tokens, in any copy, ",
        ],
    ),
    "authors": (
        {"implementation": "authors"},
        ["A^new[T, t]", "comes right after `<s>`, and is pooled as all positions are."],
    ),
    "chunk": (
        {"chunk": 20},
        [
            "pieces of nearly equal\nlength, and the model reads the last piece by itself, 2 times in a row.",
            "content positions t > p_i",
            "takes n + 1 positions once, and its last piece about 2·n/P + 1.",
            "v' its hidden states",
        ],
    ),
    "chunk mean": (
        {"chunk": 20, "pooling": "mean"},
        ["reads each piece by itself", "and each of its pieces about 2·n/P + 1."],
    ),
    "special": ({"include_special": True}, ["over all positions t ≥ p_i,"]),
    "weights": (
        {"normalize_weights": True},
        ["the weights of each e_i divided by their sum"],
    ),
    "echo": (
        {"method": "echo", "template": "echo"},
        [
            "Every text is laid out, in JSON's notation, as",
            "copies of a text | 2",
            "= v_t at the last of the tokens of the last copy\n",
        ],
    ),
    "tasks": (
        {"template": {"query": "Q: {text}{text}", "document": "{text}{text}"}},
        ['as `"Q: {text}{text}"`.'],
    ),
    "nosink": (
        {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 1},
        [
            "; 3-5 bidirectional; 6 nosink-",
            "`<s>`, the text.\n",
            "it is not pooled; `include_prompt` in 1_Pooling/config.json has no effect.",
            "- `k`: how many layers, counted from the top, are converted.",
            "- `k0`: how many of the converted layers, counted from the top, hide the sink.",
        ],
    ),
    "one mask": (
        {"method": "nosink", "setting": "mask0-bidir", "k": [-1, 2]},
        [
            "- `setting`: the mask of the converted layers; `mask0-bidir` means nosink-bidirectional.",
            "- `k`: the converted layers; 0 is the lowest, -1 the topmost.",
        ],
    ),
    "extend": (
        {"method": "nosink", "setting": "extend-bidir", "k": 2},
        ["- `k`: how many times more the topmost layer runs."],
    ),
    "inter": (
        {"method": "nosink", "setting": "inter-bidir", "k": 2},
        ["run again (inter): 5 bidirectional"],
    ),
    "ensemble": (
        {"method": "prompteol", "template": "contrastive"},
        [
            "A text is put into each of 2 templates, and each makes an input of its own.",
            "Its token ids stand once in each input.",
            "takes up to n + 25 positions, in each of 2 templates",
            "s      = Σ_p w_p · s_p / ‖s_p‖₂",
            "w = (1, -0.25)\nvector = s / ‖s‖₂",
        ],
    ),
    "reversed": (
        {"method": "prompteol", "template": "reverseol"},
        ["It stands once in each input.", "`{reversed}` is the text with its words "],
    ),
    "layers": (
        {"layer": [2, 4]},
        [
            "4 of LlamaModel",
            "v_t is the mean of the hidden states of layers 2 to 4, each",
        ],
    ),
    "outputs": (
        {"method": "classical", "read": "attention"},
        ["v_t is the mean of the attention outputs"],
    ),
    "layer": (
        {"layer": 3, "final_norm": False},
        ["v_t is the hidden state of layer 3, before the final norm,"],
    ),
    "mean": (
        {"method": "classical", "pooling": "mean"},
        ["the mean of v_t over the text's tokens\n"],
    ),
    "unnormalized": (
        {"method": "echo", "normalize": False},
        ["\nvector = v_t at the last of", "| dimensions | 192, not normalized |"],
    ),
}
CITATIONS = {
    "default": "jiang2023scaling",
    "reba": "reba",
    "echo": "springer2024repetition",
    "nosink": "lin2025look",
}


def build_case(name: str) -> SentenceTransformer:
    options, _ = MODELS[name]
    return st_reba.build("mini", device="cpu", **({"method": "reba"} | options))


def saved_card(model: SentenceTransformer, folder: Path, **options: Any) -> str:
    """The card of a model that is saved into a folder."""
    options.setdefault("golden", False)
    save(model, folder, **options)
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_a_card_says_what_is_computed(name: str, tmp_path: Path) -> None:
    _, expected_words = MODELS[name]
    card = saved_card(build_case(name), tmp_path / "model")
    assert not [words for words in expected_words if words not in card]
    assert ("each e_i divided" in card) == (name == "weights")


@pytest.mark.parametrize("name", MODELS)
def test_the_recipe_of_a_card_builds_the_same(name: str, tmp_path: Path) -> None:
    model = build_case(name)
    card = saved_card(model, tmp_path / "model")
    recipe_text = card.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "recipe.yaml").write_text(recipe_text, encoding="utf-8")
    rebuilt = st_reba.build(tmp_path / "recipe.yaml", device="cpu")
    assert (rebuilt.encode("猫在睡觉") == model.encode("猫在睡觉")).all()


@pytest.mark.parametrize("name", CITATIONS)
def test_only_the_papers_of_the_method_are_cited(name: str, tmp_path: Path) -> None:
    citation = saved_card(build_case(name), tmp_path / "model").split("## Citation")[1]
    cited = [line for line in citation.splitlines() if line.startswith("@")]
    assert cited == [f"@misc{{{CITATIONS[name]},"]


def test_a_method_without_a_paper_has_no_citation(tmp_path: Path) -> None:
    assert "## Citation" not in saved_card(build_case("mean"), tmp_path / "model")


def test_the_layout_of_the_input_is_told_with_the_method(
    tmp_path: Path,
) -> None:
    card = saved_card(build_case("default"), tmp_path / "model")
    before_method, method_section = card.split("## Method")
    assert "laid out" not in before_method
    assert (
        "The tokenizer starts the input with `<s>` and adds nothing at its end." in method_section
    )
    for prefix in (
        "A query",
        "A document",
        "A text given to `encode`",
    ):
        assert f"\n- {prefix} is laid out, in JSON's notation, as `" in method_section


@pytest.mark.parametrize(
    ("options", "sink"),
    [
        (
            {"pooling": "mean"},
            "here `<s>`, which stands before the text. It is not pooled.",
        ),
        (
            {"pooling": "cls"},
            "here `<s>`, which stands before the text. It is pooled as all positions are.",
        ),
        (
            {"m": 2},
            "the first 2 tokens of the input. Without a prompt, among them is the text's own",
        ),
    ],
    ids=["special token", "all positions", "beyond the special token"],
)
def test_the_sink_is_named_and_whether_it_is_pooled(options: dict[str, Any], sink: str) -> None:
    model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, device="cpu", **options)
    assert sink in str(described_sink(model))


def test_the_sink_of_a_base_without_special_tokens_is_of_the_text() -> None:
    model = st_reba.build("mini", "nosink", setting="mask0-bidir", k=2, device="cpu")
    model[0].tokenizer.backend_tokenizer.post_processor = None
    sink = str(described_sink(model))
    assert "the first token of the input. Without a prompt, that is the text's own" in sink


def test_layers_that_hide_nothing_have_no_sink() -> None:
    assert described_sink(build_case("inter")) is None


def described_sink(model: SentenceTransformer) -> str | None:
    from st_reba.hub.card_base import describe_base

    return describe_method(model, describe_base(model[0])).sink


@pytest.mark.parametrize("name", ["mini-reba", "mini-echo", "mini-nosink"])
def test_recorded_cards_are_those_of_today(name: str, tmp_path: Path) -> None:
    """But for versions and digests."""
    model = st_reba.build(f"zoo:{name}", device="cpu")
    card = saved_card(model, tmp_path / "m", golden=True, name=name, about=zoo_recipe(name).about)
    recorded_card = (RECORDED / f"{name}.md").read_text(encoding="utf-8")
    assert without_versions(card) == without_versions(recorded_card)


def without_versions(card: str) -> list[str]:
    varying_lines = ("(dtype ", "- `st_reba.py` is the code", "  `")
    return [line for line in card.splitlines() if not line.startswith(varying_lines)]


def methods_of_all_cases() -> list[Method]:
    """Those of the models here, and two whose templates differ at the end of a long text."""
    methods: list[Method] = []
    for options, _ in MODELS.values():
        fields = {"method": "reba"} | options
        method_name = fields.pop("method") or "prompteol"
        if "prompts" not in fields:
            methods.append(Method(method_name, **fields))
    for length in (90, 91):
        methods.append(Method("echo", template="{text} {text} " + "x" * length))
    return methods


def test_names_differ_where_methods_do() -> None:
    """Results are kept by them."""
    methods = methods_of_all_cases()
    names = {unique_name("mini", method, []) for method in methods}
    assert len(names) == len(methods)
    assert max(map(len, names)) <= 80


def test_a_name_is_of_the_base_the_method_and_what_else_is_not_usual() -> None:
    method = Method("echo")
    assert unique_name("mini", method, []) == "mini-echo"
    assert unique_name("mini", method, [{"query": "问："}, None, []]) == "mini-echo-e19ce9"


@pytest.mark.parametrize(
    ("template", "more_values"),
    [
        ("template.md", ()),
        ("template_onnx.md", ("graph", "wording", "prompt", "int8", "tolerance")),
    ],
)
def test_a_template_asks_for_nothing_that_a_card_does_not_have(
    template: str, more_values: tuple[str, ...]
) -> None:
    """huggingface_hub writes nothing in place of a name that it does not know."""
    text = TEMPLATE.with_name(template).read_text(encoding="utf-8")
    template_variables = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(text))
    assert template_variables <= {*CardValues.__dataclass_fields__, *more_values}


@pytest.mark.slow
def test_no_description_lacks_what_the_template_asks_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "scores": [
            {
                "task": "T",
                "metric": "m",
                "value": 1.5,
                "table": "Table 2",
                "interval": [1, 2],
            }
        ]
    }
    strict = type("Strict", (jinja2.Template,), {"__new__": strict_template})
    monkeypatch.setattr("jinja2.Template", strict)
    for name in ("default", "chunk", "nosink", "ensemble"):
        saved_card(build_case(name), tmp_path / name, golden=True, about=facts)


def strict_template(cls: type, text: str) -> jinja2.Template:
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)


@pytest.fixture(scope="module")
def card_with_facts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A card with all facts of a recipe, and a licence that goes before that of the recipe."""
    facts = dict(zoo_recipe("mini-reba").about)
    facts["licence"] = "llama3.2"
    facts["note"] = "A note."
    facts["language"] = ["de"]
    facts["scores"] = [{"task": "T", "metric": "m", "value": 1.5, "table": "Table 2"}]
    facts["measured"] = [
        {
            "task": "S",
            "metric": "m",
            "value": 2.5,
            "table": "here",
            "interval": [2, 3],
        }
    ]
    folder = tmp_path_factory.mktemp("facts") / "m"
    return saved_card(st_reba.build("mini", "reba"), folder, license="llama3.1", about=facts)


def test_metadata_are_those_of_the_recipe_but_for_the_licence_given(
    card_with_facts: str,
) -> None:
    metadata = ModelCard(card_with_facts).data
    assert metadata.license == "llama3.1"
    assert metadata.language == ["de"]


def test_a_language_that_is_no_list_is_a_language(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba")
    card = saved_card(model, tmp_path / "model", about={"language": "zh"})
    assert ModelCard(card).data.language == ["zh"]


@pytest.mark.parametrize(
    "words",
    [
        "A note.",
        "Built with Llama.",
        "| S | m | 2.5 (2–3) | here |",
        "not measured with this model",
    ],
)
def test_facts_of_a_recipe_are_told(card_with_facts: str, words: str) -> None:
    assert words in card_with_facts


def test_trained_models_say_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = st_reba.build("mini", "reba")
    model._model_card_text = "# x\n\n## Training Details\n\nOn pairs.\n\n## Citation\n"
    first_card = saved_card(model, tmp_path / "a")
    loaded_model = st_reba.load(tmp_path / "a")
    second_card = saved_card(loaded_model, tmp_path / "b")
    for card in (first_card, second_card):
        assert "## Training\n\nOn pairs.\n" in card
        assert "No weight was trained" not in card
        assert "base_model_relation" not in card
    loaded_model.model_card_data.train_datasets = [{}]
    generator = "sentence_transformers.base.model_card.generate_model_card"
    monkeypatch.setattr(generator, lambda model: "## Training Details\n\nOn more.\n")
    assert str(card_values(loaded_model, tmp_path / "b").training).strip() == "On more."


@pytest.fixture(scope="module")
def named_base(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[SentenceTransformer, Path]:
    """A saved model whose base gets another name, and its folder."""
    model = st_reba.build("mini", "reba")
    folder = tmp_path_factory.mktemp("named") / "model"
    save(model, folder, golden=False)
    model[0].base_revision = "abc"
    return model, folder


@pytest.mark.parametrize(
    ("base_name", "hub_id", "recipe_values"),
    [
        (
            "org/base/file.gguf (GGUF, Q4_K)",
            "org/base",
            {"base": "org/base", "gguf_file": "file.gguf"},
        ),
        ("file.gguf (GGUF, Q4_K)", None, {"base": "file.gguf"}),
        (
            "org/base/smollm2 (GGUF, Q4_1)",
            "org/base",
            {"base": "org/base", "gguf_file": "smollm2"},
        ),
        (
            "smollm2 (GGUF, Q4_1)",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            {"base": "smollm2"},
        ),
    ],
)
def test_a_gguf_base_is_named_as_build_takes_it(
    named_base: tuple[SentenceTransformer, Path],
    base_name: str,
    hub_id: str | None,
    recipe_values: dict[str, str],
) -> None:
    model, folder = named_base
    model[0].base_model = base_name
    write_card(folder, card_values(model, folder))
    card = (folder / "README.md").read_text(encoding="utf-8")
    metadata = yaml.safe_load(card.split("---")[1])
    written_recipe = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert written_recipe == {
        "revision": "abc",
        "method": "reba",
        **recipe_values,
    }
    assert metadata.get("base_model") == hub_id
    assert metadata.get("base_model_relation") == (hub_id and "quantized")
    assert "dequantized" in card
    assert ("write its path" in card) == (hub_id is None)


def test_the_licence_other_gets_a_name_and_a_link(
    named_base: tuple[SentenceTransformer, Path],
) -> None:
    model, folder = named_base
    model[0].base_model = "org/base"
    licence = card_values(model, folder, license="other").licence
    licence_link = "https://huggingface.co/org/base"
    assert licence == Licence("other", "as-base-model", licence_link, ["zh", "en"])


@pytest.mark.parametrize(
    ("flag", "description"),
    [
        ("load_in_4bit", "bnb, 4 bits (nf4)"),
        ("_load_in_8bit", "bnb, 8 bits (int8)"),
        ("", "bnb"),
    ],
)
def test_quantized_weights_are_told(
    named_base: tuple[SentenceTransformer, Path],
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    description: str,
) -> None:
    model, folder = named_base
    model[0].base_model = "org/base"
    settings = {"quant_method": "bnb", "bnb_4bit_quant_type": "nf4", flag: True}
    monkeypatch.setattr(model[0].model.config, "quantization_config", settings, raising=False)
    assert card_values(model, folder).base.quantization == description


def test_a_base_that_only_the_package_can_observe_needs_it(
    tmp_path: Path,
) -> None:
    model = st_reba.build("mini", "reba")
    model[0].model.set_attn_implementation("eager")
    card = saved_card(model, tmp_path / "model")
    assert "It needs st_reba: this base" in card
    assert "Without st_reba" not in card


def nested_yaml() -> str:
    """Eleven lines that stand for billions of values, as each names the one before ten times."""
    lines = ["a: &a [x, x]", "b: &b [*a, *a]"]
    reference = "*b"
    for level in range(9):
        references = ", ".join([reference] * 10)
        lines.append(f"c{level}: &c{level} [{references}]")
        reference = f"*c{level}"
    return "\n".join([*lines, f"license: {reference}", f"language: {reference}"])


def test_metadata_of_a_strangers_card_may_not_grow(tmp_path: Path) -> None:
    base = shutil.copytree(BUNDLED["mini"], tmp_path / "base")
    (base / "README.md").write_text(f"---\n{nested_yaml()}\n---\n", encoding="utf-8")
    card = saved_card(st_reba.build(base, "echo"), tmp_path / "saved")
    metadata: ModelCardData = ModelCard(card).data
    assert metadata.license is None
    assert metadata.language is None


def test_a_strangers_name_stays_text(tmp_path: Path) -> None:
    base = shutil.copytree(BUNDLED["mini"], tmp_path / "base")
    model: Any = st_reba.build(base, "echo")
    model[0].base_model = "{{ 7 * 7 }}`\n\n# 题\n"
    card = saved_card(model, tmp_path / "saved")
    assert "{{ 7 * 7 }}' # 题" in card
    assert "\n# 题" not in card
    assert "model_name: 7-7-题-echo\n" in card
    assert "a local folder or file" in card


def test_a_copy_that_is_saved_again_does_not_speak_of_the_folder(
    saved_folder: Path, tmp_path: Path
) -> None:
    """Its card is the old one, but for files, digests and the number type of the weights."""
    published_card = (saved_folder / "README.md").read_text(encoding="utf-8")
    start_mark, end_mark = CARD_MARKS
    end = published_card.index(end_mark) + len(end_mark)
    folder_section = published_card[published_card.index(start_mark) : end]
    for words in ("golden.json", "bfloat16", "SHA-256"):
        assert words in folder_section
    st_reba.load(saved_folder).save_pretrained(str(tmp_path / "copy"))
    copied_card = (tmp_path / "copy" / "README.md").read_text(encoding="utf-8")
    assert copied_card.split() == published_card.replace(folder_section, "").split()
    for words in ("golden.json", "stored in", "SHA-256"):
        assert words not in copied_card


def test_a_card_whose_marks_are_broken_stays_as_it_is(copied_folder: Path, tmp_path: Path) -> None:
    card = f"---\n---\n{CARD_MARKS[0]}\nno end"
    (copied_folder / "README.md").write_text(card, encoding="utf-8")
    st_reba.load(copied_folder).save_pretrained(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "README.md").read_text(encoding="utf-8") == card


def test_a_printed_model_names_its_class_and_its_architecture() -> None:
    assert repr(build_case("nosink")[0]).startswith("NoSinkTransformer(LlamaModel, {")


def test_the_code_of_the_folder_is_named_with_its_digest(
    saved_folder: Path,
) -> None:
    code = (saved_folder / "st_reba.py").read_bytes()
    card = (saved_folder / "README.md").read_text(encoding="utf-8")
    lines = code.count(b"\n")
    assert f"runs: {lines} lines, SHA-256\n  `{hashlib.sha256(code).hexdigest()}`." in card
