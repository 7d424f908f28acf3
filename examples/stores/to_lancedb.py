"""A finished corpus into LanceDB, whose registry embeds queries: to_lancedb.py my_corpus my_model my_lancedb "text"."""

import sys

import lancedb
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

from st_reba.corpus import Corpus

corpus_folder, model_name, database_folder, query_text = sys.argv[1:]
corpus = Corpus(corpus_folder)
# By default it trusts the model's code.
embedding_function = get_registry().get("sentence-transformers").create(name=model_name)


class Text(LanceModel):
    id: str
    text: str = embedding_function.SourceField()
    lang: str
    metadata: str
    vector: Vector(embedding_function.ndims()) = embedding_function.VectorField()


table = lancedb.connect(database_folder).create_table("texts", schema=Text)
for part_index in range(corpus.part_count()):
    rows = []
    for corpus_row, vectors in corpus.read(part_index):
        document = corpus_row.document()
        for vector in vectors:
            rows.append(
                {
                    "id": document.id,
                    "text": document.text,
                    "lang": document.metadata["lang"],
                    "metadata": corpus_row.metadata,
                    "vector": vector,
                }
            )
    table.add(rows)

nearest_texts = table.search(query_text).distance_type("cosine").where("lang = 'zh'").limit(3)
for hit in nearest_texts.to_list():
    print(f"{1 - hit['_distance']:.4f}  {hit['id']}  {hit['text']}")
