"""A finished corpus into SQLite with sqlite-vec: to_sqlite_vec.py my_corpus my_model my.sqlite "text"."""

import sys

import apsw  # many Pythons' own sqlite3 cannot load extensions
import sqlite_vec
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

INSERT = "INSERT INTO texts (lang, id, text, metadata, vector) VALUES (?, ?, ?, ?, ?)"
NEAREST_TEXTS = """
    SELECT 1 - distance, id, text FROM texts
    WHERE vector MATCH ? AND k = 3 AND lang = 'zh' ORDER BY distance
"""

corpus_folder, model_name, database_file, query_text = sys.argv[1:]
corpus = Corpus(corpus_folder)
model = SentenceTransformer(model_name, trust_remote_code=True)
database = apsw.Connection(database_file)
database.enable_load_extension(True)
sqlite_vec.load(database)
vector_column = f"vector float[{model.get_embedding_dimension()}] distance_metric=cosine"
columns = f"lang text, +id text, +text text, +metadata text, {vector_column}"
database.execute(f"CREATE VIRTUAL TABLE texts USING vec0({columns})")
for part_index in range(corpus.part_count()):
    rows = []
    for corpus_row, vectors in corpus.read(part_index):
        document = corpus_row.document()
        facts = (document.metadata["lang"], document.id, document.text, corpus_row.metadata)
        for vector in vectors.astype("float32"):
            rows.append((*facts, vector.tobytes()))
    with database:
        database.executemany(INSERT, rows)

query_vector = model.encode_query(query_text).tobytes()
for score, text_id, text in database.execute(NEAREST_TEXTS, [query_vector]):
    print(f"{score:.4f}  {text_id}  {text}")
