"""Render the same schedules to CUDA, for any cell at any shape, and faster where a cell allows it.

``kernels`` spells loops as kernels; ``products`` stacks matrix products; ``step`` and ``sequence``
spell the host functions that launch both; ``options`` what surrounds steps that may be masked;
``tiers`` the kernels that run all steps in one launch;
``source`` puts a cell's ``.cu`` together and says how a cell runs: the target.
"""
