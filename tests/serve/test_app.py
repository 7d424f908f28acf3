"""The application: vectors are the model's own, and what cannot be answered is refused in OpenAI's form."""

from __future__ import annotations

import base64
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import Ask
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Document
from st_reba.demo import sentences
from st_reba.index import Index
from st_reba.serve import Settings
from st_reba.serve.app import make_app

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny import tiny_model

PATH = "/v1/embeddings"
TEXTS = ["猫在睡觉。", "", "The bank cut its interest rates again. " * 9, "a", "Ships\n sail  "]


def vectors(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data])


def test_vectors_are_the_models_own(ask: Ask, model: SentenceTransformer) -> None:
    """Of a text and of a list, of each kind, with both forms; and the positions that were run."""
    texts, query, named, document, packed = ask(
        (PATH, {"input": TEXTS, "model": "m"}),
        (PATH, {"input": TEXTS[0], "model": "m:query", "user": "somebody"}),
        (PATH, {"input": [TEXTS[0]], "model": "m", "input_type": "query"}),
        (PATH, {"input": TEXTS, "model": "m:document"}),
        (PATH, {"input": TEXTS, "encoding_format": "base64"}),
    )
    plain = model.encode(TEXTS)
    np.testing.assert_allclose(vectors(texts), plain, atol=1e-6, rtol=0)
    np.testing.assert_allclose(vectors(query), [model.encode_query(TEXTS[0])], atol=1e-6, rtol=0)
    np.testing.assert_allclose(vectors(named), vectors(query), atol=1e-6, rtol=0)
    np.testing.assert_allclose(vectors(document), model.encode_document(TEXTS), atol=1e-6, rtol=0)
    assert np.abs(plain[0] - vectors(query)[0]).max() > 1e-2
    rows = [base64.b64decode(one["embedding"]) for one in packed.json()["data"]]
    np.testing.assert_allclose([np.frombuffer(row, "<f4") for row in rows], plain, atol=1e-6, rtol=0)
    run = int(model.preprocess(TEXTS)["attention_mask"].sum())
    assert texts.json()["usage"] == {"prompt_tokens": run, "total_tokens": run}
    assert (texts.json()["object"], texts.json()["model"]) == ("list", "m")


def test_dimensions(ask: Ask, model: SentenceTransformer) -> None:
    """The first components, as long as the whole vector was."""
    cut, whole = ask((PATH, {"input": TEXTS, "dimensions": 5}), (PATH, {"input": TEXTS, "dimensions": 192}))
    full = model.encode(TEXTS).astype(np.float64)
    expected = [row[:5] / np.sqrt(sum(row[:5] ** 2)) * np.sqrt(sum(row**2)) for row in full]
    np.testing.assert_allclose(vectors(cut), expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(vectors(whole), full, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("given", "status", "param", "word"),
    [
        (b'{"input": "\\ud800"}', 400, "input", "surrogate"),
        ({"input": "a", "model": "other"}, 404, "model", "m:query"),
        ({"input": "a", "dimensions": 193}, 400, "dimensions", "192"),
        ({"input": ["a"] * 9}, 422, "input", "several requests"),
        ({"input": "a " * 90}, 422, "input", "tokens"),
        (b'{"input": "' + b"a" * 2**20 + b'"}', 413, None, "1 MiB"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refused(ask: Ask, given: Any, status: int, param: str | None, word: str) -> None:
    """Each field is tested in test_requests.py."""
    (answer,) = ask((PATH, given), settings=Settings(max_texts=8, max_tokens=100, max_body=1))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param) and word in error["message"]
    assert error["type"] == "invalid_request_error"


def test_keys_and_hosts(ask: Ask) -> None:
    paths = ("/v1/models", "/metrics", PATH)
    right, wrong = {"Authorization": "Bearer two"}, {"Authorization": "Bearer on"}
    body = {"input": "a"}
    requests = [(path, body if path == PATH else None, headers) for path in paths for headers in (right, wrong, None)]
    answers = ask(("/health", None), *requests, keys=["one", "two"])
    assert [one.status_code for one in answers] == [200, *[200, 401, 401] * 3]
    assert answers[2].json()["error"]["code"] == "invalid_api_key"
    named, other = ask(
        ("/v1/models", None), ("/v1/models", None, {"Host": "elsewhere.example:8080"}), hosts=["127.0.0.1"]
    )
    assert (named.status_code, other.status_code) == (200, 403)


def test_models_and_health(ask: Ask) -> None:
    models, there, unknown, health = ask(
        ("/v1/models", None), ("/v1/models/m:query", None), ("/v1/models/other", None), ("/health", None)
    )
    assert [one["id"] for one in models.json()["data"]] == ["m", "m:query", "m:document"]
    assert there.json()["dimensions"] == 192 and unknown.json()["error"]["code"] == "model_not_found"
    assert health.json() == {"status": "ok", "model": "m", "waiting": 0}


@pytest.fixture
def index(model: SentenceTransformer, tmp_path: Path) -> Index:
    documents = [Document(one.text, str(row), {"row": row}) for row, one in enumerate(sentences()[:12])]
    return Index.build(model, documents, tmp_path / "index", show_progress_bar=False)


def test_search(ask: Ask, index: Index) -> None:
    """As the index itself answers, with conditions; for a text a list, for a list of texts a list of lists."""
    where = {"row": {">=": 7}}
    one, many, ids, *refused = ask(
        ("/v1/search", {"query": "一只猫", "k": 4, "where": where}),
        ("/v1/search", {"query": ["a cat", "money"]}),
        ("/v1/search", {"query": "a cat", "ids_only": True}),
        ("/v1/search", {"query": "a", "where": {"row": {"~": 1}}}),
        ("/v1/search", {"query": "a", "k": 0}),
        index=index,
    )
    assert one.json()["results"] == _shown(index.search("一只猫", 4, where=where))
    assert many.json()["results"] == [_shown(found) for found in index.search(["a cat", "money"])]
    assert ids.json()["results"] == _shown(index.search("a cat", ids_only=True))
    assert [(one.status_code, one.json()["error"]["param"]) for one in refused] == [(400, "where"), (400, "k")]


def _shown(found: Any) -> list[dict[str, Any]]:
    return [{**asdict(one), "score": pytest.approx(one.score, abs=1e-6)} for one in found]


def test_an_index_that_has_become_another_models(ask: Ask, tmp_path: Path) -> None:
    """Its vectors are as long, so that only the fingerprint tells."""
    model, other = tiny_model(), tiny_model(seed=1)
    with Index.build(model, ["a cat"], tmp_path / "i", show_progress_bar=False) as index:
        app = make_app(model, "m", index=index)
        (before,) = ask(("/v1/search", {"query": "cat"}), app=app)
        Index.build(other, ["a cat"], tmp_path / "i", overwrite=True, show_progress_bar=False).close()
        (after,) = ask(("/v1/search", {"query": "cat"}), app=make_app(model, "m", index=index))
    assert before.json()["results"][0]["text"] == "a cat"
    assert after.status_code == 409 and "model" in after.json()["error"]["message"]
