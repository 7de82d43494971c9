"""Render the same schedules to CUDA: tier 0, which runs any cell at any shape.

``kernels`` spells loops as kernels; ``products`` stacks matrix products; ``step`` and ``sequence``
spell the host functions that launch both; ``source`` puts a cell's ``.cu`` together.
"""

from cellgen.render.cuda.source import cuda_source

__all__ = ["cuda_source"]
