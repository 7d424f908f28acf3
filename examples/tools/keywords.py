"""KeyBERT: the phrases of a text that are nearest to all of it: keywords.py my_model "text"."""

import sys

from keybert import KeyBERT
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], trust_remote_code=True)
# For Chinese give a vectorizer whose tokenizer finds words, as jieba's.
for phrase, score in KeyBERT(model).extract_keywords(sys.argv[2], keyphrase_ngram_range=(1, 2), top_n=4):
    print(f"{score:.4f}  {phrase}")
