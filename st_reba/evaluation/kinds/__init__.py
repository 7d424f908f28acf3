"""The kinds of tasks, one a file; each declares itself."""

from . import (  # noqa: F401  # each file declares its kind
    classification,
    clustering,
    ner,
    pair_classification,
    reranking,
    retrieval,
    sts,
    triples,
    views,
    word_sense,
)
