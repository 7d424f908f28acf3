"""A finished corpus into LanceDB, whose registry embeds queries: to_lancedb.py my_corpus my_model my_lancedb "text"."""

import sys

import lancedb
from lancedb.embeddings import get_registry
from lancedb.pydantic import LanceModel, Vector

from st_reba.corpus import Corpus

corpus, name, database, query = Corpus(sys.argv[1]), *sys.argv[2:]
embed = get_registry().get("sentence-transformers").create(name=name)  # trusts the model's code by default
columns = {"id": str, "text": str, "lang": str, "metadata": str, "vector": Vector(embed.ndims())}
values = {"text": embed.SourceField(), "vector": embed.VectorField()}
Text = type("Text", (LanceModel,), {"__annotations__": columns, **values})
table = lancedb.connect(database).create_table("texts", schema=Text)
for part in range(corpus.parts()):
    rows = [(row, row.document(), vector) for row, vectors in corpus.read(part) for vector in vectors]
    table.add([dict(id=d.id, text=d.text, lang=d.metadata["lang"], metadata=r.metadata, vector=v) for r, d, v in rows])
for hit in table.search(query).distance_type("cosine").where("lang = 'zh'").limit(3).to_list():
    print(f"{1 - hit['_distance']:.4f}  {hit['id']}  {hit['text']}")
