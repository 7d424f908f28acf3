"""FAISS: which index, how it is set, trained and written, which of its rows stay."""
