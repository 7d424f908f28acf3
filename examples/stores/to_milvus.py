"""A finished corpus into Milvus Lite: to_milvus.py my_corpus my_model my_milvus.db "text"."""

import sys

from pymilvus import MilvusClient
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus, model = Corpus(sys.argv[1]), SentenceTransformer(sys.argv[2], trust_remote_code=True)
client = MilvusClient(sys.argv[3])  # a server: MilvusClient("http://localhost:19530")
client.create_collection("texts", dimension=model.get_embedding_dimension(), metric_type="COSINE")

key = 0
for part in range(corpus.parts()):
    found = [(row.document(), vector.tolist()) for row, vectors in corpus.read(part) for vector in vectors]
    for start in range(0, len(found), 1000):
        some = list(enumerate(found[start : start + 1000], key))
        key += len(some)
        rows = [one.metadata | {"id": n, "vector": v, "name": one.id, "text": one.text} for n, (one, v) in some]
        client.insert("texts", rows)
query = model.encode_query(sys.argv[4])
for hit in client.search("texts", [query], filter="lang == 'zh'", limit=3, output_fields=["name", "text"])[0]:
    print(f"{hit['distance']:.4f}  {hit['entity']['name']}  {hit['entity']['text']}")
