"""Files that are written whole, and the probe by which the model of stored vectors is known again."""
