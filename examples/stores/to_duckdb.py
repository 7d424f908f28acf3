"""A finished corpus into DuckDB, without extensions: to_duckdb.py my_corpus my_model my.duckdb "text"."""

import sys

import duckdb
import pyarrow as pa
from sentence_transformers import SentenceTransformer

from st_reba.corpus import Corpus

corpus_folder, model_name, database_file, query_text = sys.argv[1:]
corpus = Corpus(corpus_folder)
model = SentenceTransformer(model_name, trust_remote_code=True)
dimension = model.get_embedding_dimension()
database = duckdb.connect(database_file)
database.execute(
    f"CREATE TABLE texts (id VARCHAR, text VARCHAR, metadata JSON, vector FLOAT[{dimension}])"
)
for part_index in range(corpus.part_count()):
    ids = []
    texts = []
    metadata = []
    for corpus_row in corpus.part(part_index).rows:
        # A row has a vector for each of its passages.
        ids += [corpus_row.document().id] * corpus_row.vector_count
        texts += [corpus_row.text] * corpus_row.vector_count
        metadata += [corpus_row.metadata] * corpus_row.vector_count
    numbers = pa.array(corpus.vectors(part_index).astype("float32").ravel())
    vectors = pa.FixedSizeListArray.from_arrays(numbers, dimension)
    batch = pa.table({"id": ids, "text": texts, "metadata": metadata, "vector": vectors})
    database.execute("INSERT INTO texts SELECT * FROM batch")

nearest_texts = f"""
    SELECT array_cosine_similarity(vector, ?::FLOAT[{dimension}]) AS score, id, text FROM texts
    WHERE metadata->>'lang' = 'zh' ORDER BY score DESC LIMIT 3
"""
query_vector = model.encode_query(query_text)
for score, text_id, text in database.execute(nearest_texts, [query_vector]).fetchall():
    print(f"{score:.4f}  {text_id}  {text}")
