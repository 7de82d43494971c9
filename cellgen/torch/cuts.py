"""Cut the launches of kernels over rows and units: units of a program, segments, loads ahead.

Input: a launch of a plan, sizes of a call, a configuration of the plan. Output: ``Cut``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

IN_REGISTERS, WITH_FORMED = 128, 192
"""Registers of a lane that may hold the steps of a segment as they were loaded, and with what is
formed of them without states, of the 255 that there are. Kernels above that spill up to a KiB, and
take an assembler some ten seconds (lab note 19)."""
LEAST_STEPS = 64
"""Steps of a segment at least."""
FLAT_ROWS = 32
"""Rows that one program of pointwise work goes through."""
ON_THE_WAY = 64
"""Numbers that a lane has on the way to it: registers, beside those that it computes in."""
FEW_SEGMENTS = 3
"""Segments of a run that is configured as a call that has several."""
WARP, UNITS = 32, 4
"""Lanes, and units of a lane by which segments are counted."""


@dataclass(frozen=True)
class Cut:
    """How a launch is cut: all steps, those of a program, programs, units of each, steps ahead.

    ``once``: each segment is read once, all its steps ahead.
    """

    steps: int
    length: int
    grid: tuple[int, int, int]
    lanes: int
    ahead: int
    warps: int
    once: bool = False


def cut(
    launch: Mapping[str, Any],
    sizes: Mapping[str, int],
    call: Mapping[str, int],
    settings: Mapping[str, int],
    gaps: bool,
    segments: int = 0,
    ahead: int = 0,
) -> Cut:
    """Cut a launch by a configuration.

    ``call`` are the sizes by which it is chosen, where these are not the run's; ``segments`` and
    ``ahead`` are what a caller wants in place of what follows, 0 for nothing.
    """
    of = call or sizes
    lanes, warps = lanes_of(size_of(launch["units"], of), settings["units"], settings["warps"])
    programs = -(-size_of(launch["units"], sizes) // lanes)
    steps, rows, many = sizes["T"], sizes["B"], 1
    if settings["once"] and launch["once"]:
        length = settings["once"]
        return Cut(steps, length, (programs, rows, -(-steps // length)), lanes, length, warps, True)
    if launch["is_flat"]:
        steps, rows = steps * rows, 1
        many = -(-steps // FLAT_ROWS)
    elif launch["whole"]:
        least = segments or segments_of(launch, of, settings["programs"])
        many = min(least, steps if segments or not call else FEW_SEGMENTS)
    length = -(-steps // max(1, many))
    grid = (programs, rows, -(-steps // length))
    streams = launch["streams"] + gaps
    steps_ahead = ahead or ahead_of(streams, lanes // (WARP * warps), settings["ahead"])
    return Cut(steps, length, grid, lanes, steps_ahead, warps)


def lanes_of(units: int, of_lane: int, warps: int) -> tuple[int, int]:
    """Units of a program and its warps: powers of two, no more of either than there are units for.

    >>> lanes_of(1024, 4, 1), lanes_of(100, 4, 1), lanes_of(100, 1, 4), lanes_of(8, 4, 4)
    ((128, 1), (64, 1), (64, 2), (32, 1))
    """
    most = max(WARP, 1 << (units.bit_length() - 1))
    warps = min(warps, most // WARP)
    return min(WARP * warps * of_lane, most), warps


def segments_of(launch: Mapping[str, Any], call: Mapping[str, int], programs: int) -> int:
    """Segments that fill a device, both passes of a scan alike, whatever units a program has."""
    units = size_of(launch["units"], call)
    whole = -(-units // lanes_of(units, UNITS, 1)[0]) * call["B"]
    return max(1, min(programs // whole, call["T"] // LEAST_STEPS))


def ahead_of(streams: int, units: int, most: int) -> int:
    """Steps that are loaded ahead: a power of two, as many as registers of a lane hold.

    >>> ahead_of(2, 4, 16), ahead_of(4, 4, 16), ahead_of(2, 1, 16), ahead_of(40, 4, 16)
    (8, 4, 16, 1)
    """
    most = min(most, ON_THE_WAY // (max(1, streams) * max(1, units)))
    return 1 << max(0, most.bit_length() - 1)


def configurations(plan: Mapping[str, Any]) -> Iterator[Mapping[str, int]]:
    """Every configuration of kernels over rows and units, the first one first."""
    rows = plan["rows"]
    for many in rows["programs"]:
        yield from ({**one, "programs": many, "once": 0} for one in rows["blocks"])
    yield from ({**one, "programs": 0, "once": one["ahead"]} for one in rows["once"])


def may_be_read_once(launch: Mapping[str, Any], settings: Mapping[str, int], width: int) -> bool:
    """Whether the steps of a segment fit the registers of a program, of numbers of some bytes.

    >>> launch = {"once": "rows_1_once", "streams": 4, "once_formed": 1}
    >>> [may_be_read_once(launch, {"units": 2, "ahead": 16}, width) for width in (2, 4)]
    [True, True]
    >>> [may_be_read_once(launch, {"units": 2, "ahead": 32}, width) for width in (2, 4)]
    [True, False]
    >>> may_be_read_once({**launch, "once_formed": 5}, {"units": 2, "ahead": 16}, 2)
    False
    """
    units, steps = settings["units"], settings["ahead"]
    loaded = max(1, launch["streams"]) * steps * -(-units * width // 4)
    formed = launch["once_formed"] * steps * -(-units * max(width, 4) // 4)
    return bool(launch["once"]) and loaded <= IN_REGISTERS and loaded + formed <= WITH_FORMED


def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """A length, by sizes of dimensions.

    >>> size_of("2*H + I", {"H": 3, "I": 4})
    10
    """
    total = 0
    for term in text.replace("(", "").replace(")", "").split("+"):
        product = 1
        for factor in term.split("*"):
            name = factor.strip()
            product *= int(name) if name.isdigit() else sizes[name]
        total += product
    return total
