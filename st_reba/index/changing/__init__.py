"""Documents added, replaced and deleted, segments merged and compacted."""
