"""The options over time of a call on a device: taken out of its arguments, and checked.

Input: the arguments of a call. Output: ``DeviceOptions``, or an ArgumentError that names the
option. Contents of arrays on a device are not looked at: that would wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.outputs import Outputs
from cellgen.runtime.call.settings import checked_options
from cellgen.runtime.call.views import ArrayView
from cellgen.runtime.directions import AUTO, HALF
from cellgen.runtime.options import (
    BY_ROW,
    NONE,
    OF_OPTIONS,
    TABLE,
    Option,
    Options,
)

TIERS = {
    AUTO: 0,
    "steps": 1,
    "whole": 2,
    "fragments": 3,
    "device": 4,
    "cluster": 5,
    "together": 6,
    HALF: 262,
}
PERSISTENT = "CELLGEN_PERSISTENT"
"""Set to 0, ``auto`` takes no kernels whose blocks stay on a device; else it means ``together``."""
TABLES = {o.name: o for o in OF_OPTIONS if o.kind == BY_ROW and o.on_device}
"""Options over time that are arrays."""


@dataclass(frozen=True)
class DeviceOptions:
    """Options over time of one call; those that are arrays are ``tables``, by name.

    ``chosen`` is how its kernels run, ``stated`` what the call said.
    """

    tables: Mapping[str, object]
    chosen: Options = NONE
    stated: Options = NONE


def take_options(
    label: str,
    function: Function,
    outputs: Outputs,
    arguments: dict[str, object],
    tier: str,
    *,
    save: bool,
) -> DeviceOptions:
    """Take the options over time out of the arguments. Raises ArgumentError."""
    if not function.team or _NAMES.isdisjoint(arguments):
        return USUAL
    mine = [o for o in OF_OPTIONS if o.on_device and function.name in o.functions]
    chosen: dict[str, Any] = {o.name: arguments.pop(o.name, o.default) for o in mine}
    tables = {n: table for n in TABLES if (table := chosen.pop(n, None)) is not None}
    options = stated = checked_options(label, chosen)
    outputs.refuse_both(stated)
    if save:
        options = outputs.when_saving(stated)
    if tables and tier in ("whole", "fragments"):
        raise ArgumentError(
            f"{label}: tier is {tier!r}, and all steps run in one launch only where every step "
            f"is valid; leave out lengths, mask and reset, or use tier='steps'"
        )
    _refuse_others(label, arguments)
    return DeviceOptions(tables, options, stated)


USUAL = DeviceOptions({})
"""Those of a call that states none."""
_NAMES = frozenset(option.name for option in TABLE)


def meant_tier(tier: str) -> str:
    """The tier that is meant by the one of a call."""
    is_open = isinstance(tier, str) and tier == AUTO
    return "together" if is_open and os.environ.get(PERSISTENT) != "0" else tier


def tier_of_run(tier: str) -> str:
    """The tier that is meant where a process chose it and no call."""
    if os.environ.get(PERSISTENT) == "0":
        return AUTO
    return "together" if tier == AUTO else tier


def _refuse_others(label: str, arguments: dict[str, object]) -> None:
    """Take options of the C kernels out of the arguments; only what asks for nothing passes."""
    for option in TABLE:
        name = option.name
        is_own = option.on_device or name in ("save", "saved")
        value = None if is_own else arguments.pop(name, None)
        if value is not None and value is not False and not _is_default(option, value):
            raise ArgumentError(
                f"{label}: {name} is an option of the C kernels that CUDA kernels do not have yet; "
                f"leave it out, or use the C kernel: cellgen.load(...)"
            )


def _is_default(option: Option, value: object) -> bool:
    """Whether a number or word is what the option is where nothing is said."""
    return isinstance(value, int | str) and value == option.default


def check_tables(
    label: str,
    tables: Mapping[str, ArrayView],
    dims: Mapping[str, int],
    device: int,
    *,
    batch_first: bool,
) -> None:
    """Check the arrays that say which steps are valid, time-major. Raises ArgumentError."""
    for name, view in tables.items():
        axes, dtypes = TABLES[name].axes, TABLES[name].dtypes
        shape = tuple(dims[axis] for axis in axes)
        if view.dtype not in dtypes or view.shape != shape:
            order = slice(None, None, -1 if batch_first else 1)
            seen = view.shape[order] if len(view.shape) == 2 else view.shape
            raise ArgumentError(
                f"{label}: {name} is {view.dtype} of shape {seen}, expected {dtypes[0]} of shape "
                f"({', '.join(axes[order])}) = {shape[order]}"
            )
        is_apart = len(axes) == 1 and not view.contiguous
        if view.device != device or is_apart:
            raise ArgumentError(
                f"{label}: {name} is on device {view.device}"
                f"{' and not contiguous' if is_apart else ''}, expected "
                f"{'a contiguous' if is_apart else 'an'} array on device {device}, where the other "
                f"arrays are"
            )
