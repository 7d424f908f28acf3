"""Ensembles of templates against the oracle: methods × padding side × batches, and as ordinary pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import reference_nosink
import torch
from marks import slow_but
from oracle import TEXTS, assert_close, double, loaded
from reference_stages import ensemble
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from torch import Tensor

import st_reba
from st_reba import PromptEnsemble, RepeatTransformer
from st_reba.batches import copied_positions
from st_reba.encode import encode_texts
from st_reba.modules.ensemble import check_weights, ensemble_weights
from st_reba.modules.templates import ENSEMBLES, TEMPLATES, WEIGHTS, ensemble_templates, task_templates

Base = Callable[..., str]
ONE = ["{text}", "Topic: {text}.", "“{text}” is: "]
TWO = ["{text} {text}", "Say {text}: {text}!"]
METHODS: dict[str, dict[str, Any]] = {
    "mean": {"method": "classical", "pooling": "mean", "template": ONE},
    "last": {"method": "classical", "template": ONE, "weights": [1, -0.5, 0.25]},
    "prompteol": {"method": "prompteol", "template": ONE, "weights": [2, 0, -1]},
    "echo": {"method": "echo", "pooling": "mean", "template": TWO},
    "reba": {"method": "reba", "template": TWO, "weights": [0.5, -1]},
    "reba-mean": {"method": "reba", "pooling": "mean", "template": TWO},
    "nosink": {"method": "nosink", "setting": "mask0-bidir", "k": 1, "template": ONE},
}


def pieces(template: str) -> list[str | None]:
    literals = template.split("{text}")
    return [each for literal in literals for each in (literal, None)][:-1]


@lru_cache(maxsize=512)
def vector(base: str, text: str, template: str, method: str) -> Tensor:
    """One prompt's vector, by the oracle."""
    model = double(base)
    placed = reference.layout(loaded(base)[1], text, pieces(template))
    if method == "nosink":
        depth = model.config.num_hidden_layers
        wanted = reference_nosink.plan(depth, kind="nosink-bidirectional", k=1)
        return reference.classical(reference_nosink.hooked(model, placed.ids, wanted)[0], placed, "mean")
    hidden, maps = reference.hidden_and_attention(model, placed.ids)
    if method == "prompteol":
        return reference.very_last(hidden)
    if method.startswith("reba"):
        return reference.reba(hidden, reference.symmetrized_max(maps), placed, "mean" if "mean" in method else "last")
    return reference.echo(hidden, placed, "last" if method == "last" else "mean")


def wanted(base: str, text: str, method: str, equal_norms: bool) -> Tensor:
    templates = METHODS[method]["template"]
    weights = METHODS[method].get("weights", [1 / len(templates)] * len(templates))
    return ensemble([vector(base, text, each, method) for each in templates], weights, equal_norms)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", slow_but(["gpt2", "llama", "qwen2"], "llama"))
def test_exact(base: Base, name: str, method: str) -> None:
    path = base(name, "bos_eos")
    for side, equal_norms in (("left", True), ("right", False)):
        model = st_reba.build(path, **METHODS[method], equal_norms=equal_norms, normalize=False, padding_side=side)
        assert [type(each).__name__ for each in model][2:] == ["PromptEnsemble"]
        expected = [wanted(path, text, method, equal_norms) for text in TEXTS]
        for size in (1, 2, len(TEXTS)):
            for found, each in zip(model.encode(list(TEXTS), batch_size=size), expected, strict=True):
                assert_close(found, each)
        unit = st_reba.build(path, **METHODS[method], equal_norms=equal_norms, padding_side=side)
        assert_close(unit.encode(TEXTS[1]), expected[1] / expected[1].norm())


def test_one_weight_is_one_prompt(base: Base) -> None:
    path = base("llama")
    model = st_reba.build(path, "prompteol", template=ONE, weights=[0, 3, 0])
    alone = st_reba.build(path, "prompteol", template=ONE[1])
    np.testing.assert_allclose(model.encode(list(TEXTS)), alone.encode(list(TEXTS)), atol=1e-6)


