"""A finished corpus into DuckDB, without extensions: to_duckdb.py my_corpus my_model my.duckdb "text"."""

import sys

import duckdb
import pyarrow as pa
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus, model = Corpus(sys.argv[1]), SentenceTransformer(sys.argv[2], trust_remote_code=True)
database, size = duckdb.connect(sys.argv[3]), model.get_embedding_dimension()
database.execute(f"CREATE TABLE texts (id VARCHAR, text VARCHAR, metadata JSON, vector FLOAT[{size}])")
for part in range(corpus.parts()):
    rows = [row for row in corpus.part(part).rows for _ in range(row.vector_count)]
    columns = [[row.document().id for row in rows], [row.text for row in rows], [row.metadata for row in rows]]
    flat = pa.array(corpus.vectors(part).astype("float32").ravel())
    columns.append(pa.FixedSizeListArray.from_arrays(flat, size))
    batch = pa.table(columns, names=["id", "text", "metadata", "vector"])
    database.execute("INSERT INTO texts SELECT * FROM batch")
near = f"""SELECT array_cosine_similarity(vector, ?::FLOAT[{size}]) AS score, id, text FROM texts
           WHERE metadata->>'lang' = 'zh' ORDER BY score DESC LIMIT 3"""
for score, name, text in database.execute(near, [model.encode_query(sys.argv[4])]).fetchall():
    print(f"{score:.4f}  {name}  {text}")
