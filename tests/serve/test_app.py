"""The application: vectors are the model's own, and refusals have OpenAI's form."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import st_reba
from st_reba.serve.app import EmbeddingServer, embeddings_json

PATH = "/v1/embeddings"
TEXTS = ["猫在睡觉。", "", "The bank cut its interest rates again. " * 9, "a", "Ships\n sail  "]


def vectors(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data])


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)


def test_vectors_are_the_models_own(ask: Any, model: Any) -> None:
    texts, query, document, packed = ask(
        (PATH, {"input": TEXTS, "model": "m"}),
        (PATH, {"input": TEXTS[0], "model": "m:query"}),
        (PATH, {"input": TEXTS, "model": "m:document"}),
        (PATH, {"input": TEXTS * 20, "encoding_format": "base64"}),
    )
    plain = model.encode(TEXTS)
    close(vectors(texts), plain)
    close(vectors(query), [model.encode_query(TEXTS[0])])
    close(vectors(document), model.encode_document(TEXTS))
    assert np.abs(plain[0] - vectors(query)[0]).max() > 1e-2
    # Large enough to be written in another thread.
    rows = [base64.b64decode(one["embedding"]) for one in packed.json()["data"]]
    close([np.frombuffer(row, "<f4") for row in rows], np.tile(plain, (20, 1)))
    run = int(model.preprocess(TEXTS)["attention_mask"].sum())
    assert texts.json()["usage"] == {"prompt_tokens": run, "total_tokens": run}
    assert (texts.json()["object"], texts.json()["model"]) == ("list", "m")


def test_dimensions(ask: Any, model: Any) -> None:
    """The first components, as long as the whole vector was."""
    cut, whole = ask((PATH, {"input": TEXTS, "dimensions": 7}), (PATH, {"input": TEXTS, "dimensions": 192}))
    full = model.encode(TEXTS).astype(np.float64)
    close(vectors(cut), [row[:7] / np.sqrt(sum(row[:7] ** 2)) * np.sqrt(sum(row**2)) for row in full])
    close(vectors(whole), full)
    with pytest.raises(ValueError):
        embeddings_json(np.full((1, 2), np.nan), 2, as_base64=False)


@pytest.mark.parametrize(
    ("given", "status", "param"),
    [
        ({"input": 1}, 400, "input"), ({"input": "a", "dimensions": 193}, 400, "dimensions"), (b"", 400, None),
        ({"input": "a " * 90}, 422, "input"), (b'{"input": "' + b"a" * 2**20 + b'"}', 413, None),
    ],
    ids=lambda value: str(value)[:24],
)  # fmt: skip
def test_refusals(ask: Any, given: Any, status: int, param: str | None) -> None:
    (answer,) = ask((PATH, given), max_tokens=100, max_body=1)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, "invalid_request_error", param)
    assert error["message"] and (answer.headers.get("connection") == "close") == (status == 413)


def test_paths_and_content_types(ask: Any) -> None:
    text = {"Content-Type": "text/plain"}
    answers = ask(("/v1/nowhere", None), (PATH, None), (PATH, {"input": "a"}, text), ("/v1/search", {"query": "a"}))
    assert [one.status_code for one in answers] == [404, 405, 415, 404]
    assert all(one.json()["error"]["message"] for one in answers)


@pytest.mark.parametrize("path", ["/v2/embed", "/v1/embed", "/openai/deployments/m/embeddings?api-version=2024-02-01"])
def test_a_path_of_another_api_names_those_that_are_there(path: str, ask: Any) -> None:
    """Cohere's and Azure's clients."""
    (answer,) = ask((path, {"input": "a"}))
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404 and "/v1/embeddings" in message and "base URL ends in /v1" in message


def test_keys_and_hosts(ask: Any) -> None:
    paths, body = ("/v1/models", "/metrics", PATH), {"input": "a"}
    sent = [{"Authorization": "Bearer two"}, {"Authorization": "Bearer on"}, None]
    requests = [(path, body if path == PATH else None, headers) for path in paths for headers in sent]
    answers = ask(("/health", None), *requests, keys=["one", "two"])
    assert [one.status_code for one in answers] == [200, *[200, 401, 401] * 3]
    assert answers[2].json()["error"]["type"] == "authentication_error"
    assert answers[2].headers["www-authenticate"] == "Bearer"
    here, elsewhere = ("/v1/models", None), ("/v1/models", None, {"Host": "elsewhere.example:8080"})
    strange = ("/v1/models", None, {"Host": "x@evil.example"})
    assert [one.status_code for one in ask(here, elsewhere, strange, hosts=["127.0.0.1"])] == [200, 403, 403]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/m"])
def test_no_path_answers_a_foreign_host(path: str, ask: Any) -> None:
    foreign = {"Host": "evil.example"}
    statuses = [answer.status_code for answer in ask((path, None), (path, None, foreign), hosts=["127.0.0.1"])]
    assert statuses == [200, 403]


def test_another_scheme_than_bearer_is_refused(ask: Any) -> None:
    requests = [("/v1/models", None, {"Authorization": f"{scheme} one"}) for scheme in ("Basic", "bearer")]
    assert [answer.status_code for answer in ask(*requests, keys=["one"])] == [401, 200]


@pytest.mark.parametrize("name", ["m", "m:query", "org/m", "org/m:document"])
def test_a_model_is_described_by_its_name(name: str, ask: Any, model: Any) -> None:
    app = EmbeddingServer(model, name.partition(":")[0])
    plain, escaped, models = ask(
        (f"/v1/models/{name}", None), (f"/v1/models/{quote(name, safe='')}", None), ("/v1/models", None), app=app
    )
    assert plain.json() == escaped.json()
    assert plain.json() in models.json()["data"]
    assert (plain.json()["id"], plain.json()["object"], plain.json()["dimensions"]) == (name, "model", 192)


@pytest.mark.parametrize("name", ["other", "m:other", "m%3Aquery%20", "m/"])
def test_a_model_that_is_not_there_is_not_found(name: str, ask: Any) -> None:
    (answer,) = ask((f"/v1/models/{name}", None))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("input_type", "task"),
    [
        ("query", "query"), ("search_query", "query"), ("RETRIEVAL_QUERY", "query"), ("passage", "document"),
        ("document", "document"), ("search_document", "document"), ("clustering", None), ("classification", None),
        (None, None),
    ],
)  # fmt: skip
def test_input_type_chooses_the_prompt(input_type: str | None, task: Any, ask: Any, model: Any) -> None:
    (answer,) = ask((PATH, {"input": TEXTS, "model": "m", "input_type": input_type, "drop_params": True}))
    close(vectors(answer), st_reba.encode.encode_texts(model, TEXTS, task=task))


def test_texts_that_are_cut_are_counted(ask: Any) -> None:
    model = st_reba.build("mini", "echo", max_seq_length=64, device="cpu")
    app, inputs = EmbeddingServer(model, "m"), ["short", "word " * 90, "word " * 91]
    passing = [{"input": inputs}, {"input": inputs, "truncate": "END"}, {"input": ["short"], "truncate": "NONE"}]
    refused = [{"input": inputs, "truncate": "NONE"}, {"input": inputs, "truncation": False}]
    answers = ask(*[(PATH, body) for body in passing + refused], app=app)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 400]
    assert "input[1]" in answers[-1].json()["error"]["message"]
    (page,) = ask(("/metrics", None), app=app)
    assert "st_reba_cut_texts_total 4.0" in page.text.splitlines()


def test_texts_that_are_cut_are_no_news_for_the_log(ask: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = st_reba.build("mini", "classical", pooling="mean", max_seq_length=64, device="cpu")
    (answer,) = ask((PATH, {"input": ["word " * 90, "short"]}), app=EmbeddingServer(model, "m"))
    assert answer.status_code == 200
    messages = [record.getMessage() for record in caplog.records]
    assert not any("longer than the model reads" in message for message in messages)


def test_models_and_health(ask: Any) -> None:
    models, health = ask(("/v1/models", None), ("/health", None))
    assert [one["id"] for one in models.json()["data"]] == ["m", "m:query", "m:document"]
    assert health.json() == {"status": "ok", "model": "m", "waiting": 0}


def test_metrics_of_each_application(ask: Any, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 7.0)
    app, other = EmbeddingServer(model, "m"), EmbeddingServer(model, "other")
    ask((PATH, {"input": ["a", "b"]}), (PATH, {"input": 1}), app=app)
    (page,) = ask(("/metrics", None), app=app)
    assert {
        f"st_reba_tokens_total {float(model.preprocess(['a', 'b'])['attention_mask'].sum())}",
        "st_reba_batch_texts_sum 2.0",
        'st_reba_batch_texts_bucket{le="2.0"} 1.0',
        f'st_reba_request_seconds_sum{{path="{PATH}",status="200"}} 0.0',
        f'st_reba_request_seconds_count{{path="{PATH}",status="200"}} 1.0',
        f'st_reba_request_seconds_count{{path="{PATH}",status="400"}} 1.0',
    } <= set(page.text.splitlines())
    assert "st_reba_tokens_total 0.0" in ask(("/metrics", None), app=other)[0].text.splitlines()


def test_search(ask: Any, model: Any, tmp_path: Path) -> None:
    """The index's own answer: a list for a text, a list of lists for a list of texts."""
    texts = ("猫", "a cat", "ships", "money")
    documents = [{"id": str(row), "text": text, "row": row} for row, text in enumerate(texts)]
    st_reba.Index.build(model, documents, tmp_path / "index", show_progress_bar=False).close()
    with st_reba.Index.open(tmp_path / "index", model) as index:
        where = {"row": {">=": 2}}
        one, many, condition, count, words, wrong = ask(
            ("/v1/search", {"query": "一只猫", "k": 3, "where": where}),
            ("/v1/search", {"query": ["a cat", "money"]}),
            ("/v1/search", {"query": "a", "where": {"row": {"~": 1}}}),
            ("/v1/search", {"query": "a", "k": 0}),
            ("/v1/search", {"query": '"cat" OR', "mode": "words", "explain": True}),
            ("/v1/search", {"query": "a", "mode": "word"}),
            index=index,
        )
        assert one.json()["results"] == shown(index.search("一只猫", 3, where=where))
        assert {each["id"] for each in one.json()["results"]} == {"2", "3"}
        assert many.json()["results"] == [shown(found) for found in index.search(["a cat", "money"])]
        assert words.json()["results"] == shown(index.search("cat", mode="words", explain=True))
        assert [result["id"] for result in words.json()["results"]] == ["1"]
        # Another model's index takes its place.
        st_reba.Index.build(st_reba.build("mini", "reba"), documents, tmp_path / "index", overwrite=True).close()
        (other,) = ask(("/v1/search", {"query": "a cat"}), index=index)
    assert [one.status_code for one in (condition, count, wrong, other)] == [400] * 4
    assert "model" in other.json()["error"]["message"]