def test_named() -> None:
    for name, templates in ENSEMBLES.items():
        assert name not in TEMPLATES and len(set(templates)) == len(templates) >= 2
        assert ensemble_templates(name) == tuple(task_templates(each) for each in templates)
        found = ensemble_weights(name, None)
        assert found == list(WEIGHTS.get(name, [1 / len(templates)] * len(templates)))
        assert found == check_weights(found)
    model: Any = st_reba.build("mini", "prompteol", template="contrastive")
    listed = st_reba.build("mini", "prompteol", template=list(ENSEMBLES["contrastive"]), weights=[1, -0.25])
    np.testing.assert_array_equal(model.encode(list(TEXTS)), listed.encode(list(TEXTS)))
    assert model[0].template == "contrastive" and model[0].rows == 2
    assert model.get_embedding_dimension() == 192


def test_queries_and_documents(base: Base) -> None:
    """Each template takes the fields that it has, and a prompt where it has none."""
    path = base("llama")
    model = st_reba.build(
        path,
        "prompteol",
        template=[{"query": "For {instruction} find: {text}", "document": "Text: {text}"}, "In {language}: {text}!"],
        normalize=False,
    )

    def expected(*templates: str) -> Tensor:
        return ensemble([vector(path, TEXTS[2], each, "prompteol") for each in templates], [0.5, 0.5])

    assert_close(
        model.encode_query(TEXTS[2], prompt="a bank", language="French"),
        expected("For a bank find: {text}", "a bankIn French: {text}!"),
    )
    assert_close(model.encode_document(TEXTS[2], language="C"), expected("Text: {text}", "In C: {text}!"))
    # A prompt that only queries have a place for means a query.
    assert_close(
        model.encode(TEXTS[2], prompt="a bank", language="C"),
        expected("For a bank find: {text}", "a bankIn C: {text}!"),
    )
    with pytest.raises(ValueError, match="needs a value for {language}"):
        model.encode_document(TEXTS[2])
    with pytest.raises(ValueError, match=r"colour='red': .*no such field; it has \['instruction', 'language'\]"):
        model[0].frames(task="query", colour="red")  # type: ignore[operator]


def test_rows_and_cut(base: Base) -> None:
    """A text's rows stand one after another, cut alike to the least of the budgets."""
    model: Any = st_reba.build(base("llama"), "prompteol", template=ONE, max_seq_length=30)
    first = model[0]
    frames = first.frames()
    assert [frame.overhead for frame in frames] == sorted({frame.overhead for frame in frames})
    assert first.budget() == 30 - frames[-1].overhead
    contents = [[7] * 3, [9] * first.budget()]
    features = first.place(contents, *frames)
    texts = [(ids == token).sum().item() for ids, token in zip(features["input_ids"], [7, 7, 7, 9, 9, 9], strict=True)]
    assert (features["copy_ids"] == 1).sum(dim=1).tolist() == [3, 3, 3, *[first.budget()] * 3]
    assert texts == (features["copy_ids"] == 1).sum(dim=1).tolist()
    long = "The river runs past the old mill. " * 9
    rows = first.preprocess([long])
    assert {int(copies.sum()) for copies in rows["copy_ids"]} == {first.budget()}
    assert rows["input_ids"].shape == (3, 30)
    # What a text counts for is what its rows take.
    for text in (*TEXTS, "", long):
        assert copied_positions(first, [text]) == [first.preprocess([text])["input_ids"].numel()]


