"""Model cards: what they say is what the model does, their metadata is the Hub's, and their examples run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from marks import slow_but
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import st_reba
from st_reba import zoo
from st_reba.bases import EMBEDDED
from st_reba.hub.card import PLACEHOLDER, read_results, recipe_card, with_repo_id, write_card
from st_reba.hub.facts import facts_of_model, facts_of_recipe
from st_reba.hub.saving import save

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCORE = {
    "task_type": "STS",
    "dataset_type": "mteb/STSB",
    "dataset_name": "STSB",
    "metric_type": "spearman",
    "metric_value": 0.439,
    "dataset_split": "test",
}
MAX = "A^new = max over l and h of (A^{l,h} + (A^{l,h})ᵀ) / 2"
# Of each model: build's arguments, and lines of its card: equation, costs, layout.
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reba-last": (
        {"max_seq_length": 101},
        [
            MAX,
            "over the content positions t ≥ p(i) of all 2 copies, p(i) the place of token i in copy 1",
            "text  = e_n",
            "A text of n tokens takes 2·n + s positions, s = 1 of them the tokenizer's special tokens",
            "With M = 101 positions, 50 tokens a copy are read (⌊(M − s) / 2⌋)",
            "`last` needs about the memory that Echo needs",
            "The text's vector is then scaled to length 1.",
            "| copies of the text | 2 |",
        ],
    ),
    "reba-options": (
        {"pooling": "mean", "repeats": 3, "include_special": True, "normalize_weights": True, "normalize": False},
        [
            "stands 3 times in the input",
            "over all positions t ≥ p(i) of all 3 copies",
            "the weights of each e_i divided by their sum",
            "text  = (1/n) Σ_i e_i",
            "341 tokens a copy are read (⌊(M − s) / 3⌋)",
            "`mean` needs about 4·n·T bytes",
            "| length of a vector | not scaled |",
        ],
    ),
    "reba-published": (
        {"variant": "published"},
        [
            "text = Σ_t a_t · v_t / Σ_t a_t, over all positions t, with a_t = A^new[T, t], T the very last position",
            "| method | reba, as the authors' code computes it |",
            "gets a zero vector",
            "the sum of its tokens' rows of A^new over all columns",
        ],
    ),
    "reba-published-mean": (
        {"variant": "published", "pooling": "mean"},
        ["a_t = Σ A^new[i, t] over the first half of the rows i, those up to t"],
    ),
    "reba-chunk": (
        {"chunk": 20, "repeats": 3, "pooling": "mean"},
        [
            "P = ⌈n / 20⌉ pieces",
            "piece runs by itself, 3 times in a row",
            "A^new[p(i), p(i)] · v_i + Σ_t A^new[p(i), t] · v'_t over the content positions t > p(i) of that run,",
            "each of its pieces 3·n/P + s",
            "1,023 tokens in one copy are read (M − s)",
            "nor was it tested here",
        ],
    ),
    "reba-nosink": (
        {"setting": "mask0-bidir", "k": 2, "m": 2},
        [
            "A^new is the maximum over every pass of every layer",
            "4 forward → 2 nosink-bidirectional(2)",
            "but not the first 2 (the sink)",
        ],
    ),
    "reba-layer": (
        {"layer": -4},
        [
            "v_t is the base's hidden state at position t: layer 3 of 6, after the final norm (0 are the embeddings)",
            "no layer above is run",
            "| hidden states | layer 3 of 6, after the final norm |",
            "A position passes 3 layers, where the base has 6.",
        ],
    ),
    "echo-layers": (
        {"method": "echo", "pooling": "mean", "layer": [2, 4], "final_norm": False},
        [
            "position t: mean of layers 2 to 4 of 6, before the final norm (0 are the embeddings), each "
            "layer's vector divided by its length before the mean; no layer above is run.",
            "A word's vector is the mean of v at its tokens",
        ],
    ),
    "echo-beside": (
        {"method": "echo", "pooling": "mean", "layer": [2, 3], "join": "concat"},
        [
            "position t: concatenation of layers 2 to 3 of 6, after the final norm (0 are the embeddings), each "
            "layer's vector divided by its length before the concatenation; no layer above is run.",
            "| dimensions | 384 |",
        ],
    ),
    "nosink-layer": (
        {"method": "nosink", "layer": 3, "setting": "mask0-bidir", "k": 2},
        [
            "What the layers see: 1 forward → 2 nosink-bidirectional.",
            "v_t is the base's hidden state at position t: layer 3 of 6",
            "A position passes 3 layers, where the base has 6.",
        ],
    ),
    "echo": (
        {
            "method": "echo",
            "template": "echo-instruct",
            "instruction": "Find it.",
            "compute_matched": True,
            "max_seq_length": 200,
            "span": "last_copy_and_end",
        },
        [
            "text = v at the last position of the content of copy 2 and the special tokens behind it",
            '`encode_query` lays a text out as `"Instruct: {instruction}\\nQuery: {text}\\nQuery again: {text}"`',
            '`"Document: {text}\\nDocument again: {text}"`',
            '`{instruction}` is `"Find it."`',
            "⌊(M − s) / 2⌋, and half of that",
        ],
    ),
    "echo-fields": (
        {
            "method": "echo",
            "pooling": "mean",
            "template": {"query": "{topic}: {text} {text}", "document": "{text} / {text}"},
            "prompts": {"query": "Q: ", "document": "D: ", "other": "O"},
        },
        [
            '- Prompt `query`: `"Q: "`.',
            "A query needs a value for `{topic}`",
            "text = the average of v over the content of copy 2",
            "--task document",
        ],
    ),
    "echo-separator": (
        {"method": "echo", "pooling": "mean", "separator": " | ", "repeats": 3, "span": "repeats"},
        [
            'with `" | "` between',
            "the average of v over the content of copies 2 to 3",
            "special and template tokens",
        ],
    ),
    "classical": (
        {"method": "classical", "pooling": "cls"},
        ["text = v at the first position", "takes n + s positions"],
    ),
    "classical-last": (
        {"method": "classical", "non_finite": "zeros"},
        ["text = v at the last position of the content of the text", "1,023 tokens are read (M − s)", "a zero vector"],
    ),
    "prompteol": (
        {"method": "prompteol"},
        [
            "text = v at the very last position",
            r'`"This sentence: \"{text}\" means in one word:\""`',
        ],
    ),
    "nosink": (
        {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
        [
            "2 forward → 2 bidirectional → 2 nosink-bidirectional",
            "- bidirectional: all tokens.",
            "- nosink-bidirectional: all tokens, but not the first 1",
            "| NoSink setting | `mask0&bidir-k4-k02` |",
        ],
    ),
    "nosink-inter": (
        {"method": "nosink", "setting": "inter-back", "k": 3, "variant": "published"},
        [
            "A position passes 9 layers, where the base has 6.",
            "- backward: the tokens from i on.",
            "as in the authors'",
        ],
    ),
    "nosink-extend": (
        {"method": "nosink", "layers": {"architecture": "extend", "k": 2}, "pooling": "last"},
        ["A position passes 8 layers, where the base has 6.", "(the last layer again)"],
    ),
}
LONG = "漫长的一句话。" * 600


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=slow_but(MODELS, "reba-last", "echo-fields", "nosink-inter"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str) -> SentenceTransformer:
    return st_reba.build("mini", **MODELS[name][0])


@pytest.fixture(scope="module")
def saved(model: SentenceTransformer, name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "model"
    save(model, folder, golden=name == "reba-last")
    return folder


def test_says_what_is_configured(model: SentenceTransformer, saved: Path, name: str) -> None:
    text = card_of(saved)
    for line in MODELS[name][1]:
        assert line in text, line
    vector = model.encode("你好", **fields_of(model, "document"))
    assert f"| dimensions | {vector.shape[0]} |" in text
    assert f"| pooling | {MODELS[name][0].get('pooling', 'mean' if 'nosink' in name[:6] else 'last')}" in text
    assert ("golden.json" in text) == ("st-reba verify ORG/NAME" in text) == (name == "reba-last")
    assert ("export-onnx" in text) == (name not in ("reba-chunk", "nosink-inter", "nosink-extend"))
    assert ("### Prompts" in text) == (name in ("echo", "echo-fields", "prompteol"))


def fields_of(model: SentenceTransformer, task: str) -> dict[str, str]:
    return dict.fromkeys(facts_of_model(model).fields[task], "…")


def test_costs_are_what_a_text_takes(model: SentenceTransformer, saved: Path) -> None:
    text, first = card_of(saved), cast(Any, model[0])
    read = int(re.search(r"positions, ([\d,]+) tokens", text)[1].replace(",", ""))  # type: ignore[index]
    ids = first.preprocess([LONG], task="document", **fields_of(model, "document"))
    assert int((ids["copy_ids"] == 1).sum()) == read
    assert f"| tokens of a text that are read | {read} |" in text
    if found := re.search(r"takes (?:(\d)·)?n \+ s positions, s = (\d+)", text):
        content = first.content(["银行今天关门了。"])["input_ids"][0]
        ids = first.preprocess(["银行今天关门了。"], task="document", **fields_of(model, "document"))
        assert ids["input_ids"].shape[1] == int(found[1] or 1) * len(content) + int(found[2])
    if "chunk" in facts_of_model(model).options:
        return
    passes: list[int] = []
    handles = [layer.mlp.register_forward_hook(lambda *_: passes.append(1)) for layer in first.model.layers]
    model.encode("你好", **fields_of(model, "document"))
    for handle in handles:
        handle.remove()
    said = re.search(r"passes (\d+) layers, where the base has 6", text)
    assert len(passes) == (int(said[1]) if said else 6)


def test_metadata(saved: Path, name: str) -> None:
    card = ModelCard.load(saved / "README.md")
    data = cast(Any, card.data).to_dict()
    method = MODELS[name][0].get("method", "reba")
    assert data["library_name"] == "sentence-transformers" and data["pipeline_tag"] == "sentence-similarity"
    assert data["license"] == "apache-2.0" and data["language"] == ["zh", "en"]
    assert data["tags"][:3] == ["sentence-transformers", "st-reba", method]
    assert ("nosink" in data["tags"]) == ("nosink" in name)
    # The embedded base is no model of the Hub, and nothing was measured.
    assert not {"base_model", "base_model_relation", "model-index"} & set(data)
    assert yaml.safe_load(card_of(saved).split("---\n")[1]) == data
    assert f"\n# {data['model_name']}\n" in card.text


def test_names_differ() -> None:
    models = [facts_of_model(st_reba.build("mini", **options)) for options, _ in MODELS.values()]
    names = [each.signature for each in models]
    assert len(set(names)) == len(names)
    assert {"mini-reba-2-last-layer-4", "mini-nosink-mean-mask0-bidir-k2-layer3"} < set(names)
    assert "mini-reba-2-last" in names and "mini-nosink-mean-mask0-and-bidir-k4-k02" in names


def test_recipes_of_layers(tmp_path: Path) -> None:
    """A recipe's facts are its model's, whose layers a truncated model still names; unknown bases have no numbers."""
    file = tmp_path / "half.yaml"
    for layer, norm in (("3", "true"), ("[1, 3]", "false"), ("0", "true"), ("null", "false")):
        file.write_text(f"base: mini\nmethod: echo\nlayer: {layer}\nfinal_norm: {norm}\n", encoding="utf-8")
        recipe = zoo.load(file)
        model = recipe.build(device="cpu")
        assert facts_of_recipe(recipe).signature == facts_of_model(model).signature
        if layer == "null":
            assert "hidden states | layer 6 of 6, before the final norm |" in recipe_card(recipe)
            continue
        short = facts_of_model(st_reba.truncate_layers(model))
        assert short.signature == facts_of_model(model).signature
        assert {name: short.options.get(name) for name in ("layer", "final_norm")} == {
            "layer": yaml.safe_load(layer),
            "final_norm": None if norm == "true" else False,
        }
    file.write_text("base: org/large\nmethod: echo\nlayer: -8\n", encoding="utf-8")
    assert "hidden states | layer -8, after the final norm |" in recipe_card(zoo.load(file))


def test_same_bytes_and_no_path(model: SentenceTransformer, saved: Path) -> None:
    wanted = card_of(saved)
    for place in (saved.parent, EMBEDDED["mini"].parent, Path.home(), Path.cwd()):
        assert str(place) not in wanted
    assert "None" not in wanted and "{{" not in wanted and "\n\n\n" not in wanted
    write_card(model, saved)
    assert card_of(saved) == wanted


@pytest.mark.parametrize("name", ["reba-chunk", "echo-fields", "nosink"], indirect=True)
def test_saved_again(saved: Path, tmp_path: Path) -> None:
    loaded = SentenceTransformer(str(saved), device="cpu")
    loaded.save_pretrained(str(tmp_path / "plain"))
    save(loaded, tmp_path / "again", golden=False)
    assert card_of(tmp_path / "plain") == card_of(tmp_path / "again") == card_of(saved)


class Embeddings:
    """Calls sentence-transformers as LangChain's class of that name does."""

    made: list[Embeddings] = []

    def __init__(
        self,
        model_name: str,
        model_kwargs: dict[str, Any],
        encode_kwargs: dict[str, Any] | None = None,
        query_encode_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.model = SentenceTransformer(model_name, **model_kwargs)
        self.encode_kwargs = encode_kwargs or {}
        self.query_encode_kwargs = query_encode_kwargs or {}
        self.made.append(self)

    def embed_documents(self, texts: list[str]) -> Any:
        return self.model.encode(texts, **self.encode_kwargs)

    def embed_query(self, text: str) -> list[float]:
        return list(self.model.encode([text], **(self.query_encode_kwargs or self.encode_kwargs))[0])


def run_examples(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The card's Python blocks, one after the other in one session, as a reader would run them."""
    langchain = ModuleType("langchain_huggingface")
    cast(Any, langchain).HuggingFaceEmbeddings = Embeddings
    monkeypatch.setitem(sys.modules, "langchain_huggingface", langchain)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    session: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), session)
    return {**session, "blocks": len(blocks)}


