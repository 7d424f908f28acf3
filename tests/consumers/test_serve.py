"""The clients of docs/how-to/serve.md against ``st-reba serve``: their vectors are the model's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from consumer_texts import QUESTIONS, ROOT, TEXTS
from serving import server_process

import st_reba

PAGE = ROOT / "docs" / "how-to" / "serve.md"
KEY = "a-key"


@pytest.fixture(scope="module")
def server_address(model_parents: dict[str, Path]) -> Iterator[str]:
    """Where ``my_model`` is served, with a key and an index."""
    folder = model_parents["echo"]
    # Not whitened, so that scores are the model's own cosines.
    index = st_reba.Index.build(
        str(folder / "my_model"),
        TEXTS,
        folder / "my_index",
        whiten=False,
        show_progress_bar=False,
    )
    index.close()
    with server_process(
        folder, "--index", "my_index", model_name="my_model", ST_REBA_API_KEY=KEY
    ) as (
        _,
        server_address,
    ):
        yield server_address


def code_blocks_of(section: str) -> list[str]:
    page = PAGE.read_text(encoding="utf-8")
    _, *titles_and_texts = re.split(r"^##+ (.+)$", page, flags=re.MULTILINE)
    text = titles_and_texts[titles_and_texts.index(section) + 1]
    code_blocks: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert code_blocks
    return code_blocks


@pytest.fixture
def page_names(
    server_address: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Any:
    """What the names of a section of the page stand for, once its blocks have run."""
    for variable in (
        "OPENAI_API_KEY",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"texts": TEXTS, "questions": QUESTIONS}
    for code_block in code_blocks_of(request.param):
        changed_block = code_block.replace("http://127.0.0.1:8080", server_address)
        changed_block = changed_block.replace('"no-key"', repr(KEY))
        assert changed_block != code_block, "the block asks no server"
        exec(compile(changed_block, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def assert_vectors(model_vectors: Any) -> Callable[[Any, str], None]:
    """``assert_vectors(actual, task)``: the model's vectors of all texts, or of all questions as queries."""

    def assert_vectors(actual: Any, task: str) -> None:
        texts = QUESTIONS if task == "query" else TEXTS
        np.testing.assert_allclose(actual, model_vectors("echo", texts, task), atol=1e-6, rtol=0)

    return assert_vectors


OF_OPENAI = pytest.mark.parametrize("page_names", ["openai"], indirect=True)


@OF_OPENAI
def test_openai_gets_the_models_vectors(
    page_names: dict[str, Any], assert_vectors: Callable[[Any, str], None]
) -> None:
    assert_vectors(page_names["plain"], "plain")
    assert_vectors(page_names["queries"], "query")
    assert_vectors(page_names["documents"], "document")


@OF_OPENAI
def test_openai_lists_a_model_for_each_task(page_names: dict[str, Any]) -> None:
    models = page_names["client"].models.list()
    assert [model.id for model in models] == [
        "my_model",
        "my_model:query",
        "my_model:document",
    ]


@OF_OPENAI
def test_openai_gets_numbers_too(
    page_names: dict[str, Any], assert_vectors: Callable[[Any, str], None]
) -> None:
    """By default it asks for bytes."""
    answer = page_names["client"].embeddings.create(
        model="my_model", input=TEXTS, encoding_format="float"
    )
    assert_vectors([vector.embedding for vector in answer.data], "plain")
    assert answer.usage.total_tokens > 10


@OF_OPENAI
def test_openai_gets_as_few_dimensions_as_it_asks_for(
    page_names: dict[str, Any],
) -> None:
    answer = page_names["client"].embeddings.create(model="my_model", input=TEXTS[0], dimensions=7)
    (vector,) = answer.data
    assert len(vector.embedding) == 7
    assert np.linalg.norm(vector.embedding) == pytest.approx(1, abs=1e-6)


@OF_OPENAI
@pytest.mark.parametrize(
    ("texts", "model_name", "error"),
    [
        ([1, 2], "my_model", openai.BadRequestError),
        ("a", "other", openai.NotFoundError),
        (["a"] * 3000, "my_model", openai.BadRequestError),
    ],
    ids=["tokens", "another model", "too many texts"],
)
def test_openai_is_told_what_is_wrong(
    page_names: dict[str, Any],
    texts: Any,
    model_name: str,
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        page_names["client"].embeddings.create(model=model_name, input=texts)


@OF_OPENAI
def test_openai_needs_the_key(page_names: dict[str, Any]) -> None:
    with pytest.raises(openai.AuthenticationError):
        page_names["client"].with_options(api_key="another").models.list()


@pytest.mark.parametrize("page_names", ["LangChain"], indirect=True)
def test_langchain(page_names: dict[str, Any], assert_vectors: Callable[[Any, str], None]) -> None:
    assert_vectors(page_names["documents"].embed_documents(TEXTS), "document")
    query_model = page_names["queries"]
    assert_vectors([query_model.embed_query(question) for question in QUESTIONS], "query")


@pytest.mark.parametrize("page_names", ["LlamaIndex"], indirect=True)
def test_llama_index(
    page_names: dict[str, Any], assert_vectors: Callable[[Any, str], None]
) -> None:
    assert_vectors(page_names["documents"].get_text_embedding_batch(TEXTS), "document")
    query_model = page_names["queries"]
    assert_vectors(
        [query_model.get_query_embedding(question) for question in QUESTIONS],
        "query",
    )


@pytest.mark.parametrize("page_names", ["Search"], indirect=True)
def test_search(page_names: dict[str, Any], model_vectors: Any) -> None:
    query_vector = model_vectors("echo", QUESTIONS[:1], "query")[0]
    scores = model_vectors("echo", TEXTS, "document") @ query_vector
    hits = page_names["hits"]
    assert len(hits) == 3
    for hit in hits:
        expected_score = scores[TEXTS.index(hit["text"])]
        assert hit["vector_score"] == pytest.approx(expected_score, abs=1e-6)
    hybrid_scores = [hit["score"] for hit in hits]
    assert hybrid_scores == sorted(hybrid_scores, reverse=True)
