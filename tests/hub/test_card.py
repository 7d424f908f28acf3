"""Model cards: what they say is what the model does, their metadata is the Hub's, and their examples run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import st_reba
from st_reba import Ensemble, LayerPlan, NoSink, Prepend, ReadLayers
from st_reba.bases import EMBEDDED
from st_reba.hub.card import PLACEHOLDER, card_of, with_repo_id, write_card
from st_reba.hub.golden import read_golden
from st_reba.hub.saving import save
from st_reba.recipe import About
from st_reba.spec import Spec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MAX = "A^new = max over l and h of (A^{l,h} + (A^{l,h})ᵀ) / 2"
FIELDS = {"query": "{topic}: {text} {text}", "document": "{text} / {text}"}
# Of each model: build's arguments, and lines of its card.
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reba": (
        {"max_seq_length": 101},
        [
            MAX,
            "the content positions t ≥ p(i) of all copies",
            "text  = e_n",
            "2·n + 1 positions",
            "| copies of the text | 2 |",
        ],
    ),
    "reba-options": (
        {"pooling": "mean", "repeats": 3, "include_special": True, "normalize_weights": True, "normalize": False},
        [
            "over all positions t ≥ p(i)",
            "the weights of each e_i divided",
            "text  = (1/n) Σ_i e_i",
            "| length of a vector | not scaled |",
            "- `include_special`: sum over template and special tokens too",
        ],
    ),
    "reba-published": ({"variant": "published", "pooling": "mean"}, ["first half of the rows i, those up to t"]),
    "reba-chunk": (
        {"chunk": 20, "repeats": 3, "pooling": "mean"},
        ["P = ⌈n / 20⌉ pieces", "3 times in a row", "of the piece's run", "each of its pieces 3·n/P + 1"],
    ),
    "echo-template": (
        {
            "method": "echo",
            "template": "echo-instruct",
            "instruction": "Find it.",
            "span": "last_copy_and_end",
            "stages": [Prepend(2)],
        },
        [
            "v at the last position of the last copy's content and the special tokens behind it",
            'A query is laid out as `"Instruct: {instruction}\\nQuery: {text}\\nQuery again: {text}"`',
            '`{instruction}` is `"Find it."`',
            '`{"task": "query"}` for queries, `{"task": "document"}` for documents',
            "| stage | Prepend: ",
        ],
    ),
    "echo-fields": (
        {"method": "echo", "pooling": "mean", "template": FIELDS, "prompts": {"query": "Q: ", "document": "D: "}},
        ['- Prompt `document`: `"D: "`.', 'question, topic="…"', "text  = the average of v over the content of copy 2"],
    ),
    "classical-layers": (
        {"method": "classical", "pooling": "cls", "stages": [ReadLayers([2, 3], join="concat")]},
        ["v at the first position", "| layers that run | 3 of 6 ", "passes 3 layers, where the base has 6."],
    ),
    "ensemble": (
        {"method": "prompteol", "stages": [Ensemble(["{text} is", "so {text} means"])]},
        ["v at the very last position", "in each of 2 templates", '`"{text} is"`, and as `"so {text} means"`'],
    ),
    "nosink": (
        {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
        [
            "2 forward → 2 bidirectional → 2 nosink-bidirectional",
            "- In a bidirectional layer, token i sees all tokens.",
            "lin2025look",
        ],
    ),
    "reba-plan": (
        {"pooling": "mean", "stages": [LayerPlan(architecture="extend", k=2)]},
        ["A position passes 8 layers, where the base has 6.", "lin2025look", "| stage | LayerPlan: "],
    ),
}


def text_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def metadata(text: str) -> dict[str, Any]:
    return cast(dict[str, Any], cast(Any, ModelCard(text).data).to_dict())


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> SentenceTransformer:
    return st_reba.build("mini", **MODELS[name][0], device="cpu")


@pytest.fixture(scope="module")
def saved(model: SentenceTransformer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "model"
    model.save_pretrained(str(folder))
    write_card(model, folder)
    return folder


def test_it_says_what_is_configured(model: SentenceTransformer, saved: Path, name: str) -> None:
    text, first = text_of(saved), cast(Any, model[0])
    for line in MODELS[name][1]:
        assert line in text, line
    fields = {
        field: "…" for field in first.fields("document") if field != "instruction" or not first.layout.instruction
    }
    assert f"| parameters | {sum(weight.numel() for weight in first.model.parameters()):,} |" in text
    assert f"| dimensions | {model.encode('你好', **fields).shape[0]} |" in text
    # Its costs are what a text takes.
    read = int(re.search(r"\| tokens of a text that are read \| (\d+) \|", text)[1])  # type: ignore[index]
    ids = first.preprocess(["漫长的一句话。" * 600], task="document", **fields)
    assert int((ids["copy_ids"][0] == 1).sum()) == read
    if found := re.search(r"takes (?:(\d)·)?n \+ (\d+) positions(?:\.|, in each)", text):
        content = first.content(["银行今天关门了。"])["input_ids"][0]
        ids = first.preprocess(["银行今天关门了。"], task="document", **fields)
        assert ids["input_ids"].shape[1] == int(found[1] or 1) * len(content) + int(found[2])
    # It holds the configuration itself, and nothing that was not run.
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])  # type: ignore[index]
    assert recipe.pop("base") == "mini" and recipe.pop("prompts", {}) == MODELS[name][0].get("prompts", {})
    assert Spec.of(recipe) == st_reba.spec_of(model)
    assert "golden" not in text and "No benchmark was run" in text and "No weight was trained" in text
    for word in ("| None", "`None`", "{{", "\n\n\n", str(saved.parent), str(EMBEDDED["mini"].parent), str(Path.home())):
        assert word not in text, word


def test_metadata_and_code(saved: Path, name: str) -> None:
    text = text_of(saved)
    data = metadata(text)
    method = MODELS[name][0].get("method", "reba")
    assert data["library_name"] == "sentence-transformers" and data["pipeline_tag"] == "sentence-similarity"
    assert data["license"] == "apache-2.0" and data["language"] == ["zh", "en"]
    assert data["tags"][:3] == ["sentence-transformers", "st-reba", method]
    # The embedded base is no model of the Hub, and nothing was measured.
    assert not {"base_model", "base_model_relation", "model-index"} & set(data)
    assert yaml.safe_load(text.split("---\n")[1]) == data
    code = {file.name: file.read_bytes() for file in saved.glob("st_reba*.py")}
    rows = [
        f"| {name} | {len(each.splitlines())} | `{hashlib.sha256(each).hexdigest()}` |" for name, each in code.items()
    ]
    assert code and all(row in text for row in rows)
    assert f"these files run, {sum(len(each.splitlines()) for each in code.values())} lines" in text


def test_the_examples_run(saved: Path, model: SentenceTransformer, capsys: pytest.CaptureFixture[str]) -> None:
    assert PLACEHOLDER in text_of(saved)
    blocks = re.findall(r"```python\n(.*?)```", with_repo_id(text_of(saved), str(saved)), re.DOTALL)
    session: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    assert len(blocks) == 2 and f"(1, {model.get_embedding_dimension()})" in capsys.readouterr().out
    # Plain encode, with the arguments that the card names, does what encode_query and encode_document do.
    found = re.search(r"`({.*?})` for queries(?:, `({.*?})` for documents)?", text_of(saved))
    for encode, given in zip(
        (model.encode_query, model.encode_document), found.groups() if found else (None, None), strict=True
    ):
        arguments = json.loads(given or "{}")
        own = {key: value for key, value in arguments.items() if key not in ("task", "prompt_name", "prompt")}
        np.testing.assert_allclose(model.encode("水", **arguments), encode("水", **own), atol=1e-6)


def test_names_differ() -> None:
    models = [st_reba.build("mini", **options, device="cpu") for options, _ in MODELS.values()]
    models += [st_reba.build("mini", "echo", prompts={"query": prompt}, device="cpu") for prompt in ("Q: ", "P: ")]
    cards = [card_of(each) for each in models]
    names = [metadata(card)["model_name"] for card in cards]
    assert len(set(names)) == len(names) and names[0] == "mini-reba-max_seq_length=101"
    titles = [re.search("^# (.*)$", card, re.MULTILINE)[1] for card in cards]  # type: ignore[index]
    assert titles[0] == "mini with ReBA (last)" and titles[8] == "mini with Classical + NoSink (mean)"


def test_where_it_was_verified(tmp_path: Path) -> None:
    save(st_reba.build("mini", device="cpu"), tmp_path)
    golden, text = read_golden(tmp_path / "golden.json"), text_of(tmp_path)
    assert "the vectors that this model gave for 20 texts when it was saved, computed in float32 on cpu" in text
    assert f"torch {golden['versions']['torch']}" in text and "st-reba verify path/to/model" in text


def test_a_local_base_brings_its_metadata(base: Callable[..., str], tmp_path: Path) -> None:
    place = Path(shutil.copytree(base("qwen3"), tmp_path / "my_base"))
    model = st_reba.build(place, "echo", device="cpu")
    assert "license" not in metadata(card_of(model)) and "is, is not known here." in card_of(model)
    for card in (
        "no metadata",
        "---\nlicense: [1, 2\n---\n",
        "---\nlicense: 7\nlanguage: {a: 1}\nbase_model: [1]\n---\n",
    ):
        (place / "README.md").write_text(card, encoding="utf-8")
        assert not {"license", "language", "base_model"} & set(metadata(card_of(model)))
    own = "license: other\nlicense_name: own\nlicense_link: https://x.org\nlanguage: zh\nbase_model: org/base"
    (place / "README.md").write_text(f"---\n{own}\n---\n# It\n", encoding="utf-8")
    data, text = metadata(card_of(model)), card_of(model)
    assert (data["license"], data["license_name"], data["license_link"]) == ("other", "own", "https://x.org")
    assert (data["language"], data["base_model"]) == ("zh", "org/base") and "base_model_relation" not in data
    assert "# my_base with Echo (last)" in text and "房贷" in text and str(tmp_path) not in text
    # They stay when the model is saved again, without the base.
    save(model, tmp_path / "model", golden=False)
    shutil.rmtree(place)
    save(SentenceTransformer(str(tmp_path / "model"), device="cpu"), tmp_path / "again", golden=False)
    assert text_of(tmp_path / "again") == text_of(tmp_path / "model")


def test_what_a_recipe_says(tmp_path: Path) -> None:
    score = {"task": "STSB", "metric": "spearman", "value": 0.5, "table": "Table 2"}
    measured = {**score, "interval": [0.4, 0.6]}
    about = About(
        language=("de",), licence="llama3.2", paper="reba", scores=(score,), measured=(measured,), note="A word."
    )
    model = st_reba.build("mini", "echo", device="cpu")
    save(model, tmp_path / "model", about=about, name="mini-echo", golden=False)
    text = text_of(tmp_path / "model")
    data = metadata(text)
    assert (data["license"], data["language"]) == ("llama3.2", ["de"])
    assert "Built with Llama." in text and "## Notes\n\nA word." in text
    assert "| STSB | spearman | 0.5 | Table 2 |" in text and "**not measured with this model**" in text
    assert "| STSB | spearman | 0.5 (0.4–0.6) | Table 2 |" in text and "No benchmark was run" not in text
    # What the Hub's widgets read holds what was measured, and nothing that a paper printed.
    (index,) = data["model-index"]
    (result,) = index["results"]
    assert (index["name"], result["dataset"]["name"]) == ("mini-echo", "STSB")
    assert [(each["type"], each["value"]) for each in result["metrics"]] == [("spearman", 0.5)]
    # Whoever saves it again keeps all that, unless it is another model by then.
    loaded = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert card_of(loaded, tmp_path / "model") == text
    loaded.prompts["query"] = "Q: "
    changed = card_of(loaded)
    assert "STSB" not in changed and metadata(changed)["model_name"] != "mini-echo"


def test_measured_results_stay(tmp_path: Path) -> None:
    """Those of a card by hand, in the metadata and in the text, while it is the same model."""
    model = st_reba.build("mini", device="cpu")
    save(model, tmp_path, golden=False)
    card = ModelCard(text_of(tmp_path) + "\n## Results\n\nGood.\n")
    card.data.eval_results = [EvalResult("STS", "mteb/STSB", "STSB", "spearman", 0.439, dataset_split="test")]
    card.data.model_name = "mine"
    (tmp_path / "README.md").write_text(str(card), encoding="utf-8")
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    index = metadata(card_of(loaded))["model-index"]
    assert index[0]["name"] == "mine" and index[0]["results"][0]["metrics"][0]["value"] == 0.439
    assert "## Results\n\nGood.\n" in card_of(loaded) and "No benchmark was run" not in card_of(loaded)
    loaded.prompts["query"] = "Q: "
    assert "model-index" not in metadata(card_of(loaded))


def test_weights_left_at_a_base_of_the_hub(base: Callable[..., str], tmp_path: Path) -> None:
    model = st_reba.build(base("qwen3"), "echo", device="cpu")
    save(model, tmp_path, golden=False, weights=False, base=base("qwen3"))
    assert "not pinned: when its weights change" in text_of(tmp_path)
    file = tmp_path / "sentence_bert_config.json"
    settings = {**json.loads(file.read_text(encoding="utf-8")), "base_model": "org/base", "base_revision": COMMIT}
    file.write_text(json.dumps(settings), encoding="utf-8")
    text = card_of(model, tmp_path)
    assert f"[org/base](https://huggingface.co/org/base) at `{COMMIT}`" in text and "not pinned" not in text
    assert metadata(text)["base_model"] == "org/base" and "# base with Echo (last)" in text


def test_a_base_that_keeps_its_input(base: Callable[..., str], tmp_path: Path) -> None:
    backbone = Transformer(base("llama"))
    backbone.tokenizer.pad_token = backbone.tokenizer.bos_token
    parts = [backbone, Pooling(backbone.get_embedding_dimension(), "mean"), Normalize()]
    SentenceTransformer(modules=parts, prompts={"query": "Ask: "}, device="cpu").save_pretrained(str(tmp_path / "base"))
    model = st_reba.build(str(tmp_path / "base"), stages=[NoSink("mask0-bidir", k=1)], method="nosink", device="cpu")
    save(model, tmp_path / "model", golden=False)
    text = text_of(tmp_path / "model")
    assert "is an embedder already and keeps its input" in text and '- Prompt `query`: `"Ask: "`.' in text
    assert "# base with NoSink" in text and "A^new" not in text and "v_t" not in text
    with pytest.raises(ValueError, match="which no st_reba built"):
        card_of(SentenceTransformer(modules=parts))