@pytest.mark.parametrize(
    "name",
    slow_but(
        ["reba-last", "reba-published", "reba-chunk", "echo", "echo-fields", "prompteol", "nosink-inter"],
        "reba-last",
        "nosink-inter",
    ),
    indirect=True,
)
def test_examples_run(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert PLACEHOLDER in card_of(saved)
    session = run_examples(with_repo_id(card_of(saved), str(saved)), monkeypatch)
    assert session["blocks"] == 5
    out = capsys.readouterr().out
    assert "torch.Size" not in out and "(1, 192)" in out and "(2, 192)" in out
    # LangChain's plain encode does what encode_query and encode_document do here.
    model, chain = session["model"], Embeddings.made[-1]
    facts = facts_of_model(model)
    for task, vectors in (("query", [chain.embed_query("水")]), ("document", chain.embed_documents(["水"]))):
        encode = {"query": model.encode_query, "document": model.encode_document}[task]
        wanted = encode(["水"], **dict.fromkeys(facts.fields[task], "…"))
        np.testing.assert_allclose(vectors, wanted, atol=1e-6)


@pytest.mark.slow
def test_recipe(tmp_path: Path) -> None:
    recipe = zoo.load("mini-nosink")
    model = recipe.build(device="cpu")
    save(model, tmp_path / "model", recipe=recipe.to_json())
    text = card_of(tmp_path / "model")
    assert "\n# mini-nosink\n" in text and cast(str, recipe.about.note) in text
    for given in (recipe, "mini-nosink"):
        write_card(model, tmp_path, recipe=given, repo_id="org/mine")
        written = card_of(tmp_path)
        assert 'SentenceTransformer("org/mine", revision="main")' in written and PLACEHOLDER not in written
    # Who saves it again keeps the recipe's name and notes, unless it is another model by then.
    loaded = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    save(loaded, tmp_path / "again")
    assert card_of(tmp_path / "again") == text
    loaded.prompts["query"] = "Q: "
    save(loaded, tmp_path / "changed", golden=False)
    changed = card_of(tmp_path / "changed")
    assert "\n# mini-nosink\n" not in changed and '- Prompt `query`: `"Q: "`.' in changed


@pytest.mark.parametrize("repo_id", ["org/my-model"])
def test_repository_name(tmp_path: Path, repo_id: str) -> None:
    model = st_reba.build("mini")
    write_card(model, tmp_path)
    filled = with_repo_id(card_of(tmp_path), repo_id)
    write_card(model, tmp_path, repo_id=repo_id)
    assert card_of(tmp_path) == filled
    assert "st-reba export-onnx org/my-model my-model-onnx" in filled


def test_weights_left_at_the_base(base: Callable[..., str], tmp_path: Path) -> None:
    place = base("qwen3")
    model = st_reba.build(place, "echo", max_seq_length=50)
    save(model, tmp_path / "whole", golden=False)
    save(model, tmp_path / "left", golden=False, weights=False, base=place)
    whole, left = card_of(tmp_path / "whole"), card_of(tmp_path / "left")
    assert "| weights | float32 |" in whole and "| weights | none here: the base's are loaded |" in left
    assert "not pinned: when its weights change" in left and "not pinned: when" not in whole
    assert str(Path(place).parent) not in whole + left
    # Nothing is known of that base: no licence is made up.
    data = cast(Any, ModelCard(whole).data).to_dict()
    assert "license" not in data and "base_model" not in data and "language" not in data
    assert "is not known here: see the base." in whole
    settings = json.loads((tmp_path / "left" / "sentence_bert_config.json").read_text(encoding="utf-8"))
    settings |= {"base_model": "Qwen/Qwen3-0.6B", "base_revision": COMMIT}
    (tmp_path / "left" / "sentence_bert_config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_card(model, tmp_path / "left")
    text = card_of(tmp_path / "left")
    data = cast(Any, ModelCard(text).data).to_dict()
    assert (
        data["base_model"] == "Qwen/Qwen3-0.6B" and data["license"] == "apache-2.0" and data["language"] == ["zh", "en"]
    )
    assert f"| base revision | `{COMMIT}` |" in text and "not pinned" not in text


def test_a_base_that_keeps_its_input(base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = Transformer(base("llama"))
    backbone.tokenizer.pad_token = backbone.tokenizer.bos_token
    parts = [backbone, Pooling(backbone.get_embedding_dimension(), "mean"), Normalize()]
    SentenceTransformer(modules=parts, prompts={"query": "Ask: "}, device="cpu").save_pretrained(str(tmp_path / "base"))
    model = st_reba.build(str(tmp_path / "base"), "nosink", setting="mask0-bidir", k=1)
    save(model, tmp_path / "model", golden=False)
    text = card_of(tmp_path / "model")
    assert "is an embedder already" in text and "keeps its input, prompts, pooling" in text
    assert "encode_words" not in text and "export-onnx" not in text and "Nothing was trained" not in text
    assert '- Prompt `query`: `"Ask: "`.' in text
    assert run_examples(with_repo_id(text, str(tmp_path / "model")), monkeypatch)["blocks"] == 4


def test_results(tmp_path: Path) -> None:
    model, file = st_reba.build("mini"), tmp_path / "results.json"
    file.write_text(json.dumps([SCORE]), encoding="utf-8")
    write_card(model, tmp_path, results=file)
    text = card_of(tmp_path)
    index = cast(Any, ModelCard(text).data).to_dict()["model-index"]
    assert index[0]["name"] == "mini-reba-2-last"
    assert index[0]["results"][0]["metrics"][0]["value"] == 0.439
    assert "| STS | STSB (test) | spearman | 0.439 |" in text and "No benchmark was run" not in text
    for content, message in (
        ("{", "is not JSON"),
        ("[]", "must be a list of objects"),
        ('["x"]', "entry 1 is no object"),
        (json.dumps([SCORE, {**SCORE, "score": 1}]), "entry 2 has 'score'; an entry has fields of"),
        (json.dumps([{"task_type": "STS"}]), "entry 1: .*dataset_type"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_results(file)


def test_no_model_of_ours(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"A card needs a model that st_reba built; this one is \['Pooling', 'Normalize'\]"
    ):
        write_card(SentenceTransformer(modules=[Pooling(32), Normalize()]), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", slow_but([name for name in zoo.names() if name.startswith("mini-")], "mini-reba"))
def test_recipe_and_model_agree(name: str) -> None:
    recipe = zoo.load(name)
    alone, built = facts_of_recipe(recipe), facts_of_model(recipe.build(device="cpu"))
    same = ("base", "method", "pooling", "copies", "templates", "fields", "options", "plan", "setting", "modules")
    assert {field: getattr(alone, field) for field in same} == {field: getattr(built, field) for field in same}
    assert recipe_card(recipe) == recipe_card(recipe)
