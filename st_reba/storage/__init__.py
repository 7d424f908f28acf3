"""Of corpora, indexes and filters alike: files that are written whole, and the probe of the model behind them."""
