"""A finished corpus into Milvus Lite: to_milvus.py my_corpus my_model my_milvus.db "text"."""

import sys

from pymilvus import MilvusClient
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

MAX_ROWS = 1000

corpus_folder, model_name, database_file, query_text = sys.argv[1:]
corpus = Corpus(corpus_folder)
model = SentenceTransformer(model_name, trust_remote_code=True)
client = MilvusClient(database_file)  # a server: MilvusClient("http://localhost:19530")
dimension = model.get_embedding_dimension()
client.create_collection("texts", dimension=dimension, metric_type="COSINE")

row_key = 0
for part_index in range(corpus.part_count()):
    rows = []
    for corpus_row, vectors in corpus.read(part_index):
        document = corpus_row.document()
        for vector in vectors:
            fields = {
                "id": row_key,
                "vector": vector.tolist(),
                "name": document.id,
                "text": document.text,
            }
            rows.append(document.metadata | fields)
            row_key += 1
    for start in range(0, len(rows), MAX_ROWS):
        client.insert("texts", rows[start : start + MAX_ROWS])

(hits,) = client.search(
    "texts",
    [model.encode_query(query_text)],
    filter="lang == 'zh'",
    limit=3,
    output_fields=["name", "text"],
)
for hit in hits:
    print(f"{hit['distance']:.4f}  {hit['entity']['name']}  {hit['entity']['text']}")
