"""Are the vectors of an engine, vLLM or llama.cpp, those of st_reba? See docs/how-to/vllm-llamacpp.md.

    python examples/engine.py BASE http://127.0.0.1:8000                    # three methods, at the last position
    python examples/engine.py BASE http://127.0.0.1:8000 echo:pooling=mean  # the server must give every token's vector

BASE is the folder, Hub id or GGUF file that the engine serves. st_reba computes in float32; 40 texts in English and
Chinese are sent as the ids that it makes of them, and the cosines of both vectors are shown.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

import st_reba
from st_reba.methods import Method

SENTENCES = Path(__file__).with_name("sentences.jsonl")


def ask(url: str, **content: Any) -> Any:
    """What a server answers: to a question in JSON, or to none."""
    data = json.dumps(content).encode() if content else None
    with urlopen(Request(url, data, {"Content-Type": "application/json"})) as response:
        return json.load(response)


def last_position(url: str, model: dict[str, Any], ids: list[int]) -> Any:
    """The vector [d] of the last position, of length 1."""
    return ask(f"{url}/v1/embeddings", model=model["id"], input=[ids])["data"][0]["embedding"]


def every_token(url: str, model: dict[str, Any], ids: list[int]) -> Any:
    """Vectors [tokens, d], not scaled."""
    if model["owned_by"] == "vllm":
        return ask(f"{url}/pooling", model=model["id"], input=ids, use_activation=False)["data"][0]["data"]
    return ask(f"{url}/embeddings", content=[ids])[0]["embedding"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare an engine's vectors with those of st_reba.")
    parser.add_argument("base", help="what the engine serves: a folder, a Hub id or a GGUF file")
    parser.add_argument("url", help="the engine's address")
    three = ["prompteol", "echo:pooling=last", "classical:pooling=last"]
    parser.add_argument("methods", nargs="*", default=three, metavar="METHOD", help=f"default: {' '.join(three)}")
    options = parser.parse_args()

    served = ask(f"{options.url}/v1/models")["data"][0]
    texts = [json.loads(line)["text"] for line in SENTENCES.read_text(encoding="utf-8").splitlines()[::8]]
    for method in options.methods:
        model = st_reba.build(options.base, method, dtype="float32", device="cpu")
        cosines = []
        for text, own in zip(texts, model.encode(texts), strict=True):
            sent = model.preprocess([text])
            ids, copies = sent["input_ids"][0].tolist(), sent["copy_ids"][0].numpy()
            if Method.parse(method).sentence_pooling == "mean":
                vector = np.mean(np.array(every_token(options.url, served, ids))[copies == copies.max()], axis=0)
            else:
                vector = np.array(last_position(options.url, served, ids))
            cosines.append(float(vector @ own / np.linalg.norm(vector) / np.linalg.norm(own)))
        print(f"{method}: lowest cosine {min(cosines):.6f}, mean {np.mean(cosines):.6f}")


if __name__ == "__main__":
    main()
