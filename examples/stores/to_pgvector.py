"""A finished corpus into PostgreSQL with pgvector: to_pgvector.py my_corpus my_model postgresql://… "text"."""

import sys

import psycopg
from pgvector.psycopg import register_vector
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

NEAREST_TEXTS = """
    SELECT vector <=> %s AS distance, id, text FROM texts
    WHERE metadata->>'lang' = 'zh' ORDER BY distance LIMIT 3
"""

corpus_folder, model_name, database_address, query_text = sys.argv[1:]
corpus = Corpus(corpus_folder)
model = SentenceTransformer(model_name, trust_remote_code=True)
dimension = model.get_embedding_dimension()
with psycopg.connect(database_address) as database:
    database.execute("CREATE EXTENSION IF NOT EXISTS vector")
    register_vector(database)
    database.execute(
        f"CREATE TABLE texts (id text, text text, metadata jsonb, vector vector({dimension}))"
    )
    with database.cursor().copy("COPY texts FROM STDIN") as copy:
        for part_index in range(corpus.part_count()):
            for corpus_row, vectors in corpus.read(part_index):
                for vector in vectors.astype("float32"):
                    copy.write_row(
                        [corpus_row.document().id, corpus_row.text, corpus_row.metadata, vector]
                    )
    database.execute("CREATE INDEX ON texts USING hnsw (vector vector_cosine_ops)")
    query_vector = model.encode_query(query_text)
    for distance, text_id, text in database.execute(NEAREST_TEXTS, [query_vector]):
        print(f"{1 - distance:.4f}  {text_id}  {text}")
