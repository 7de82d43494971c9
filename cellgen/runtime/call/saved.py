"""What a forward pass keeps for its backward pass: arrays that know how they were made.

Input: the arrays and options of a run with ``save=True``. Output: ``Saved``, a named tuple with the
``ForwardRun`` that made it. A backward pass is given options as that run had them, or none at all:
then they are that run's. Not known: whether other arrays (inputs, weights, outputs) are that run's;
their shapes are compared, their contents are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.options import NONE, OF_OPTIONS, ROWS, TABLES, Options, with_tables
from cellgen.runtime.results import Array, Results, tuple_class

Same: TypeAlias = Callable[[str, object, object], bool]
"""Whether an option that is an array, by name, is as the run had it."""


OF_RUN = tuple(option.name for option in OF_OPTIONS if option.of_run)
"""What a run says of its steps and of how its arrays over time lie."""


def stated_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a call itself says of that, of its options by name."""
    return {name: options[name] for name in OF_RUN if options.get(name) is not None}


KEPT_NAME = "saved"
"""The keyword by which C is given checkpoints, behind their steps and two numbers of their run."""


class ForwardRun(NamedTuple):
    """How a forward pass ran: cell and digest of its sources, dimensions, scalars, options.

    Of these ``lengths`` (B), ``mask`` and ``reset`` (T, B) are copies, or None where all steps were
    valid; those of a bound call are the arrays that it reads. With a ``checkpoint``, what it saved
    are the states before every so many-th step, from which the steps are computed once more, with
    denormal numbers as zeros where ``flush_denormals`` says so.
    """

    cell: str
    digest: str
    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    scalars: tuple[tuple[str, float], ...] = ()
    options: Options = NONE

    @property
    def checkpoint(self) -> int:
        """Steps from one checkpoint to the next; 0: every step saved."""
        return self.options.checkpoint

    def of_tables(self, lengths: object, mask: object, reset: object) -> ForwardRun:
        """The same run of steps by other tables, copies."""
        options = with_tables(self.options, lengths, mask, reset)
        return tuple.__new__(ForwardRun, (*self[:-1], options))


class Saved(Results):
    """What ``sequence_forward(..., save=True)`` keeps, a named tuple; ``run`` tells of which run.

    Its fields are what every step saves, (T, B, ...), by the names of the equations; of a run with
    ``run.checkpoint`` = k steps they are what the steps k, 2 k, ... start from, ((T - 1) // k, B,
    ...): states, ``h_prev``, and where steps may be left out, outputs that are none as the step
    before showed them.
    It cannot be changed. A copy with other arrays (``_replace``) belongs to no run. Of a run with
    ``every``, ``_whole`` holds its outputs of all steps by name.
    """

    run: ForwardRun | None = None
    _whole: Mapping[str, Array] = MappingProxyType({})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"saved cannot be changed: {name}")

    def __reduce__(self) -> tuple[object, ...]:
        return make_saved, (self._fields, tuple(self), self.run, dict(self._whole))


def make_saved(
    fields: tuple[str, ...],
    arrays: tuple[Array, ...],
    run: ForwardRun | None,
    whole: Mapping[str, Array] | None = None,
) -> Saved:
    """Put what a run keeps together with how it ran; ``whole``: its outputs, if it showed some."""
    saved: Saved = tuple.__new__(tuple_class("saved", fields, Saved), arrays)
    object.__setattr__(saved, "run", run)
    if whole:
        object.__setattr__(saved, "_whole", whole)
    return saved


def kept_arrays(saved: object) -> dict[str, object]:
    """The arrays of what is passed as ``saved``, by what messages call them."""
    named: Any = saved._asdict() if isinstance(saved, Saved) else saved
    return {f"saved {n}": a for n, a in named.items()} if isinstance(named, Mapping) else {}


def read_saved(
    label: str, names: tuple[str, ...], saved: object, cell: str, digest: str
) -> tuple[dict[str, Array], ForwardRun | None]:
    """Name what was kept, and tell by which run; None for arrays by name, which no run vouches for.

    ``cell`` and ``digest`` are the kernel's. Raises ArgumentError for anything else, and for what
    another cell kept.
    """
    expected = (
        f"what sequence_forward(..., save=True).saved holds ({', '.join(names) or 'nothing'})"
    )
    if isinstance(saved, Saved) and saved.run is not None:
        run = saved.run
        if run.digest != digest:
            kind = "another version of" if run.cell == cell else "the cell"
            raise ArgumentError(
                f"{label}: saved is of {kind} {run.cell}, expected {expected} of this cell; run "
                f"this kernel's sequence_forward with save=True"
            )
        return ({} if run.checkpoint else dict(zip(names, saved, strict=True))), run
    kind = type(saved).__name__
    if isinstance(saved, Saved):
        kind = "a copy with other arrays"
    elif isinstance(saved, Mapping):
        arrays = accept.names(label, "saved", saved, "arrays")
        if sorted(arrays) == sorted(names):
            return {name: cast(Array, arrays[name]) for name in names}, None
        kind += f" of {', '.join(arrays) or 'nothing'}"
    raise ArgumentError(
        f"{label}: saved is {kind}, expected {expected}; pass that, or a dict of arrays by these "
        f"names, for which options must be given again"
    )


def steps_of(
    label: str, run: ForwardRun, stated: Mapping[str, Any], same: Same
) -> dict[str, object]:
    """Return what a run says of its steps, which a call may repeat but not contradict.

    ``batch_first`` and ``every`` are the call's own where stated: saved arrays do not depend on
    them. Flags are those that the call states, or the run's, (T, B) or batch-first (B, T) as the
    call is.

    Raises ArgumentError.
    """
    for name, value in stated.items():
        own = getattr(run.options, name)
        if ROWS[name].of_call:
            continue
        if name in TABLES:
            agrees = own is not None and same(name, value, own)
        elif name == "zero_output_for_mask" and run.options.mask is None:
            continue
        else:  # what is no switch is refused where all options are
            agrees = not isinstance(value, bool | np.bool_) or bool(value) is own
        if not agrees:
            raise _contradiction(label, name, value, own)
    steps = {name: stated.get(name, getattr(run.options, name)) for name in OF_RUN}
    for name in ("mask", "reset"):
        steps[name] = _flags_of(stated.get(name), getattr(run.options, name), steps["batch_first"])
    return steps


def _flags_of(flags: object, own: object, batch_first: object) -> object:
    if flags is not None or not isinstance(own, np.ndarray) or not is_on(batch_first):
        return own if flags is None else flags
    return own.swapaxes(0, 1)


def is_on(value: object) -> bool:
    """Whether an option is True; what is no switch is not."""
    return isinstance(value, bool | np.bool_) and bool(value)


def _contradiction(label: str, name: str, value: object, own: object) -> ArgumentError:
    if name in TABLES:
        contents = f"{name} is given" if own is None else f"{name} has other contents"
        had = "had none" if own is None else "had its own"
        expected = f"but the run that saved {had}"
    else:
        contents, expected = f"{name} is {value!r}", f"but the run that saved had {own!r}"
    return ArgumentError(
        f"{label}: {contents}, {expected}; leave {name} out, or run sequence_forward with it too"
    )


def same_number(one: float, other: float) -> bool:
    """Whether two numbers are equal, or both are none."""
    return one == other or (math.isnan(one) and math.isnan(other))
