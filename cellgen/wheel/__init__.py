"""Prebuilt kernels: a wheel that needs NumPy alone, an archive for C and C++.

Input: generated sources of cells. Output: files. ``levels`` says for which processors, ``objects``
compiles, ``pack`` and ``archive`` write; ``packed`` is what stands in the wheel beside the objects.
"""
