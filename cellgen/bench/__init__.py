"""Time kernels over whole sequences beside other libraries, as multiples of the machine's limit.

``measure`` runs, ``report`` holds figures, ``floor`` is that limit; every contestant lives in a
process of its own (``process`` here, ``worker`` there) and is described by ``peers``. In a program
or a notebook, ``measure.run(Plan(cells=("gru",)))`` is what ``cellgen bench gru`` does.
"""
