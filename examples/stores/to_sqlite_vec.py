"""A finished corpus into SQLite with sqlite-vec: to_sqlite_vec.py my_corpus my_model my.sqlite "text"."""

import sys

import apsw  # many Pythons' own sqlite3 cannot load extensions
import sqlite_vec
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus, model = Corpus(sys.argv[1]), SentenceTransformer(sys.argv[2], trust_remote_code=True)
database = apsw.Connection(sys.argv[3])
database.enable_load_extension(True)
sqlite_vec.load(database)
size = model.get_embedding_dimension()
columns = f"lang text, +id text, +text text, +metadata text, vector float[{size}] distance_metric=cosine"
database.execute(f"CREATE VIRTUAL TABLE texts USING vec0({columns})")
for part in range(corpus.parts()):
    rows = ((row, row.document(), vector) for row, vectors in corpus.read(part) for vector in vectors.astype("float32"))
    with database:
        filled = ((one.metadata["lang"], one.id, one.text, row.metadata, vector.tobytes()) for row, one, vector in rows)
        database.executemany("INSERT INTO texts (lang, id, text, metadata, vector) VALUES (?, ?, ?, ?, ?)", filled)
near = "SELECT 1 - distance, id, text FROM texts WHERE vector MATCH ? AND k = 3 AND lang = 'zh' ORDER BY distance"
for score, name, text in database.execute(near, [model.encode_query(sys.argv[4]).tobytes()]):
    print(f"{score:.4f}  {name}  {text}")
