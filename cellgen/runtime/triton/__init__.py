"""Generated Triton modules: kept in the cache, imported where PyTorch and Triton are installed."""
