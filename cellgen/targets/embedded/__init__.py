"""Cells for small machines: one header and one body in C99, every size a constant.

Input: ``PlannedCell`` and what is asked for (``asked``). Output: the texts of ``<cell>.h`` and
``<cell>.c``. ``functions`` takes the scalar functions out of the runtime header, ``places`` says
where arrays lie, ``loops`` spells stages as plain loops, ``source`` puts both files together.
"""
