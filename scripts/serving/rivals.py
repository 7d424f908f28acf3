"""LitServe with the same model, for scripts/benchmark_serve.py: python rivals.py NAME MODEL PORT.

It encodes by the package's token budget, so that only the server differs.
"""

import sys
from itertools import accumulate, pairwise
from typing import Any

import litserve


class Api(litserve.LitAPI):
    """LitServe with its batching; its own OpenAI form refuses lists while batching."""

    def setup(self, device: str) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        import st_reba  # noqa: F401

        torch.set_num_threads(1)
        self.encoder = SentenceTransformer(sys.argv[2], device="cpu")

    def decode_request(self, request: dict) -> list[str]:
        return [request["input"]] if isinstance(request["input"], str) else list(request["input"])

    def batch(self, inputs: Any) -> Any:
        return inputs

    def predict(self, inputs: list[list[str]]) -> list[Any]:
        from st_reba.encode import encode_texts

        given = [text for texts in inputs for text in texts]
        vectors = encode_texts(self.encoder, given)
        return [vectors[a:b] for a, b in pairwise([0, *accumulate(map(len, inputs))])]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Any) -> Any:
        data = [
            {"object": "embedding", "index": n, "embedding": row}
            for n, row in enumerate(output.tolist())
        ]
        return {
            "object": "list",
            "data": data,
            "model": "model",
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.005, api_path="/v1/embeddings")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[3]), log_level="warning", generate_client_file=False
    )
