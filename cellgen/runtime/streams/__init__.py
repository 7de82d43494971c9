"""Sessions that go on step by step: states live inside, rows come and go, nothing is allocated."""
