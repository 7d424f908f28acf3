"""What lies in an index folder: the manifest, its segments, how a change takes effect."""
