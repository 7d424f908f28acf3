"""The application: vectors are the model's own, and refusals have OpenAI's form."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from serving import PATH, assert_near, vectors_of

import st_reba
from st_reba.encode import encode_texts
from st_reba.serve.app import EmbeddingServer, embeddings_json

JSON_HEADERS = {"Content-Type": "application/json"}
TEXTS = [
    "猫在睡觉。",
    "",
    "The bank cut its interest rates again. " * 9,
    "a",
    "Ships\n sail  ",
]


def statuses_of(answers: Sequence[httpx.Response]) -> list[int]:
    return [answer.status_code for answer in answers]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    return error


def test_vectors_are_the_models_own(ask_server: Any, prompted_model: Any) -> None:
    plain, query, documents = ask_server(
        (PATH, {"input": TEXTS, "model": "m"}),
        (PATH, {"input": TEXTS[0], "model": "m:query"}),
        (PATH, {"input": TEXTS, "model": "m:document"}),
    )
    plain_vectors = prompted_model.encode(TEXTS)
    query_vector = prompted_model.encode_query(TEXTS[0])
    assert_near(vectors_of(plain), plain_vectors)
    assert_near(vectors_of(query), [query_vector])
    assert_near(vectors_of(documents), prompted_model.encode_document(TEXTS))
    assert np.abs(plain_vectors[0] - query_vector).max() > 1e-2


def test_a_large_answer_in_base64_holds_the_same_numbers(
    ask_server: Any, prompted_model: Any
) -> None:
    """It is written in another thread."""
    (answer,) = ask_server((PATH, {"input": TEXTS * 20, "encoding_format": "base64"}))
    packed_vectors = [base64.b64decode(item["embedding"]) for item in answer.json()["data"]]
    vectors = [np.frombuffer(packed_vector, "<f4") for packed_vector in packed_vectors]
    assert_near(vectors, np.tile(prompted_model.encode(TEXTS), (20, 1)))


def test_an_answer_counts_positions(ask_server: Any, prompted_model: Any) -> None:
    (answer,) = ask_server((PATH, {"input": TEXTS, "model": "m"}))
    token_count = int(prompted_model.preprocess(TEXTS)["attention_mask"].sum())
    assert answer.json()["usage"] == {
        "prompt_tokens": token_count,
        "total_tokens": token_count,
    }
    assert answer.json()["object"] == "list"
    assert answer.json()["model"] == "m"
    (just_enough,) = ask_server((PATH, {"input": TEXTS}), max_tokens=token_count)
    (too_many,) = ask_server((PATH, {"input": TEXTS}), max_tokens=token_count - 1)
    assert statuses_of([just_enough, too_many]) == [200, 422]


def test_cut_vectors_keep_their_length(ask_server: Any, prompted_model: Any) -> None:
    cut_answer, whole_answer = ask_server(
        (PATH, {"input": TEXTS, "dimensions": 7}),
        (PATH, {"input": TEXTS, "dimensions": 192}),
    )
    vectors = prompted_model.encode(TEXTS).astype(np.float64)
    expected_vectors: list[Any] = []
    for vector in vectors:
        direction = vector[:7] / np.linalg.norm(vector[:7])
        expected_vectors.append(direction * np.linalg.norm(vector))
    assert_near(vectors_of(cut_answer), expected_vectors)
    assert_near(vectors_of(whole_answer), vectors)


@pytest.mark.parametrize("as_base64", [False, True])
def test_nan_is_no_answer(as_base64: bool) -> None:
    vectors = np.array([[1, np.nan]], np.float32)
    with pytest.raises(ValueError, match="not finite"):
        embeddings_json(vectors, 2, as_base64)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"input": 1}, 400, "input"),
        ({"input": [True]}, 400, "input"),
        ({"input": "a", "dimensions": 193}, 400, "dimensions"),
        (b"", 400, None),
        ({"input": "a " * 90}, 422, "input"),
        (b'{"input": "' + b"a" * 2**20 + b'"}', 413, None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_wrong_and_large_bodies_are_refused(
    ask_server: Any, body: object, status: int, field: str | None
) -> None:
    (answer,) = ask_server((PATH, body), max_tokens=100, max_body=1)
    assert answer.status_code == status
    error = error_of(answer)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    is_closed = answer.headers.get("connection") == "close"
    assert is_closed == (status == 413)


@pytest.mark.parametrize("digit_count", [400, 4300])
def test_long_numbers_are_shortened_in_a_message(digit_count: int, ask_server: Any) -> None:
    (answer,) = ask_server((PATH, b'{"input": "a", "dimensions": ' + b"9" * digit_count + b"}"))
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == "dimensions"
    assert error["message"] == f"dimensions={'9' * 79}…: give a number up to 192."


@pytest.mark.parametrize(
    ("request_parts", "status", "message"),
    [
        (("/v1/nowhere", None), 404, "There is no '/v1/nowhere' here"),
        ((PATH, None), 405, "Method Not Allowed"),
        ((PATH, {"input": "a"}, {"Content-Type": "text/plain"}), 415, "Send Content-Type"),
        (("/v1/search", {"query": "a"}), 404, "There is no '/v1/search' here"),
        ((PATH + "/", {"input": "a"}), 404, "There is no '/v1/embeddings/' here"),
        (("/health/", None), 404, "There is no '/health/' here"),
    ],
)
def test_other_paths_methods_and_types_are_refused(
    request_parts: tuple[Any, ...], status: int, message: str, ask_server: Any
) -> None:
    (answer,) = ask_server(request_parts)
    assert answer.status_code == status
    assert error_of(answer)["message"].startswith(message)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/embed",
        "/v1/embed",
        "/openai/deployments/m/embeddings?api-version=2024-02-01",
    ],
)
def test_a_path_of_another_api_names_those_that_are_there(path: str, ask_server: Any) -> None:
    """Cohere's and Azure's clients."""
    (answer,) = ask_server((path, {"input": "a"}))
    assert answer.status_code == 404
    message = error_of(answer)["message"]
    assert "/v1/embeddings" in message
    assert "base URL ends in /v1" in message


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/models", None), ("/metrics", None), (PATH, {"input": "a"})]
)
def test_paths_need_a_key(path: str, body: object, ask_server: Any) -> None:
    accepted, wrong, missing = ask_server(
        (path, body, {"Authorization": "Bearer two"}),
        (path, body, {"Authorization": "Bearer on"}),
        (path, body),
        keys=["one", "two"],
    )
    assert statuses_of([accepted, wrong, missing]) == [200, 401, 401]
    assert error_of(wrong)["type"] == "authentication_error"
    assert wrong.headers["www-authenticate"] == "Bearer"


def test_health_needs_no_key(ask_server: Any) -> None:
    (answer,) = ask_server(("/health", None), keys=["one"])
    assert answer.status_code == 200


def test_another_scheme_than_bearer_is_refused(ask_server: Any) -> None:
    basic, bearer = ask_server(
        ("/v1/models", None, {"Authorization": "Basic one"}),
        ("/v1/models", None, {"Authorization": "bearer one"}),
        keys=["one"],
    )
    assert statuses_of([basic, bearer]) == [401, 200]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/m"])
@pytest.mark.parametrize("host", ["evil.example", "elsewhere.example:8080", "x@evil.example"])
def test_no_path_answers_a_foreign_host(path: str, host: str, ask_server: Any) -> None:
    answers = ask_server((path, None), (path, None, {"Host": host}), hosts=["127.0.0.1"])
    assert statuses_of(answers) == [200, 403]


@pytest.mark.parametrize("model_name", ["m", "m:query", "org/m", "org/m:document"])
def test_a_model_is_described_by_its_name(
    model_name: str, ask_server: Any, prompted_model: SentenceTransformer
) -> None:
    app = EmbeddingServer(prompted_model, model_name.partition(":")[0])
    plain, escaped, models = ask_server(
        (f"/v1/models/{model_name}", None),
        (f"/v1/models/{quote(model_name, safe='')}", None),
        ("/v1/models", None),
        app=app,
    )
    description = plain.json()
    assert escaped.json() == description
    assert description in models.json()["data"]
    assert description["id"] == model_name
    assert description["object"] == "model"
    assert description["dimensions"] == 192


@pytest.mark.parametrize("model_name", ["other", "m:other", "m%3Aquery%20", "m/"])
def test_a_model_that_is_not_there_is_not_found(model_name: str, ask_server: Any) -> None:
    (answer,) = ask_server((f"/v1/models/{model_name}", None))
    assert answer.status_code == 404
    error = error_of(answer)
    assert error["code"] == "model_not_found"
    assert error["param"] == "model"


@pytest.mark.parametrize(
    ("input_type", "task"),
    [
        ("query", "query"),
        ("search_query", "query"),
        ("RETRIEVAL_QUERY", "query"),
        ("passage", "document"),
        ("document", "document"),
        ("search_document", "document"),
        ("clustering", None),
        ("classification", None),
        (None, None),
    ],
)
def test_input_type_chooses_the_prompt(
    input_type: str | None,
    task: Any,
    ask_server: Any,
    prompted_model: SentenceTransformer,
) -> None:
    body = {"input": TEXTS, "model": "m", "input_type": input_type, "drop_params": True}
    (answer,) = ask_server((PATH, body))
    assert_near(vectors_of(answer), encode_texts(prompted_model, TEXTS, task=task))


LONG_TEXTS = ["short", "word " * 90, "word " * 91]


@pytest.fixture(scope="module")
def short_model() -> SentenceTransformer:
    """It reads 64 tokens."""
    return st_reba.build("mini", "echo", max_seq_length=64, device="cpu")


@pytest.mark.parametrize(
    ("body", "truncated_count"),
    [
        ({"input": LONG_TEXTS}, 2),
        ({"input": LONG_TEXTS, "truncate": "END"}, 2),
        ({"input": ["short"], "truncate": "NONE"}, 0),
    ],
)
def test_texts_that_are_cut_are_counted(
    body: object,
    truncated_count: int,
    ask_server: Any,
    short_model: SentenceTransformer,
) -> None:
    app = EmbeddingServer(short_model, "m")
    (answer,) = ask_server((PATH, body), app=app)
    assert answer.status_code == 200
    (metrics,) = ask_server(("/metrics", None), app=app)
    assert f"st_reba_cut_texts_total {truncated_count}.0" in metrics.text.splitlines()


@pytest.mark.parametrize("option", [{"truncate": "NONE"}, {"truncation": False}])
def test_texts_that_must_not_be_cut_are_refused(
    option: dict[str, object], ask_server: Any, short_model: SentenceTransformer
) -> None:
    body = {"input": LONG_TEXTS} | option
    (answer,) = ask_server((PATH, body), app=EmbeddingServer(short_model, "m"))
    assert answer.status_code == 400
    assert "input[1]" in error_of(answer)["message"]


def test_texts_that_are_cut_are_not_logged(
    ask_server: Any, short_model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    (answer,) = ask_server((PATH, {"input": LONG_TEXTS}), app=EmbeddingServer(short_model, "m"))
    assert answer.status_code == 200
    assert "longer than the model reads" not in caplog.text


def test_models_are_listed_with_their_tasks(ask_server: Any) -> None:
    (answer,) = ask_server(("/v1/models", None))
    model_ids = [description["id"] for description in answer.json()["data"]]
    assert model_ids == ["m", "m:query", "m:document"]


@pytest.fixture(scope="module")
def instructed_model() -> SentenceTransformer:
    """Its queries need an instruction."""
    return st_reba.build("mini", "echo", template="echo-instruct", device="cpu")


@pytest.mark.parametrize(
    "fields", [{"model": "m:query"}, {"model": "m", "input_type": "query"}], ids=str
)
def test_a_task_whose_template_has_an_open_field_is_refused(
    fields: dict[str, str], ask_server: Any, instructed_model: SentenceTransformer
) -> None:
    app = EmbeddingServer(instructed_model, "m")
    refused, accepted = ask_server(
        (PATH, {"input": "cat"} | fields),
        (PATH, {"input": "cat", "model": "m:document"}),
        app=app,
    )
    assert statuses_of([refused, accepted]) == [400, 200]
    assert "{instruction} has no value" in error_of(refused)["message"]


def test_names_that_cannot_be_served_are_not_listed(
    ask_server: Any, instructed_model: SentenceTransformer
) -> None:
    app = EmbeddingServer(instructed_model, "m")
    models, described, unknown = ask_server(
        ("/v1/models", None),
        ("/v1/models/m:query", None),
        (PATH, {"input": "cat", "model": "other"}),
        app=app,
    )
    assert [description["id"] for description in models.json()["data"]] == ["m", "m:document"]
    assert statuses_of([described, unknown]) == [404, 404]
    assert "m:query" not in error_of(unknown)["message"]


def test_a_name_that_cannot_be_served_is_reported_at_the_start(
    instructed_model: SentenceTransformer, caplog: pytest.LogCaptureFixture
) -> None:
    EmbeddingServer(instructed_model, "m")
    assert "m:query is not served." in caplog.text
    assert "Build the model with instruction='…'" in caplog.text
    assert "m:document" not in caplog.text


@pytest.mark.parametrize("options", [{"instruction": "Find."}, {"prompts": {"query": "Find."}}])
def test_an_instruction_that_has_a_value_is_served(
    options: dict[str, Any], ask_server: Any
) -> None:
    model = st_reba.build("mini", "echo", template="echo-instruct", device="cpu", **options)
    (answer,) = ask_server(
        (PATH, {"input": TEXTS, "model": "m:query"}), app=EmbeddingServer(model, "m")
    )
    assert_near(vectors_of(answer), model.encode_query(TEXTS))


def test_a_model_whose_every_task_has_an_open_field_is_refused() -> None:
    model = st_reba.build("mini", "classical", template="{style}: {text}", device="cpu")
    with pytest.raises(ValueError, match="m cannot be served. .* in place of {style}"):
        EmbeddingServer(model, "m")


def test_health_shows_what_waits(ask_server: Any) -> None:
    (answer,) = ask_server(("/health", None))
    assert answer.json() == {"status": "ok", "model": "m", "waiting": 0}


def test_each_application_has_its_own_metrics(
    ask_server: Any,
    prompted_model: SentenceTransformer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 7.0)
    app = EmbeddingServer(prompted_model, "m")
    ask_server((PATH, {"input": ["a", "b"]}), (PATH, {"input": 1}), app=app)
    (metrics,) = ask_server(("/metrics", None), app=app)
    token_count = float(prompted_model.preprocess(["a", "b"])["attention_mask"].sum())
    expected_lines = {
        f"st_reba_tokens_total {token_count}",
        "st_reba_batch_texts_sum 2.0",
        'st_reba_batch_texts_bucket{le="2.0"} 1.0',
        f'st_reba_request_seconds_sum{{path="{PATH}",status="200"}} 0.0',
        f'st_reba_request_seconds_count{{path="{PATH}",status="200"}} 1.0',
        f'st_reba_request_seconds_count{{path="{PATH}",status="400"}} 1.0',
    }
    assert expected_lines <= set(metrics.text.splitlines())
    (other_metrics,) = ask_server(("/metrics", None), app=EmbeddingServer(prompted_model, "other"))
    assert "st_reba_tokens_total 0.0" in other_metrics.text.splitlines()


DOCUMENTS = [
    {"id": "0", "text": "猫", "row": 0},
    {"id": "1", "text": "a cat", "row": 1},
    {"id": "2", "text": "ships", "row": 2},
    {"id": "3", "text": "money", "row": 3},
]


@pytest.fixture
def opened_index(prompted_model: SentenceTransformer, tmp_path: Path) -> Iterator[st_reba.Index]:
    folder = tmp_path / "index"
    st_reba.Index.build(prompted_model, DOCUMENTS, folder, show_progress_bar=False).close()
    with st_reba.Index.open(folder, prompted_model) as index:
        yield index


def test_a_search_is_refused_where_queries_have_an_open_field(
    ask_server: Any, instructed_model: SentenceTransformer, opened_index: st_reba.Index
) -> None:
    app = EmbeddingServer(instructed_model, "m", index=opened_index)
    by_vectors, by_words = ask_server(
        ("/v1/search", {"query": "a cat"}),
        ("/v1/search", {"query": "a cat", "mode": "words"}),
        app=app,
    )
    assert statuses_of([by_vectors, by_words]) == [400, 200]


def as_json(results: Any) -> list[dict[str, Any]]:
    """Results as the server writes them; scores depend on the batch a little."""
    rows: list[dict[str, Any]] = []
    for result in results:
        score = pytest.approx(result.score, abs=1e-6)
        rows.append(result.to_json() | {"score": score})
    return rows


def test_search_answers_a_text_by_a_list(ask_server: Any, opened_index: st_reba.Index) -> None:
    conditions = {"row": {">=": 2}}
    body = {"query": "一只猫", "k": 3, "where": conditions}
    (answer,) = ask_server(("/v1/search", body), index=opened_index)
    results = answer.json()["results"]
    assert results == as_json(opened_index.search("一只猫", 3, where=conditions))
    assert {result["id"] for result in results} == {"2", "3"}


def test_long_queries_of_a_search_are_cut_and_counted(
    ask_server: Any, short_model: SentenceTransformer
) -> None:
    app = EmbeddingServer(short_model, "m", index=Mock(search=Mock(return_value=[[]])))
    (answer,) = ask_server(("/v1/search", {"query": LONG_TEXTS[1]}), app=app)
    (metrics,) = ask_server(("/metrics", None), app=app)
    assert answer.json()["results"] == []
    assert "st_reba_cut_texts_total 1.0" in metrics.text.splitlines()


def test_search_answers_texts_by_a_list_each(ask_server: Any, opened_index: st_reba.Index) -> None:
    queries = ["a cat", "money"]
    (answer,) = ask_server(("/v1/search", {"query": queries}), index=opened_index)
    expected_results = list(map(as_json, opened_index.search(queries)))
    assert answer.json()["results"] == expected_results


def test_search_by_words_ignores_operators(ask_server: Any, opened_index: st_reba.Index) -> None:
    body = {"query": '"cat" OR', "mode": "words", "explain": True}
    (answer,) = ask_server(("/v1/search", body), index=opened_index)
    results = answer.json()["results"]
    assert results == as_json(opened_index.search("cat", mode="words", explain=True))
    assert [result["id"] for result in results] == ["1"]


@pytest.mark.parametrize(("model_name", "status"), [("m", 200), ("m:query", 200), ("other", 404)])
def test_search_may_name_the_model(
    model_name: str, status: int, ask_server: Any, opened_index: st_reba.Index
) -> None:
    body = {"query": "a", "model": model_name, "mode": "words"}
    (answer,) = ask_server(("/v1/search", body), index=opened_index)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "fields", [{"where": {"row": {"~": 1}}}, {"k": 0}, {"mode": "word"}], ids=str
)
def test_search_refuses_wrong_fields(
    fields: dict[str, object], ask_server: Any, opened_index: st_reba.Index
) -> None:
    (answer,) = ask_server(("/v1/search", {"query": "a"} | fields), index=opened_index)
    assert answer.status_code == 400


def test_search_refuses_an_index_that_was_replaced_by_another_models(
    ask_server: Any, opened_index: st_reba.Index
) -> None:
    other_model = st_reba.build("mini", "reba")
    st_reba.Index.build(other_model, DOCUMENTS, opened_index.path, overwrite=True).close()
    (answer,) = ask_server(("/v1/search", {"query": "a cat"}), index=opened_index)
    assert answer.status_code == 400
    assert "model" in error_of(answer)["message"]


def test_search_says_that_the_index_is_gone(ask_server: Any, opened_index: st_reba.Index) -> None:
    shutil.rmtree(opened_index.path)
    (answer,) = ask_server(("/v1/search", {"query": "a cat"}), index=opened_index)
    assert answer.status_code == 503
    assert error_of(answer)["type"] == "server_error"


@pytest.mark.parametrize(
    ("pause", "headers", "status"),
    [
        (2.0, {}, 408),
        (0.0, {}, 413),
        (2.0, {"Content-Length": str(2**20)}, 408),
        (2.0, {"Content-Length": str(2**20 + 1)}, 413),  # without waiting for it
    ],
)
def test_a_body_that_does_not_arrive_or_grows_too_large_is_refused(
    pause: float,
    headers: dict[str, str],
    status: int,
    prompted_model: SentenceTransformer,
    connect: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("st_reba.serve.app._BODY_SECONDS", 0.5)

    async def send_in_pieces() -> AsyncIterator[bytes]:
        yield b"a" * 2**20
        await asyncio.sleep(pause)
        yield b"a"

    async def send_requests() -> None:
        async with connect(EmbeddingServer(prompted_model, "m", max_body=1)) as client:
            answer = await client.post(
                PATH, content=send_in_pieces(), headers=JSON_HEADERS | headers
            )
            assert answer.status_code == status
            assert answer.headers["connection"] == "close"
            next_answer = await client.post(PATH, json={"input": "cat"})
            assert next_answer.status_code == 200

    asyncio.run(send_requests())


@pytest.mark.parametrize(("max_body", "held_mib"), [(1, 64), (20, 80)])
@pytest.mark.parametrize(("missing_bytes", "status"), [(0, 200), (1, 429)])
def test_bodies_together_are_bounded(
    max_body: int,
    held_mib: int,
    missing_bytes: int,
    status: int,
    ask_server: Any,
    prompted_model: SentenceTransformer,
) -> None:
    """At most 64 MiB, or four of the largest, are held at once."""
    app = EmbeddingServer(prompted_model, "m", max_body=max_body)
    body = b'{"input": "a"}'
    held_bytes = held_mib * 2**20 - len(body) + missing_bytes
    app.held_bytes = held_bytes
    (answer,) = ask_server((PATH, body), app=app)
    assert answer.status_code == status
    assert app.held_bytes == held_bytes
