"""The clients of docs/how-to/serve.md against ``st-reba serve``: their vectors are the model's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from given import QUESTIONS, ROOT, TEXTS
from serving import server_process

import st_reba

PAGE = ROOT / "docs" / "how-to" / "serve.md"
KEY = "a-key"


@pytest.fixture(scope="module")
def address(places: dict[str, Path]) -> Iterator[str]:
    """Where ``my_model`` is served, with a key and an index."""
    folder = places["echo"]
    # Not whitened, so that scores are the model's own cosines.
    model = str(folder / "my_model")
    st_reba.Index.build(model, TEXTS, folder / "my_index", whiten=False, show_progress_bar=False).close()
    with server_process(folder, "--index", "my_index", model_name="my_model", ST_REBA_API_KEY=KEY) as (_, address):
        yield address


@pytest.fixture
def found(
    address: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Any:
    """What the names of a section of the page stand for, once its blocks have run."""
    for name in (
        "OPENAI_API_KEY",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    titled = re.split(r"^##+ (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(titled[1::2], titled[2::2], strict=True))
    blocks = re.findall(r"^```python\n(.*?)^```$", sections[request.param], re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"texts": TEXTS, "questions": QUESTIONS}
    assert blocks
    for block in blocks:
        changed = block.replace("http://127.0.0.1:8080", address).replace('"no-key"', repr(KEY))
        assert changed != block, "the block asks no server"
        exec(compile(changed, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def check(vectors: Any) -> Callable[[Any, str], None]:
    """``check(found, how)``: they are the model's vectors of all texts, or of all questions as queries."""

    def check(found: Any, how: str) -> None:
        wanted = vectors("echo", QUESTIONS if how == "query" else TEXTS, how)
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)

    return check


@pytest.mark.parametrize("found", ["openai"], indirect=True)
def test_openai(found: dict[str, Any], check: Callable[[Any, str], None]) -> None:
    check(found["plain"], "plain")
    check(found["queries"], "query")
    check(found["documents"], "document")
    client = found["client"]
    assert [one.id for one in client.models.list()] == [
        "my_model",
        "my_model:query",
        "my_model:document",
    ]
    floats = client.embeddings.create(model="my_model", input=TEXTS, encoding_format="float")
    check([one.embedding for one in floats.data], "plain")
    assert floats.usage.total_tokens > 10
    (cut,) = client.embeddings.create(model="my_model", input=TEXTS[0], dimensions=7).data
    assert len(cut.embedding) == 7 and np.linalg.norm(cut.embedding) == pytest.approx(1, abs=1e-6)
    for given, error in (
        ({"input": [1, 2], "model": "my_model"}, openai.BadRequestError),
        ({"input": "a", "model": "other"}, openai.NotFoundError),
        ({"input": ["a"] * 3000, "model": "my_model"}, openai.BadRequestError),
    ):
        with pytest.raises(error):
            client.embeddings.create(**given)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()


@pytest.mark.parametrize("found", ["LangChain"], indirect=True)
def test_langchain(found: dict[str, Any], check: Callable[[Any, str], None]) -> None:
    check(found["documents"].embed_documents(TEXTS), "document")
    check([found["queries"].embed_query(one) for one in QUESTIONS], "query")


@pytest.mark.parametrize("found", ["LlamaIndex"], indirect=True)
def test_llama_index(found: dict[str, Any], check: Callable[[Any, str], None]) -> None:
    check(found["documents"].get_text_embedding_batch(TEXTS), "document")
    check([found["queries"].get_query_embedding(one) for one in QUESTIONS], "query")


@pytest.mark.parametrize("found", ["Search"], indirect=True)
def test_search(found: dict[str, Any], vectors: Any) -> None:
    scores = vectors("echo", TEXTS, "document") @ vectors("echo", QUESTIONS[:1], "query")[0]
    hits = found["hits"]
    assert len(hits) == 3
    for hit in hits:
        assert hit["vector_score"] == pytest.approx(scores[TEXTS.index(hit["text"])], abs=1e-6)
    hybrid_scores = [hit["score"] for hit in hits]
    assert hybrid_scores == sorted(hybrid_scores, reverse=True)
