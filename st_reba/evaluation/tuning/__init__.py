"""Which layers to convert: trials of NoSink's settings on a labelled task, and the recipe of the best."""
