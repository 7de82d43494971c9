"""Functions on tensors that other libraries have for GPUs, by their names, for CPUs.

``fla`` (``fla.ops``), ``mamba_ssm`` (its scan) and ``causal_conv1d``: same names, order of
arguments, layouts, defaults and results, differentiable as any operator of torch. A function
changes layouts, forms gates and pads packed sequences; the recurrence is a declared cell, which
runs step by step in a generated kernel. Nothing of the peers is imported or needed.
"""
