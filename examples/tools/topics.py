"""BERTopic: topics of the English sentences in examples/, with words for each: topics.py my_model."""

import json
import sys
from pathlib import Path

from bertopic import BERTopic
from sentence_transformers import SentenceTransformer
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer

SENTENCES_FILE = Path(__file__).parents[1] / "sentences.jsonl"

texts = []
for line in SENTENCES_FILE.read_text(encoding="utf-8").splitlines():
    sentence = json.loads(line)
    if sentence["lang"] == "en":
        texts.append(sentence["text"])
topic_model = BERTopic(
    embedding_model=SentenceTransformer(sys.argv[1], trust_remote_code=True),
    vectorizer_model=CountVectorizer(stop_words="english"),
    # For thousands of texts, leave these two out: BERTopic then uses UMAP and HDBSCAN.
    umap_model=PCA(10),
    hdbscan_model=KMeans(8, random_state=0),
)
topic_model.fit(texts)
for _, topic in topic_model.get_topic_info().iterrows():
    topic_words = ", ".join(topic["Representation"][:5])
    print(f"{topic['Count']:4d}  {topic_words}  |  {topic['Representative_Docs'][0]}")
