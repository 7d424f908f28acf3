"""examples/hybrid_bm25.py in a fresh process without network, against a search made here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from given import ROOT, SENTENCES, script

import st_reba


def ranked(place: Path, name: str, *arguments: str) -> dict[str, list[str]]:
    """For each line of a script's output that is no result, the results under it, without their numbers."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in script(ROOT / "examples" / name, *arguments, folder=place).splitlines():
        if match := re.match(r"\s+\d+\. (.*)", line):
            found[title].append(match[1])
        else:
            found[title := line.strip()] = []
    return found


def test_hybrid_bm25(tmp_path: Path) -> None:
    """The fused ranking is the sum of reciprocal ranks of the two that are shown."""
    documents = [json.loads(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    texts = {document["id"]: document["text"] for document in documents}
    model = st_reba.build("mini", "reba", pooling="mean", device="cpu")
    vectors = model.encode_document(list(texts.values()))
    for query, best in (
        ("包子铺门口为什么排队", "zh-0001"),
        ("Should I chill an onion before chopping it?", "en-0096"),
    ):
        found = ranked(tmp_path, "hybrid_bm25.py", "-k", "1000", "--depth", "40", query)
        lists = {name: [line.split("  ") for line in lines] for name, lines in found.items() if lines}
        assert all(texts[identity] == text for lines in lists.values() for identity, text in lines)
        words, meaning, fused = ([identity for identity, _ in lists[name]] for name in ("BM25", "vectors", "fused"))
        assert words[0] == fused[0] == best and len(words) <= 40
        assert meaning == [list(texts)[row] for row in np.argsort(-(vectors @ model.encode_query(query)))[:40]]
        sums = {
            identity: sum(1 / (61 + ranking.index(identity)) for ranking in (words, meaning) if identity in ranking)
            for identity in {*words, *meaning}
        }
        assert fused == sorted(sums, key=lambda identity: (-sums[identity], identity))
        # Only what shares a word with the query, or a character of Chinese, is found by words.
        shared = set(re.findall(r"[a-z]+|[一-鿿]", query.lower()))
        assert all(shared & set(re.findall(r"[a-z]+|[一-鿿]", texts[identity].lower())) for identity in words)
