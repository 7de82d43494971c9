"""What the functions of a cell over time take and give, in terms of tensors.

Output: ``Layout``, that of ``cellgen.frameworks`` with the check of a call. Works on tensors
without memory and on symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from cellgen import accept
from cellgen.frameworks import layout as frameworks
from cellgen.runtime.abi import Argument
from cellgen.runtime.call.faults import shape_text
from cellgen.runtime.call.signature import kept_element
from cellgen.runtime.call.stored import element_name
from cellgen.runtime.options import BF16
from cellgen.torch.devices import PLACES, TensorPlace
from cellgen.torch.errors import KindError, TensorError


class Layout(frameworks.TensorLayout):
    """Names and shapes of a cell over time, and the check of a call with tensors."""

    def check(self, theta: Sequence[Tensor], place: TensorPlace | None = None) -> dict[str, int]:
        """Look at every tensor of a call; return its dimensions. Raises TensorError, KindError.

        ``place`` is what there is on the device of the first one; None: what kernels there have.
        """
        if len(theta) != len(self.theta):
            names = ", ".join(item.name for item in self.theta)
            raise KindError(
                f"{self.label}: found {len(theta)} tensors, expected {len(self.theta)}: {names}"
            )
        first = theta[0]
        place = self._place(first, place)
        dtypes = place.dtypes
        for item, tensor in zip(self.theta, theta, strict=True):
            if not isinstance(tensor, Tensor):
                self._refuse_kind(item, tensor)
            if tensor.dtype not in dtypes or tensor.dtype != first.dtype:
                self._refuse_dtype(item, tensor, first, place)
            if tensor.device != first.device or tensor.layout != torch.strided:
                self._refuse_device(item, tensor, first)
            if tensor.dim() != len(item.shape):
                raise TensorError(self.wrong_rank(item, tensor.shape))
        sizes = self.sizes(theta)
        for item, tensor in zip(self.theta, theta, strict=True):
            for length, expected in zip(tensor.shape, self.shape(item.name, sizes), strict=True):
                if length != expected:
                    raise TensorError(self.wrong_shape(item, tensor.shape, sizes))
        return sizes

    def dtypes(self, like: Tensor, *, save: bool) -> list[torch.dtype]:
        """The types of what a forward pass gives: of outputs, and of what it keeps if it does."""
        own = [like.dtype] * len(self.outputs)
        if not save:
            return own
        if not PLACES[like.device.type].widens:
            return own + [like.dtype] * len(self.saved)
        element, kept = element_name(like.dtype), self.options.checkpoint != 0
        elements = [kept_element(item, element, checkpoint=kept) for item in self.saved]
        return own + [getattr(torch, element) for element in elements]

    def check_memory(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Look at where tensors lie, by their names: in memory in full. Raises TensorError."""
        for name, tensor in tensors.items():
            lacks = "" if tensor is None else accept.lacking(tensor)
            if lacks:
                raise TensorError(f"{self.label}: {name} {lacks}")

    def check_forms(self, tensors: Mapping[str, object]) -> None:
        """Look at the kinds and ranks of what is given by name. Raises TensorError, KindError."""
        for item in self.theta:
            tensor = tensors.get(item.name)
            if tensor is None:
                continue
            if not isinstance(tensor, Tensor):
                self._refuse_kind(item, tensor)
            if tensor.dim() != len(item.shape):
                raise TensorError(self.wrong_rank(item, tensor.shape))

    def _place(self, first: Tensor, known: TensorPlace | None = None) -> TensorPlace:
        """What there is for the device of the first tensor. Raises TensorError, KindError."""
        if not isinstance(first, Tensor):
            self._refuse_kind(self.theta[0], first)
        if known is not None:
            return known
        place = PLACES.get(first.device.type)
        if place is None:
            raise TensorError(
                f"{self.label}: {self.theta[0].name} is on {first.device}, expected the CPU or a "
                f"device of CUDA, for which there are kernels; pass {self.theta[0].name}.to('cpu')"
            )
        return place

    def _refuse_kind(self, item: Argument, value: object) -> NoReturn:
        raise KindError(
            f"{self.label}: {item.name} is a {type(value).__name__}, expected a torch.Tensor "
            f"{shape_text(item)}; pass torch.as_tensor({item.name})"
        )

    def _refuse_dtype(
        self, item: Argument, tensor: Tensor, first: Tensor, place: TensorPlace
    ) -> NoReturn:
        dtype = str(tensor.dtype).removeprefix("torch.")
        expected, wanted, other = place.kinds, "float32", ""
        if tensor.dtype in place.dtypes:
            wanted, name = element_name(first.dtype), self.theta[0].name
            expected = f"{wanted}, as {name} is"
            if item.is_weight:
                other = f", layer.to(torch.{wanted}) or {name}.to(torch.{dtype})"
        raise TensorError(
            f"{self.label}: {item.name} is {dtype}, expected {expected}; pass "
            f"{item.name}.to(torch.{wanted}){other}"
        )

    def _refuse_device(self, item: Argument, tensor: Tensor, first: Tensor) -> NoReturn:
        if tensor.layout != torch.strided:
            raise TensorError(
                f"{self.label}: {item.name} has the layout {tensor.layout}, expected a dense one; "
                f"pass {item.name}.to_dense()"
            )
        raise TensorError(
            f"{self.label}: {item.name} is on {tensor.device}, but {self.theta[0].name} is on "
            f"{first.device}; pass {item.name}.to({str(first.device)!r})"
        )

    def check_products(self, products: str, first: Tensor) -> None:
        """Look at whether operands of a type can be rounded. Raises TensorError."""
        if products == BF16 and first.dtype == torch.float64:
            raise TensorError(
                f"{self.label}: products is 'bf16' and the tensors are float64, expected "
                f"float32 tensors; pass those, or leave products out"
            )

    def check_lengths(self, lengths: Tensor, steps: int) -> None:
        """Look at the numbers in lengths. Raises TensorError, which is a ValueError, too."""
        if lengths.numel() and (int(lengths.min()) < 0 or int(lengths.max()) > steps):
            row = int(((lengths < 0) | (lengths > steps)).int().argmax())
            raise TensorError(
                f"{self.label}: lengths[{row}] is {int(lengths[row])}, expected 0 to T = {steps}; "
                f"shorten it or pass longer tensors"
            )

    def check_steps(
        self,
        sizes: dict[str, int],
        first: Tensor,
        lengths: Tensor | None,
        mask: Tensor | None,
        reset: Tensor | None,
    ) -> None:
        """Look at what says which steps are valid: lengths (B) int64, mask and reset (T, B) bool.

        ``first`` is the first tensor of theta, on whose device they must be.
        """
        steps, rows = sizes["T"], sizes["B"]
        if lengths is not None:
            self._check_table("lengths", lengths, torch.int64, "B", (rows,))
            self._check_place("lengths", lengths, first)
        for name, flags in (("mask", mask), ("reset", reset)):
            if flags is not None:
                self._check_table(name, flags, torch.bool, "T, B", (steps, rows))
                self._check_place(name, flags, first)

    def _check_place(self, name: str, tensor: Tensor, first: Tensor) -> None:
        if tensor.device != first.device:
            raise TensorError(
                f"{self.label}: {name} is on {tensor.device}, but {self.theta[0].name} is on "
                f"{first.device}; pass {name}.to({str(first.device)!r})"
            )

    def _check_table(
        self, name: str, table: Tensor, dtype: torch.dtype, axes: str, shape: tuple[int, ...]
    ) -> None:
        if not isinstance(table, Tensor):
            raise KindError(
                f"{self.label}: {name} is a {type(table).__name__}, expected a torch.Tensor "
                f"({axes}); pass torch.as_tensor({name})"
            )
        if table.dtype == dtype and tuple(table.shape) == shape:
            return
        kind = element_name(dtype)
        raise TensorError(
            f"{self.label}: {name} has shape {tuple(table.shape)} and dtype "
            f"{str(table.dtype).removeprefix('torch.')}, expected ({axes}) = {shape} of {kind}; "
            f"pass {name}.to(torch.{kind}) in that shape"
        )


def has_dense_units(tensor: Tensor) -> bool:
    """Whether the units of a tensor (T, B, ...) lie side by side, whatever lies between rows."""
    dense = 1
    for length, stride in zip(
        reversed(tensor.shape[2:]), reversed(tensor.stride()[2:]), strict=True
    ):
        if length > 1 and stride != dense:
            return False
        dense *= length
    return True
