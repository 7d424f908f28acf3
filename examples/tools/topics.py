"""BERTopic: topics of the English sentences in examples/, with words for each: topics.py my_model."""

import json
import sys
from pathlib import Path

from bertopic import BERTopic
from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer

lines = Path(__file__).parents[1].joinpath("sentences.jsonl").read_text(encoding="utf-8").splitlines()
texts = [one["text"] for one in map(json.loads, lines) if one["lang"] == "en"]
model = SentenceTransformer(sys.argv[1], trust_remote_code=True)
# For thousands of texts leave the first two out: UMAP and HDBSCAN are BERTopic's own choice.
parts = {"umap_model": PCA(10), "hdbscan_model": KMeans(8, random_state=0)}
topics = BERTopic(embedding_model=model, vectorizer_model=CountVectorizer(stop_words="english"), **parts)
topics.fit(texts)
for _, row in topics.get_topic_info().iterrows():
    print(f"{row['Count']:4d}  {', '.join(row['Representation'][:5])}  |  {row['Representative_Docs'][0]}")
