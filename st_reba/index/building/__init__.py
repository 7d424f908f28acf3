"""From documents or encoded corpora to an index folder."""
