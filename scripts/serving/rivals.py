"""Other ways to serve the same model, for scripts/benchmark_serve.py: python rivals.py NAME MODEL PORT.

``litserve`` encodes what it joined by the model's ``encode``, as its documentation shows; ``litserve-budget`` by the
package's token budget, so that only how requests are served differs. Of infinity it is its own.
"""

import sys
from itertools import accumulate, pairwise
from typing import Annotated, Any


def loaded(model: str) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer

    import st_reba  # noqa: F401

    torch.set_num_threads(1)
    return SentenceTransformer(model, device="cpu")


def answer(vectors: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(vectors.tolist())]
    return {"object": "list", "data": data, "model": "model", "usage": {"prompt_tokens": 1, "total_tokens": 1}}


def plain(model: str, port: int) -> None:
    """FastAPI, a thread a request."""
    import uvicorn
    from fastapi import Body, FastAPI

    app, encoder = FastAPI(), loaded(model)

    @app.post("/v1/embeddings")
    def embed(input: Annotated[str | list[str], Body(embed=True)]) -> Any:
        return answer(encoder.encode([input] if isinstance(input, str) else input, show_progress_bar=False))

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if "litserve" in "".join(sys.argv[1:2]):
    import litserve as ls

    # Its processes find the class by its name.
    class Api(ls.LitAPI):  # type: ignore[misc]
        """LitServe with its batching, whose own OpenAI form refuses lists then."""

        def setup(self, device: str) -> None:
            self.encoder = loaded(sys.argv[2])

        def decode_request(self, request: dict) -> list[str]:  # type: ignore[type-arg]
            return [request["input"]] if isinstance(request["input"], str) else list(request["input"])

        def batch(self, inputs: Any) -> Any:
            return inputs

        def predict(self, inputs: list[list[str]]) -> list[Any]:
            from st_reba.encode import encode_texts

            given = [text for texts in inputs for text in texts]
            vectors = encode_texts(self.encoder, given) if "budget" in sys.argv[1] else self.encoder.encode(given)
            return [vectors[a:b] for a, b in pairwise([0, *accumulate(map(len, inputs))])]

        def unbatch(self, output: Any) -> Any:
            return output

        def encode_response(self, output: Any) -> Any:
            return answer(output)


def litserve(model: str, port: int) -> None:
    """As above."""
    api = Api(max_batch_size=32, batch_timeout=0.005, api_path="/v1/embeddings")
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


def infinity(model: str, port: int) -> None:
    """infinity's own server and batching."""
    import torch
    import uvicorn
    from infinity_emb import EngineArgs, create_server

    import st_reba  # noqa: F401

    torch.set_num_threads(1)
    arguments = EngineArgs(
        model_name_or_path=model,
        served_model_name="model",
        device="cpu",
        dtype="float32",
        batch_size=32,
        bettertransformer=False,
        compile=False,
        model_warmup=False,
    )
    uvicorn.run(
        create_server(engine_args_list=[arguments], url_prefix="/v1"), host="127.0.0.1", port=port, log_level="warning"
    )


if __name__ == "__main__":
    name, folder, listened = sys.argv[1:]
    {one.__name__: one for one in (plain, litserve, infinity)}[name.partition("-")[0]](folder, int(listened))
