"""Sequences of several lengths, as torch packs them: padded for a call, and packed again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


@dataclass(frozen=True)
class Padded:
    """A packed sequence as an array (T, B, ...), rows in the order of the packing.

    ``lengths`` lie on the CPU, as torch's packing wants them.
    """

    array: Tensor
    lengths: Tensor
    packed: PackedSequence

    @property
    def lengths_there(self) -> Tensor:
        """The lengths on the device of the array."""
        return self.lengths.to(self.array.device, non_blocking=True)

    def packed_again(self, output: Tensor) -> PackedSequence:
        """Pack an array over time as the sequence was packed."""
        again = pack_padded_sequence(output, self.lengths)
        return PackedSequence(
            again.data,
            self.packed.batch_sizes,
            self.packed.sorted_indices,
            self.packed.unsorted_indices,
        )

    def dropped(self, array: Tensor, rate: float) -> Tensor:
        """Dropout of an array over time that draws for valid steps alone, as torch.nn has it.

        What stands in the place of padding is zero then.
        """
        data, *order = pack_padded_sequence(array, self.lengths)
        return pad_packed_sequence(PackedSequence(dropout(data, rate), *order))[0]

    def sorted(self, rows: Tensor, axis: int) -> Tensor:
        """Bring rows that a caller has given into the order of the packing."""
        order = self.packed.sorted_indices
        return rows if order is None else rows.index_select(axis, order)

    def unsorted(self, rows: Tensor, axis: int) -> Tensor:
        """Bring rows into the order in which the caller has them."""
        order = self.packed.unsorted_indices
        return rows if order is None else rows.index_select(axis, order)


def padded(sequence: PackedSequence) -> Padded:
    """Lay out a packed sequence as an array."""
    plain = PackedSequence(sequence.data, sequence.batch_sizes, None, None)
    array, lengths = pad_packed_sequence(plain)
    return Padded(array, lengths, sequence)
