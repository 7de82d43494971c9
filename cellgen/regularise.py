"""Regularisers, cells to cells: dropout of three kinds, dropconnect and zoneout, for any cell."""

from cellgen.program.transforms.masked_cell import masks_of
from cellgen.program.transforms.regularise import (
    dropconnect,
    recurrent_dropout,
    variational_dropout,
    zoneout,
)

__all__ = ["dropconnect", "masks_of", "recurrent_dropout", "variational_dropout", "zoneout"]
