"""Render the same schedules to CUDA, for any cell at any shape, and faster where a cell allows it.

``schedule/device`` plans; here plans are spelled, in the words of a ``dialect``. ``places`` spells
where arrays lie; ``kernels`` and ``nests`` loops as kernels; ``products`` matrix products; ``step``
and ``sequence`` the host functions that launch both; ``options`` what surrounds steps that may be
masked; ``tiers`` the kernels that run all steps in one launch, ``launches`` which of them runs;
``source`` puts a cell's ``.cu`` together and says how a cell runs: the target.
"""
