"""A finished corpus into Qdrant, here its local mode: to_qdrant.py my_corpus my_model my_qdrant "text"."""

import sys

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, FieldCondition, Filter, MatchValue, PointStruct, VectorParams
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus, model = Corpus(sys.argv[1]), SentenceTransformer(sys.argv[2], trust_remote_code=True)
client = QdrantClient(path=sys.argv[3])  # a server: QdrantClient("http://localhost:6333")
client.create_collection("texts", VectorParams(size=model.get_embedding_dimension(), distance=Distance.COSINE))

found = (pair for part in range(corpus.parts()) for pair in corpus.read(part))
texts = ((row.document(), vector) for row, vectors in found for vector in vectors)
filled = ((vector.tolist(), one.metadata | {"id": one.id, "text": one.text}) for one, vector in texts)
points = (PointStruct(id=key, vector=vector, payload=payload) for key, (vector, payload) in enumerate(filled))
client.upload_points("texts", points, batch_size=512, wait=True)
only = Filter(must=[FieldCondition(key="lang", match=MatchValue(value="zh"))])
for hit in client.query_points("texts", model.encode_query(sys.argv[4]), query_filter=only, limit=3).points:
    print(f"{hit.score:.4f}  {hit.payload['id']}  {hit.payload['text']}")
client.close()
