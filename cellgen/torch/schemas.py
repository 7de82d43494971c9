"""The schemas of the two operators of every cell, and the names that follow from them."""

from __future__ import annotations

import hashlib

from cellgen.runtime.numbers import torch_arguments

STEPS = f"Tensor[] tables, int given, {torch_arguments()}"
"""Which steps are valid, how they are computed, and what is shown: the same of both operators. Bits
of ``given`` say which of lengths, mask and reset are in ``tables``; ``runtime/numbers.py`` says
what the other numbers mean. A call that saves has ``every`` and ``outputs`` with a ``checkpoint``
alone, and the last step alone never; ``per_row`` is of the backward pass."""

FORWARD = f"(str cell, Tensor[] theta, float[] scalars, bool save, {STEPS}) -> Tensor[]"
BACKWARD = (
    "(str cell, Tensor[] theta, float[] scalars, Tensor[] kept, Tensor[] upstream, "
    f"int present, int wanted, {STEPS}) -> Tensor[]"
)
"""``kept`` is what the forward pass gave, behind its outputs where it has a ``checkpoint``.
Bit k of ``present`` says whether the k-th output has an upstream gradient; those that do come in
``upstream``. (In a list with None among tensors torch would track no gradient at all.) Bit k of
``wanted`` says whether the k-th gradient is formed and returned; -1: all."""

OF_STEPS = STEPS.count(",")
"""How many arguments follow ``tables``."""


def overload_of(*schemas: str) -> str:
    """Name the overload of operators with these schemas.

    torch keeps compiled graphs on disk by the text of the forward graph. The operator's name stands
    in it, its schema and that of ``backward`` do not: of another version of cellgen, a graph would
    call an operator with arguments that it does not have.
    """
    return "schema_" + hashlib.sha256("\n".join(schemas).encode()).hexdigest()[:8]


OVERLOAD = overload_of(FORWARD, BACKWARD)
NAMES = (f"forward.{OVERLOAD}", f"backward.{OVERLOAD}")
"""The two operators as they are registered."""
