"""A finished corpus into Qdrant, here its local mode: to_qdrant.py my_corpus my_model my_qdrant "text"."""

import sys
from collections.abc import Iterator
from itertools import count

from qdrant_client import QdrantClient
from qdrant_client.models import (
    Distance,
    FieldCondition,
    Filter,
    MatchValue,
    PointStruct,
    VectorParams,
)
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus


def points_of(corpus: Corpus) -> Iterator[PointStruct]:
    point_ids = count()
    for part_index in range(corpus.part_count()):
        for corpus_row, vectors in corpus.read(part_index):
            document = corpus_row.document()
            payload = document.metadata | {"id": document.id, "text": document.text}
            for vector in vectors.tolist():
                yield PointStruct(id=next(point_ids), vector=vector, payload=payload)


corpus_folder, model_name, database_folder, query_text = sys.argv[1:]
model = SentenceTransformer(model_name, trust_remote_code=True)
client = QdrantClient(path=database_folder)  # a server: QdrantClient("http://localhost:6333")
dimension = model.get_embedding_dimension()
client.create_collection("texts", VectorParams(size=dimension, distance=Distance.COSINE))
client.upload_points("texts", points_of(Corpus(corpus_folder)), batch_size=512, wait=True)

is_chinese = FieldCondition(key="lang", match=MatchValue(value="zh"))
response = client.query_points(
    "texts",
    model.encode_query(query_text),
    query_filter=Filter(must=[is_chinese]),
    limit=3,
)
for point in response.points:
    print(f"{point.score:.4f}  {point.payload['id']}  {point.payload['text']}")
client.close()
