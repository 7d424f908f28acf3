"""The clients of docs/how-to/serve.md against ``st-reba serve``: their vectors are the model's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from given import QUESTIONS, TEXTS

import st_reba

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from serving import process

PAGE = Path(st_reba.__file__).parents[1] / "docs" / "how-to" / "serve.md"
KEY = "a-key"


@pytest.fixture(scope="module")
def address(places: dict[str, Path]) -> Iterator[str]:
    """Where ``my_model`` is served, with a key and an index."""
    folder = places["echo"]
    st_reba.Index.build(
        str(folder / "my_model"), TEXTS, folder / "my_index", overwrite=True, show_progress_bar=False
    ).close()
    with process(folder, "--index", "my_index", model="my_model", ST_REBA_API_KEY=KEY) as (_, address):
        yield address


@pytest.fixture
def found(address: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the names of a block of the page stand for, once it has run."""
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    titled = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
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
def vectors(models: dict[str, Any]) -> dict[str, Any]:
    model = models["echo"]
    return {
        "plain": model.encode(TEXTS),
        "query": model.encode_query(QUESTIONS),
        "document": model.encode_document(TEXTS),
    }


@pytest.mark.parametrize("found", ["openai"], indirect=True)
def test_openai(found: dict[str, Any], vectors: dict[str, Any], close: Any) -> None:
    close(found["plain"], vectors["plain"])
    close(found["queries"], vectors["query"])
    close(found["documents"], vectors["document"])
    client, openai = found["client"], pytest.importorskip("openai")
    assert [one.id for one in client.models.list()] == ["my_model", "my_model:query", "my_model:document"]
    asked: dict[str, Any] = {"model": "my_model", "input": TEXTS[:3]}
    floats = client.embeddings.create(**asked, encoding_format="float")
    close([one.embedding for one in floats.data], vectors["plain"][:3])
    assert floats.usage.total_tokens > 10
    cut = np.array([one.embedding for one in client.embeddings.create(**asked, dimensions=7).data])
    close(np.linalg.norm(cut, axis=1), np.ones(3))
    for given, error in (
        ({"input": [1, 2], "model": "my_model"}, openai.BadRequestError),
        ({"input": "a", "model": "other"}, openai.NotFoundError),
        ({"input": ["a"] * 3000, "model": "my_model"}, openai.UnprocessableEntityError),
    ):
        with pytest.raises(error):
            client.embeddings.create(**given)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="another").models.list()


@pytest.mark.parametrize("found", ["LangChain"], indirect=True)
def test_langchain(found: dict[str, Any], vectors: dict[str, Any], close: Any) -> None:
    close(found["documents"].embed_documents(TEXTS), vectors["document"])
    close([found["queries"].embed_query(one) for one in QUESTIONS], vectors["query"])


@pytest.mark.parametrize("found", ["LlamaIndex"], indirect=True)
def test_llama_index(found: dict[str, Any], vectors: dict[str, Any], close: Any) -> None:
    assert not any("\n" in text for text in TEXTS)
    close(found["documents"].get_text_embedding_batch(TEXTS), vectors["document"])
    close([found["queries"].get_query_embedding(one) for one in QUESTIONS], vectors["query"])


@pytest.mark.parametrize("found", ["Search"], indirect=True)
def test_search(found: dict[str, Any], vectors: dict[str, Any], close: Any) -> None:
    scores = vectors["document"] @ vectors["query"][0]
    assert [one["text"] for one in found["hits"]] == [TEXTS[row] for row in np.argsort(-scores)[:3]]
    close([one["score"] for one in found["hits"]], np.sort(scores)[::-1][:3])