def test_token_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    model = st_reba.build("mini", "prompteol", template="metaeol")
    taken: list[int] = []
    forward = RepeatTransformer.forward

    def counted(self: Any, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        taken.append(features["input_ids"].numel())
        return forward(self, features, **kwargs)

    monkeypatch.setattr(RepeatTransformer, "forward", counted)
    texts = [text[: 1 + number] for number in range(12) for text in TEXTS]
    vectors = encode_texts(model, texts, batch_tokens=1200)
    assert len(taken) > 1 and max(taken) <= 1200
    np.testing.assert_allclose(vectors, model.encode(texts, batch_size=3), atol=2e-6)


def test_what_stays(base: Base) -> None:
    model = st_reba.build(base("llama"), "prompteol", template=ONE)
    features = model[0].preprocess(list(TEXTS))  # type: ignore[operator]
    with torch.inference_mode():
        found = model(features)
    assert [name for name, value in found.items() if isinstance(value, Tensor)] == ["sentence_embedding"]
    assert found["sentence_embedding"].shape == (len(TEXTS), 32)
    assert len(features["input_ids"]) == 3 * len(TEXTS)
    with pytest.raises(ValueError, match="An ensemble of templates has sentence vectors only"):
        model.encode(list(TEXTS), output_value="token_embeddings")
    each = model.encode(list(TEXTS), output_value=None)
    np.testing.assert_allclose(each[1]["sentence_embedding"], model.encode(TEXTS[1]), atol=1e-6)
    with pytest.raises(ValueError, match=r"got 4 vectors, which is no multiple of its 3 weights.*multiples of 3 rows"):
        model[2]({"sentence_embedding": torch.ones(4, 8)})  # type: ignore[operator]


def test_not_finite(base: Base) -> None:
    """A text is zero where one of its vectors is; its neighbours are not."""
    model: Any = st_reba.build(base("llama"), "prompteol", template=ONE, non_finite="zeros", normalize=False)
    before = model.encode(["hi", "a"])
    (token,) = set(model[0].content(["a"])["input_ids"][0])
    word = model[0].frames()[1].pieces[1][0]
    assert token != word
    with torch.no_grad():
        model[0].model.embed_tokens.weight[token] = torch.inf
    np.testing.assert_allclose(model.encode(["hi"]), before[:1], atol=1e-6)
    assert not model.encode(["a"]).any()
    with torch.no_grad():
        model[0].model.embed_tokens.weight[word] = torch.inf
    assert not model.encode(["hi", "a"]).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_number_types(dtype: torch.dtype) -> None:
    """The sum is not rounded in between."""
    vectors = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = [0.3, -0.7, 0.1]
    found = PromptEnsemble(weights)({"sentence_embedding": vectors})["sentence_embedding"]
    assert found.dtype == dtype
    for row in range(2):
        exact = ensemble(list(vectors[3 * row : 3 * row + 3]), weights)
        assert_close(found[row], exact, 4e-3 if dtype == torch.bfloat16 else 1e-12)


@pytest.mark.slow
def test_saved(tmp_path: Path) -> None:
    """By plain sentence-transformers, twice, and in a process without st_reba."""
    options: dict[str, Any] = {"template": [ONE[1], {"query": "Q: {text}", "document": "D: {text}"}]}
    model = st_reba.build("mini", "prompteol", **options, weights=[1, -0.25], equal_norms=False)
    wanted = np.stack([model.encode_query(list(TEXTS)), model.encode_document(list(TEXTS))])
    model.save_pretrained(str(tmp_path / "first"))
    again: Any = SentenceTransformer(str(tmp_path / "first"), device="cpu")
    again.save_pretrained(str(tmp_path / "second"))
    assert again[0].template == options["template"]
    assert again[2].get_config_dict() == {"weights": [1.0, -0.25], "equal_norms": False}
    for name in ("first", "second"):
        each = SentenceTransformer(str(tmp_path / name), device="cpu")
        np.testing.assert_array_equal([each.encode_query(list(TEXTS)), each.encode_document(list(TEXTS))], wanted)
    script = (
        "import json, sys\n"
        "sys.modules['st_reba'] = None\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer('second', trust_remote_code=True, device='cpu')\n"
        f"print(json.dumps(model.encode_query({list(TEXTS)!r}).tolist()))\n"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[")]
    np.testing.assert_allclose(json.loads(line), wanted[0], atol=1e-6, rtol=0)


def test_described(tmp_path: Path) -> None:
    """What readers are told of a saved ensemble, its card included."""
    pytest.importorskip("yaml")
    from st_reba.describe import describe
    from st_reba.hub.card_text import method_notes
    from st_reba.hub.facts import facts_of_model

    model: Any = st_reba.build("mini", "prompteol", template=ONE, weights=[1, -0.5, 0], prepend=2, max_seq_length=50)
    model.save_pretrained(str(tmp_path))
    found, facts = describe(tmp_path), facts_of_model(model)
    assert found.tokens_per_copy == facts.budget == model[0].budget()
    assert found.template == ONE and facts.templates == dict.fromkeys(("query", "document"), " ⊕ ".join(ONE))
    assert facts.options == {"weights": [1.0, -0.5, 0.0], "prepend": 2}
    assert facts.overhead == max(frame.overhead for frame in model[0].frames())
    notes = " ".join(method_notes(facts))
    assert "3 templates" in notes and "multiplied by 1, -0.5, 0." in notes and "first 2 layers" in notes
    assert facts.signature != facts_of_model(st_reba.build("mini", "prompteol", template=ONE)).signature


def test_recipe(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    recipe = tmp_path / "one.yaml"
    recipe.write_text("base: mini\nmethod: prompteol\ntemplate: [prompteol, '{text} is'] \nweights: [1, -0.5]\n")
    model: Any = st_reba.build(str(recipe))
    assert model[0].template == ["prompteol", "{text} is"] and model[2].weights == [1.0, -0.5]


def test_learns(base: Base) -> None:
    """Gradients reach the backbone through every prompt; a split at whole texts is no change."""
    model: Any = st_reba.build(base("llama"), "prompteol", template=ONE)
    features = [model[0].preprocess(list(TEXTS[:2])), model[0].preprocess(list(TEXTS[2:4]))]
    loss = losses.MultipleNegativesRankingLoss(model)(features, torch.tensor([]))
    loss.backward()
    rows = model[0].model.embed_tokens.weight.grad.abs().sum(dim=1)
    for frame in model[0].frames():
        for piece in frame.pieces[1:]:
            assert piece is None or bool((rows[list(piece)] > 0).all())
    whole = model(features[0])["sentence_embedding"]
    parts = [model({name: value[at : at + 3] for name, value in features[0].items()}) for at in (0, 3)]
    torch.testing.assert_close(torch.cat([each["sentence_embedding"] for each in parts]), whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": []}, "lists 0 templates: an ensemble has from 2 to 64"),
        ({"template": ["{text}"]}, "lists 1 templates"),
        ({"template": ["{text}"] * 65}, "lists 65 templates"),
        ({"template": ["{text}", 3]}, "3 must be one template"),
        ({"template": ["{text}", "metaeol"]}, "'metaeol' must be one template"),
        ({"template": ["{text}", "none"]}, "'none' is neither the name of a template"),
        ({"template": ["{text}", "{text} {text}"]}, r"have \[1, 2\] \{text\} slots"),
        ({"template": 3}, "template=3 must be a template, a mapping with the keys .*, or a list"),
        ({"template": TWO}, r"has 2 \{text\} slots, but method='classical' runs the text once"),
        ({"template": ONE, "repeats": 3}, "repeats=3 does not fit the template"),
        ({"template": ONE, "weights": [1, 2]}, r"weights=\[1, 2\] are 2 for 3 templates"),
        ({"template": ONE, "weights": [0, 0, 0]}, "are all 0"),
        ({"template": ONE, "weights": [1, 2, float("nan")]}, "nan.* must be a finite number"),
        ({"template": ONE, "weights": [1, 2, True]}, "True must be a finite number"),
        ({"template": ONE, "weights": "1,2,3"}, "weights='1,2,3' must be a list of numbers"),
        ({"template": ONE, "equal_norms": 1}, "equal_norms=1 is not known"),
        ({"weights": [1, 2]}, r"weights=\[1, 2\] belong to an ensemble of templates.*'metaeol'"),
        ({"equal_norms": False}, "equal_norms=False belongs to an ensemble"),
        ({"method": "reba", "chunk": 8, "template": ONE}, "chunk=8: .*not in 3"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        st_reba.build("mini", **{"method": "classical", **options})


def test_pipelines_that_do_not_fit() -> None:
    model: Any = st_reba.build("mini", "prompteol", template=ONE)
    with pytest.raises(ValueError, match=r"each text stands in 3 templates, so st_reba.PromptEnsemble has to follow"):
        SentenceTransformer(modules=[model[0], model[1]], device="cpu")
    with pytest.raises(ValueError, match=r"puts 2 vectors of a text together, but RepeatTransformer .* in 3 templates"):
        SentenceTransformer(modules=[model[0], model[1], PromptEnsemble([1, 1])], device="cpu")
    with pytest.raises(ValueError, match="each text stands in 3 templates.*no single sequence"):
        st_reba.encode_words(model, [("hi", (0, 2))])


def test_no_graph() -> None:
    from st_reba.hub.onnx.method import method_of

    with pytest.raises(ValueError, match="'PromptEnsemble'.*only a pooling.*can be exported"):
        method_of(st_reba.build("mini", "prompteol", template="metaeol", device="cpu"))
