"""KeyBERT: the phrases of a text that are nearest to all of it: keywords.py my_model "text"."""

import sys

from keybert import KeyBERT
from sentence_transformers import SentenceTransformer

model_name, text = sys.argv[1:]
model = SentenceTransformer(model_name, trust_remote_code=True)
# For Chinese give a vectorizer whose tokenizer finds words, such as jieba's.
phrases = KeyBERT(model).extract_keywords(text, keyphrase_ngram_range=(1, 2), top_n=4)
for phrase, score in phrases:
    print(f"{score:.4f}  {phrase}")
