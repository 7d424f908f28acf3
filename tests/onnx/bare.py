"""Holds an exported folder against its golden vectors, without torch: ``bare.py FOLDER``."""

import json
import sys
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    import onnxruntime
    from tokenizers import Tokenizer

    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    texts = [each["text"] for each in golden["texts"]]
    wanted = np.array([each["vector"] for each in golden["texts"]])
    normalized = (folder / "2_Normalize").is_dir()
    session = onnxruntime.InferenceSession(str(folder / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(batch: list, side: str) -> np.ndarray:
        settings = tokenizer.padding
        tokenizer.enable_padding(direction=side, pad_id=settings["pad_id"], pad_token=settings["pad_token"])
        encoded = tokenizer.encode_batch(batch)
        ids = np.array([each.ids for each in encoded], dtype=np.int64)
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        (states,) = session.run(["last_hidden_state"], {"input_ids": ids, "attention_mask": mask})
        vectors = (states * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalized else vectors

    found = {side: encode(texts, side) for side in ("left", "right")}
    found["alone"] = np.concatenate([encode([text], "right") for text in texts])
    found["backwards"] = encode(texts[::-1], "left")[::-1]
    scale = np.abs(wanted).max()
    loaded = [name for name in ("torch", "transformers", "sentence_transformers", "st_reba") if name in sys.modules]
    print(json.dumps({"loaded": loaded, **{name: np.abs(each - wanted).max() / scale for name, each in found.items()}}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
