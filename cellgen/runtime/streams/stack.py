"""What ``Layers`` have of streams."""

from __future__ import annotations

from collections.abc import Iterable

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.stacked_inputs import Nested
from cellgen.runtime.streams.make import stack_of
from cellgen.runtime.streams.rows import Id
from cellgen.runtime.streams.stream import Stream


class StreamedStack:
    """Layers of one cell that can go on step by step."""

    kernel: Kernel
    weights: Nested
    _input: Argument
    _output: Argument

    def stream(
        self,
        rows: int | Iterable[Id] = 1,
        *,
        room: int | None = None,
        block: int = 1,
        products: str | None = None,
        **sizes: int,
    ) -> Stream:
        """Return a session of all layers that goes on step by step; see ``Kernel.stream``.

        Other inputs than x, in a dict with it, are read by every layer. Raises ArgumentError: two
        directions, of which the second one begins at the end; as ``Kernel.stream``.
        """
        label = f"Layers({self.kernel.name}).stream"
        if any(len(layer) > 1 for layer in self.weights):
            raise ArgumentError(
                f"{label}: layers have two directions, expected one: the reverse one begins at the "
                f"last step, which a stream does not have; stream layers of one direction"
            )
        return stack_of(
            label,
            self.kernel,
            [layer[0] for layer in self.weights],
            rows,
            room,
            block,
            names=(self._input.name, self._output.name),
            products=products,
            sizes=sizes,
        )
