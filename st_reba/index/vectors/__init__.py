"""FAISS: which index, how it is written and trained, what it finds, which of its rows stay."""
