"""Sources compiled, kept in a cache and loaded."""
