"""What Prometheus reads: the requests, texts and positions of one application."""

from __future__ import annotations

from asking import Ask
from sentence_transformers import SentenceTransformer

from st_reba.serve.app import make_app

PATH = "/v1/embeddings"


def test_an_application_counts_its_own(ask: Ask, model: SentenceTransformer) -> None:
    app, other = make_app(model, "m"), make_app(model, "other")
    ask((PATH, {"input": ["a", "b"]}), (PATH, {"input": 1}), app=app)
    (page,) = ask(("/metrics", None), app=app)
    lines = page.text.splitlines()
    assert page.headers["content-type"].startswith("text/plain; version=")
    assert "st_reba_texts_total 2.0" in lines and "st_reba_waiting_texts 0.0" in lines
    assert f"st_reba_tokens_total {float(model.preprocess(['a', 'b'])['attention_mask'].sum())}" in lines
    assert "st_reba_batch_texts_count 1.0" in lines and "st_reba_batch_texts_sum 2.0" in lines
    for status in (200, 400):
        assert f'st_reba_requests_total{{path="{PATH}",status="{status}"}} 1.0' in lines
    assert f'st_reba_request_seconds_count{{path="{PATH}"}} 2.0' in lines
    (page,) = ask(("/metrics", None), app=other)
    assert "st_reba_texts_total 0.0" in page.text.splitlines()
