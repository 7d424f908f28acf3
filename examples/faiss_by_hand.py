"""Search texts with sentence-transformers, FAISS and NumPy, and nothing else: no index folder, no plugin's index.

    python examples/faiss_by_hand.py
    python examples/faiss_by_hand.py --model my_model --texts my_texts.txt "What shines at night?"

MODEL is a saved model's folder or a Hub id; without one the embedded model is built. TEXTS has a text a line.
"""

import argparse

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

# Lets plain SentenceTransformer(folder) find the model's classes, and builds the default model. Where st_reba is not
# installed, leave it out and load with trust_remote_code=True: a saved model carries its own code.
import st_reba

TEXTS = [
    "股票大跌，投资者很担心。",
    "猫在窗台上睡着了。",
    "这家面馆的牛肉面很好吃。",
    "The cat is asleep on the sofa.",
    "Shares fell sharply and investors are worried.",
    "The noodle shop on the corner is always full.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Search texts with sentence-transformers and FAISS.")
    parser.add_argument("queries", nargs="*", default=["一只正在睡觉的猫", "Who lost money?"])
    parser.add_argument("--model", help="a saved model (default: the embedded one, ReBA with two copies)")
    parser.add_argument("--texts", help="a file with a text a line (default: six sentences)")
    parser.add_argument("-k", type=int, default=3, help="results a query")
    options = parser.parse_args()

    model = SentenceTransformer(options.model) if options.model else st_reba.build("mini", "reba", pooling="mean")
    texts = TEXTS
    if options.texts:
        with open(options.texts, encoding="utf-8") as lines:
            texts = [line.strip() for line in lines if line.strip()]

    # encode_document and encode_query use the model's saved prompts, plain encode uses none.
    vectors = model.encode_document(texts, normalize_embeddings=True)
    index = faiss.IndexFlatIP(vectors.shape[1])  # the inner product of vectors of length 1 is the cosine
    index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    queries = model.encode_query(options.queries, normalize_embeddings=True)
    scores, rows = index.search(np.ascontiguousarray(queries, dtype=np.float32), min(options.k, len(texts)))
    for query, found, near in zip(options.queries, rows, scores, strict=True):
        print(query)
        for rank, (row, score) in enumerate(zip(found, near, strict=True), 1):
            print(f"  {rank}. {score:.6f}  {texts[row]}")


if __name__ == "__main__":
    main()
