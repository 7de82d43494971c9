"""Named rewrites of Programs, a family a module.

Each takes and gives a Program and says why it is exact.
"""
