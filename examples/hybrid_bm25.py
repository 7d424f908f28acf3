"""Words and meaning together: BM25 (bm25s) and an index of vectors, fused by reciprocal rank.

    pip install bm25s
    python examples/hybrid_bm25.py --model my_model --texts my_texts.jsonl "What shines at night?"

BM25 finds the rare word that is in the text itself, vectors find what is said in other words. Their scores cannot be
compared, so only ranks count: a document gets the sum of 1 / (60 + rank) over the rankings that found it. TEXTS is any
file that `st-reba index` reads; without one, the sentences beside this script.
"""

import argparse
import re
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import bm25s
from sentence_transformers import SentenceTransformer

import st_reba
from st_reba.corpus import Document
from st_reba.corpus.source import open_source
from st_reba.index import Index

SENTENCES = Path(__file__).with_name("sentences.jsonl")
RRF_K = 60
# One Chinese, Japanese or Korean character, or a run of other letters and digits.
TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|[^\W_\u3040-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


def tokens(text: str) -> list[str]:
    """Words; of Chinese, which writes no spaces, single characters."""
    return TOKEN.findall(text.lower())


def fuse(*rankings: list[str]) -> list[tuple[str, float]]:
    """Ids by the sum of their reciprocal ranks, best first; those of equal sums by id."""
    scores: dict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, identity in enumerate(ranking, 1):
            scores[identity] += 1 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Search by words and by meaning, fused by reciprocal rank.")
    parser.add_argument(
        "queries", nargs="*", default=["包子铺门口为什么排队", "Should I chill an onion before chopping it?"]
    )
    parser.add_argument("--model", help="a saved model (default: the embedded one, ReBA with two copies)")
    parser.add_argument("--texts", default=SENTENCES, help="a file of texts (default: the package's sentences)")
    parser.add_argument("-k", type=int, default=3, help="results that are shown")
    parser.add_argument("--depth", type=int, default=50, help="results of each ranking that are fused")
    options = parser.parse_args()

    model = SentenceTransformer(options.model) if options.model else st_reba.build("mini", "reba", pooling="mean")
    with tempfile.TemporaryDirectory() as folder:
        read = [one for one in open_source(options.texts).read() if isinstance(one, Document)]
        documents = [replace(each, id=each.id or str(row)) for row, each in enumerate(read)]
        index = Index.build(model, documents, f"{folder}/index", show_progress_bar=False)
        words = bm25s.BM25()
        words.index([tokens(document.text) for document in documents], show_progress=False)
        texts = {document.id: document.text for document in documents}
        for query in options.queries:
            rows, scores = words.retrieve([tokens(query)], k=min(options.depth, len(documents)), show_progress=False)
            # A document without a single word of the query is not found by BM25.
            by_words = [documents[row].id for row, score in zip(rows[0], scores[0], strict=True) if score > 0]
            by_meaning = [result.id for result in index.search(query, options.depth)]
            fused = fuse(by_words, by_meaning)
            print(query)
            for name, ranking in (("BM25", by_words), ("vectors", by_meaning), ("fused", [each for each, _ in fused])):
                print(f"  {name}")
                for rank, identity in enumerate(ranking[: options.k], 1):
                    print(f"    {rank}. {identity}  {texts[identity]}")
        index.close()


if __name__ == "__main__":
    main()
