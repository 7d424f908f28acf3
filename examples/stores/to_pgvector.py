"""A finished corpus into PostgreSQL with pgvector: to_pgvector.py my_corpus my_model postgresql://… "text"."""

import sys

import psycopg
from pgvector.psycopg import register_vector
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus, model = Corpus(sys.argv[1]), SentenceTransformer(sys.argv[2], trust_remote_code=True)
with psycopg.connect(sys.argv[3]) as database:
    database.execute("CREATE EXTENSION IF NOT EXISTS vector")
    register_vector(database)
    size = model.get_embedding_dimension()
    database.execute(f"CREATE TABLE texts (id text, text text, metadata jsonb, vector vector({size}))")
    with database.cursor().copy("COPY texts FROM STDIN") as copy:
        for part in range(corpus.parts()):
            for row, vectors in corpus.read(part):
                for vector in vectors:
                    copy.write_row([row.document().id, row.text, row.metadata, vector.astype("float32")])
    database.execute("CREATE INDEX ON texts USING hnsw (vector vector_cosine_ops)")
    near = "SELECT vector <=> %s AS away, id, text FROM texts WHERE metadata->>'lang' = 'zh' ORDER BY away LIMIT 3"
    for away, name, text in database.execute(near, [model.encode_query(sys.argv[4])]):
        print(f"{1 - away:.4f}  {name}  {text}")
