"""Stages composed: which input, plan, layer, pooling and post-filter go best together, and at what cost."""
