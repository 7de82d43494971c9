"""The recurrent functions of other libraries, by their own names, on generated kernels.

``tf`` (``tf.raw_ops``), ``torch`` (its recurrent functions), ``mygrad`` (``mygrad.nnet.layers``),
``keras`` (its layers), ``epynn``: same names, order of arguments, layouts, defaults and results.
Adapters permute, stack, slice and fill with zeros; the mathematics is in declared cells. Arguments
are converted where a kernel would refuse them.
Not supported: the peers' tensors on devices, their graphs and tapes.
"""

from cellgen.compat import epynn, keras, mygrad, tf, torch

__all__ = ["epynn", "keras", "mygrad", "tf", "torch"]
