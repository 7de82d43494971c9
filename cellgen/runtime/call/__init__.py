"""Calls of a kernel: arguments checked, memory found, results named."""
