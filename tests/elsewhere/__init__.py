"""The generated C on machines and under compilers other than this one's kernels.

``calls`` draws arguments, makes every call of a cell here and keeps what comes out; ``machines``
compiles the cell with ``main.c`` for somewhere else and runs it there.
"""