def shown(found: Any) -> list[dict[str, Any]]:
    return [{**one.to_json(), "score": pytest.approx(one.score, abs=1e-6)} for one in found]


def test_bodies_in_pieces(model: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not arrive, and one that turns out to be too large."""
    monkeypatch.setattr("st_reba.serve.app._BODY_SECONDS", 0.5)

    async def pieces(pause: float) -> AsyncIterator[bytes]:
        yield b"a" * 2**20
        await asyncio.sleep(pause)
        yield b"a"

    async def run() -> None:
        async with client(EmbeddingServer(model, "m", max_body=1)) as to:
            headers = {"Content-Type": "application/json"}
            answers = [await to.post(PATH, content=pieces(pause), headers=headers) for pause in (2, 0)]
            assert [(one.status_code, one.headers["connection"]) for one in answers] == [(408, "close"), (413, "close")]
            assert (await to.post(PATH, json={"input": "cat"})).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(("max_body", "most"), [(1, 64), (20, 80)])
def test_bodies_together_are_bounded(ask: Any, model: Any, max_body: int, most: int) -> None:
    """At most 64 MiB, or four of the largest, are held at once."""
    app, body = EmbeddingServer(model, "m", max_body=max_body), b'{"input": "a"}'
    for free, status in ((len(body), 200), (len(body) - 1, 429)):
        app.held_bytes = held = most * 2**20 - free
        assert ask((PATH, body), app=app)[0].status_code == status and app.held_bytes == held
