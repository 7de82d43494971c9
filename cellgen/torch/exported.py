"""A cell over time in operators that ``torch.onnx.export`` translates: a scan of one step.

Input: the tensors of a call of ``CellFunction``. Output: outputs over time and final states, of
``scan``, torch's operator of a function over steps, which becomes a ``Scan`` of ONNX; its step is
the cell's equations in tensors. Steps beyond a row's length keep its states and give zeros.
Not supported: masks, resets, and options that say what is shown and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from cellgen.language.cell import Cell, definition_of
from cellgen.program.derive import forward
from cellgen.program.identity import once_for_each
from cellgen.torch.calls import Tables
from cellgen.torch.chunks.spelled import Spelled, spelled
from cellgen.torch.errors import KindError
from cellgen.torch.layout import Layout
from cellgen.torch.registry import Known


@dataclass(frozen=True)
class ScannedStep:
    """One step of a cell as a function of tensors, and the names of what it takes and gives."""

    step: Spelled
    following: Mapping[str, str]
    """The state after a step by the name of that before it."""
    over_time: tuple[str, ...]

    def run(
        self, layout: Layout, tensors: Mapping[str, Tensor], lengths: Tensor | None, reverse: bool
    ) -> list[Tensor]:
        """Outputs over time (T, B, ...), then final states (B, ...), in the layout's order.

        ``tensors`` are those of the declaration by name, run-time scalars too.
        """
        sizes = layout.sizes([tensors[item.name] for item in layout.theta])
        steps = sizes.pop("T")
        inputs = [item.name for item in layout.theta if item.over_time]
        others = {n: t for n, t in tensors.items() if n not in inputs and n not in self.following}
        sequences = [tensors[name] for name in inputs]
        if lengths is not None:
            every = torch.arange(steps, device=lengths.device)
            sequences.append(every.unsqueeze(1) < lengths)

        def one(
            states: Sequence[Tensor], arrays: Sequence[Tensor]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            before = dict(zip(self.following, states, strict=True))
            now = dict(zip(inputs, arrays, strict=False))
            own = {**sizes, "B": arrays[0].shape[0]}
            results = self.step({**others, **before, **now}, own, False)
            after = {name: results[new] for name, new in self.following.items()}
            outputs = [results[name] for name in self.over_time]
            if lengths is not None:
                after = {n: _where(arrays[-1], new, before[n]) for n, new in after.items()}
                outputs = [_where(arrays[-1], value, torch.zeros_like(value)) for value in outputs]
            return tuple(map(_own, after.values())), tuple(map(_own, outputs))

        first = tuple(_own(tensors[name]) for name in self.following)
        last, outputs = scan(one, first, tuple(sequences), reverse=reverse)
        finals = dict(zip(self.following, last, strict=True))
        by_name = dict(zip(self.over_time, outputs, strict=True))
        return [finals[o.of] if o.of else by_name[o.name] for o in layout.outputs]


def run_exported(
    known: Known,
    theta: Sequence[Tensor],
    scalars: Sequence[float],
    tables: Tables,
    others: Mapping[str, object],
    flags: tuple[bool, bool],
) -> list[Tensor]:
    """The outputs of a call, in the layout's order, while ``torch.onnx.export`` traces it.

    ``others`` are options that change them and have no translation, ``flags`` reverse and
    batch_first. Raises KindError where one of those is given, or by the exporter that has no scans.
    """
    layout, (lengths, mask, reset), (reverse, batch_first) = known.layout, tables, flags
    if torch.jit.is_tracing():
        raise KindError(
            f"{layout.label}: torch.onnx.export with dynamo=False has no translation of a cell "
            f"over time; pass dynamo=True, or write the cell by cellgen.onnx.export"
        )
    untold = {"mask": mask, "reset": reset, **others}
    for name, value in untold.items():
        if value is not None and value is not False:
            raise KindError(
                f"{layout.label}: torch.onnx.export has no translation of {name}, expected "
                f"lengths, reverse and batch_first alone; leave {name} out"
            )
    named = {item.name: t.detach() for item, t in zip(layout.theta, theta, strict=True)}
    for item, number in zip(layout.scalars, scalars, strict=True):
        named[item.name] = theta[0].new_full((), number)
    outputs = scanned(known.cell).run(layout, named, lengths, reverse)
    timed = [item.over_time and batch_first for item in layout.outputs]
    return [o.transpose(0, 1) if t else o for o, t in zip(outputs, timed, strict=True)]


@once_for_each
def scanned(cell: type[Cell]) -> ScannedStep:
    """The step of a cell as torch's operators, made once."""
    definition = definition_of(cell)
    following = {state: definition.next_state(state) for state in definition.states}
    wanted = tuple(dict.fromkeys((*definition.outputs, *following.values())))
    return ScannedStep(
        spelled(forward(definition.with_outputs(wanted))),
        {str(state): str(new) for state, new in following.items()},
        tuple(map(str, definition.outputs)),
    )


def _where(valid: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(valid.reshape(-1, *[1] * (new.dim() - 1)), new, old)


def _own(value: Tensor) -> Tensor:
    """A copy: what a step takes and gives is memory of its own."""
    return value.clone(memory_format=torch.contiguous_format)
