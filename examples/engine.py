"""Does an engine, vLLM or llama.cpp, give the vectors of st_reba? See docs/how-to/vllm-llamacpp.md.

    python examples/engine.py BASE http://127.0.0.1:8000
    python examples/engine.py BASE http://127.0.0.1:8000 echo:pooling=mean

The first compares three methods that read the last position; for the second, the server must give
every token's vector. BASE is the folder, Hub id or GGUF file that the engine serves. st_reba
computes in float32; 40 texts in English and Chinese are sent as its token ids, and the cosines of
the two vectors are printed.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

import st_reba
from st_reba.methods import Method

SENTENCES_FILE = Path(__file__).with_name("sentences.jsonl")
DEFAULT_METHODS = ["prompteol", "echo:pooling=last", "classical:pooling=last"]


@dataclass(frozen=True)
class Engine:
    """A server of one model, at an address."""

    url: str
    model_id: str
    is_vllm: bool

    def last_vector(self, token_ids: list[int]) -> NDArray[Any]:
        """The vector [d] of the last position, of length 1."""
        answer = send(f"{self.url}/v1/embeddings", model=self.model_id, input=[token_ids])
        return np.array(answer["data"][0]["embedding"])

    def token_vectors(self, token_ids: list[int]) -> NDArray[Any]:
        """The vectors [tokens, d], not scaled."""
        if not self.is_vllm:
            answer = send(f"{self.url}/embeddings", content=[token_ids])
            return np.array(answer[0]["embedding"])
        answer = send(
            f"{self.url}/pooling", model=self.model_id, input=token_ids, use_activation=False
        )
        return np.array(answer["data"][0]["data"])


def send(url: str, **content: Any) -> Any:
    """The answer of a server: to a question in JSON, or to none."""
    body = json.dumps(content).encode() if content else None
    request = Request(url, body, {"Content-Type": "application/json"})
    with urlopen(request) as response:
        return json.load(response)


def find_engine(url: str) -> Engine:
    description = send(f"{url}/v1/models")["data"][0]
    return Engine(url, description["id"], description["owned_by"] == "vllm")


def engine_vector(engine: Engine, features: dict[str, Any], is_mean: bool) -> NDArray[Any]:
    """The engine's vector of one text, pooled as the method does."""
    token_ids = features["input_ids"][0].tolist()
    if not is_mean:
        return engine.last_vector(token_ids)
    copy_ids = features["copy_ids"][0].numpy()
    is_last_copy = copy_ids == copy_ids.max()
    last_copy_vectors = engine.token_vectors(token_ids)[is_last_copy]
    return np.asarray(last_copy_vectors.mean(axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare an engine's vectors with those of st_reba."
    )
    parser.add_argument("base", help="what the engine serves: a folder, a Hub id or a GGUF file")
    parser.add_argument("url", help="the engine's address")
    parser.add_argument(
        "methods",
        nargs="*",
        default=DEFAULT_METHODS,
        metavar="METHOD",
        help=f"default: {' '.join(DEFAULT_METHODS)}",
    )
    options = parser.parse_args()
    engine = find_engine(options.url)
    lines = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[::8]]
    for method in options.methods:
        is_mean = Method.parse(method).pooling == "mean"
        model = st_reba.build(options.base, method, dtype="float32", device="cpu")
        cosines: list[float] = []
        for text, model_vector in zip(texts, model.encode(texts), strict=True):
            vector = engine_vector(engine, model.preprocess([text]), is_mean)
            lengths = np.linalg.norm(vector) * np.linalg.norm(model_vector)
            cosines.append(float(vector @ model_vector / lengths))
        print(f"{method}: lowest cosine {min(cosines):.6f}, mean {np.mean(cosines):.6f}")


if __name__ == "__main__":
    main()
