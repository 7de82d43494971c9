"""Proofs of a cell: hand-written truths, recorded numbers, complex steps, rounding."""
