"""Hugging Face Inference Endpoints: a request of texts in, vectors out.

A file of the repository beside the model; it runs the repository's own code.
"""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer


class EndpointHandler:
    """``{"inputs": text or texts, "parameters": {"task": "query"}}`` → a vector or a list of them."""

    def __init__(self, path: str = "") -> None:
        self.model = SentenceTransformer(path, trust_remote_code=True)

    def __call__(self, data: dict[str, Any]) -> list[Any]:
        texts, parameters = data.get("inputs"), dict(data.get("parameters") or {})
        task = parameters.pop("task", None)
        methods: dict[Any, Any] = {
            None: self.model.encode,
            "query": self.model.encode_query,
            "document": self.model.encode_document,
        }
        if task not in methods:
            raise ValueError(f"task={task!r}: give 'query' or 'document', or leave it out.")
        if parameters:
            raise ValueError(f"{', '.join(parameters)}: not known here; known is 'task'.")
        listed = texts if isinstance(texts, list) else [texts]
        if not all(isinstance(text, str) for text in listed):
            raise ValueError("inputs must be a text, or a list of texts.")
        vectors: list[Any] = methods[task](texts, show_progress_bar=False).tolist() if texts != [] else []
        return vectors
