"""From documents or encoded corpora to an index folder, and how much of exact search it finds."""
