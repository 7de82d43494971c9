"""Spell forms over time as Triton kernels: a Python module a cell, with a plan of launches."""
