"""Cells to cells: what rewrites equations and gives a cell again."""
