"""Render the same schedules to CUDA, for any cell at any shape, and faster where a cell allows it.

``kernels`` spells loops as kernels; ``products`` stacks matrix products; ``step`` and ``sequence``
spell the host functions that launch both; ``options`` what surrounds steps that may not count;
``tiers`` the kernels that run all steps in one launch;
``source`` puts a cell's ``.cu`` together. ``explain`` says how a cell runs.
"""

from cellgen.targets.cuda.source import cuda_source, explain

__all__ = ["cuda_source", "explain"]
