"""Plan the launches of a memory's kernels: buffers, parameters, passes, configurations.

Input: ``MemoryText``. Output: parts of a ``LayerPlan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from cellgen.targets.triton.memory_text import Held, MemoryText
from cellgen.targets.triton.plan import (
    MARKS,
    STEP_BEFORE,
    BufferPlan,
    BufferRole,
    Configuration,
    Count,
    KernelLaunch,
    Shape,
)

LONGEST = 64
"""Steps of the longest chunks."""
NUMBERS, KEYS, VALUES = ("T", "B", "N"), ("T", "B", "N", "K"), ("T", "B", "N", "V")
CHUNKS, VALUE_BLOCKS, KEY_BLOCKS = ("T", "BT"), ("V", "BV"), ("K", "BK")
SIZES = ("T", "B", "N")
TABLES = {table: Held(table, table.replace(".", "_")) for table in (MARKS, STEP_BEFORE)}
"""Of a call: kernels call them as no value is called."""


@dataclass(frozen=True)
class Launches:
    """The passes of a memory, and the parameters of its kernels as text."""

    parameters: Mapping[str, str]
    forward: tuple[KernelLaunch, ...]
    few_rows: tuple[KernelLaunch, ...]
    training: tuple[KernelLaunch, ...]
    backward: tuple[KernelLaunch, ...]


# --- buffers -------------------------------------------------------------------------------------


def buffers_of(m: MemoryText) -> dict[str, BufferPlan]:
    """Every buffer, by name."""
    return {**_streams(m), **_states(m), **_reads(m), **_inner(m)}


def _streams(m: MemoryText) -> dict[str, BufferPlan]:
    shapes: dict[Held, tuple[Shape, str]] = {}
    if m.log_decay:
        shapes[m.log_decay] = (KEYS if m.by_key else NUMBERS, "float32")
    shapes |= dict.fromkeys(m.every_key, (KEYS, "streams"))
    for u in m.updates:
        if u.value:
            shapes[u.value] = (VALUES, "streams")
        if u.scale:
            shapes[u.scale] = (NUMBERS, "float32")
        shapes |= {coefficient: (NUMBERS, "float32") for _, coefficient in u.erased}
    if m.column:
        shapes[m.column.value] = (NUMBERS, "float32")
    buffers = {n.buffer: BufferPlan(BufferRole.STREAM, *s, n.buffer) for n, s in shapes.items()}
    for stream, (shape, dtype) in shapes.items():
        name, blocks = stream.buffer, _blocks_of_shares(m, stream)
        whole = shape if blocks is None else (blocks, *shape)
        buffers[stream.gradient.buffer] = BufferPlan(
            BufferRole.GRADIENT, whole, dtype, name, shares=blocks is not None
        )
    return buffers


def _blocks_of_shares(m: MemoryText, stream: Held) -> Count | None:
    """What counts the shares that a stream's gradient comes in."""
    if stream in {u.scale for u in m.updates}:
        return VALUE_BLOCKS
    is_coefficient = any(stream == c for u in m.updates for _, c in u.erased)
    return KEY_BLOCKS if is_coefficient or (m.by_head and stream == m.log_decay) else None


def _states(m: MemoryText) -> dict[str, BufferPlan]:
    whole: Shape = ("B", "N", "K", "V") if m.keys_first else ("B", "N", "V", "K")
    pairs = [(m.first, m.name, m.last, whole)]
    if m.column:
        pairs.append((m.column.first, m.column.name, m.column.last, ("B", "N", "K")))
    buffers = {}
    for first, following, last, shape in pairs:
        state = first.buffer.removesuffix(".first")
        for held, of, role in (
            (first, state, BufferRole.FIRST),
            (last, following.buffer, BufferRole.LAST),
            (first.gradient, state, BufferRole.GRADIENT),
            (last.gradient, following.buffer, BufferRole.UPSTREAM_LAST),
        ):
            buffers[held.buffer] = BufferPlan(role, shape, "float32", of)
    return buffers


def _reads(m: MemoryText) -> dict[str, BufferPlan]:
    """What is read; where there is a column, in float32 as that of the column.

    It is divided by that, and where keys are nearly equal what reaches the query by both all but
    cancels.
    """
    reads: dict[Held, tuple[Shape, str]] = {
        q.read: (VALUES, "float32" if m.column else "streams") for q in m.readouts
    }
    if m.column:
        reads[m.column.read] = (NUMBERS, "float32")
    buffers = {}
    for read, (shape, dtype) in reads.items():
        for held, role in ((read, BufferRole.READ), (read.gradient, BufferRole.UPSTREAM)):
            buffers[held.buffer] = BufferPlan(role, shape, dtype, read.buffer)
    return buffers


def _inner(m: MemoryText) -> dict[str, BufferPlan]:
    """States where chunks start, what erased reads are made of, marks."""
    starts: list[tuple[Held, Shape, str]] = [(m.states, ("B", "N", "K", "V"), "streams")]
    if m.column:
        starts.append((m.column.states, ("B", "N", "K"), "float32"))
    buffers = {}
    for states, shape, dtype in starts:
        saved = BufferPlan(BufferRole.SAVED, (CHUNKS, *shape), dtype)
        buffers[states.buffer] = saved
        buffers[states.gradient.buffer] = replace(saved, role=BufferRole.SCRATCH)
    scratch = BufferPlan(BufferRole.SCRATCH, VALUES, "streams")
    for u in m.erasing:
        buffers |= dict.fromkeys((u.added.buffer, u.added.gradient.buffer), scratch)
        buffers |= dict.fromkeys((u.held.buffer, u.left.buffer), replace(scratch, shape=KEYS))
    for seen in _seen(m):
        buffers[seen.buffer] = replace(scratch, shape=(*NUMBERS, "BT"))
    if m.is_marked:
        buffers[MARKS] = BufferPlan(BufferRole.MARKS, ("B", "N"), "int32")
    buffers[STEP_BEFORE] = BufferPlan(BufferRole.BEFORE, ("T", "B"), "int32")
    return buffers


# --- parameters ----------------------------------------------------------------------------------


def _inputs(m: MemoryText) -> list[Held]:
    """Keys and decays."""
    return [*m.update_keys, *_decays_and_gaps(m)]


def _decays_and_gaps(m: MemoryText) -> list[Held]:
    decays = [m.log_decay] if m.log_decay else []
    return [*decays, *(TABLES[t] for t in TABLES if m.is_marked or t != MARKS)]


def _coefficients(m: MemoryText) -> list[Held]:
    return [coefficient for u in m.updates for _, coefficient in u.erased]


def _given_values(m: MemoryText, erased: bool = False) -> list[Held]:
    """Values and their scales, of updates that erase too or not."""
    updates = [u for u in m.updates if erased or not u.erased]
    return [name for u in updates for name in (u.value, u.scale) if name]


def _seen(m: MemoryText) -> list[Held]:
    return [seen for _, _, seen in m.seen]


def _left(m: MemoryText) -> list[Held]:
    return [u.left for u in m.erasing]


def _queries(m: MemoryText) -> list[Held]:
    return [readout.query for readout in m.readouts]


def _prepare(m: MemoryText) -> list[Held]:
    erased = [*m.erasers, *_coefficients(m), *_given_values(m, erased=True)]
    formed = [name for u in m.erasing for name in (u.added, u.held)]
    return [*_queries(m), *_inputs(m), *erased, *formed, *_seen(m), *_left(m), m.states]


def _scan(m: MemoryText) -> list[Held]:
    added = [name for u in m.erasing for name in (u.added, u.held)]
    reads = [readout.read for readout in m.readouts]
    names = [*_queries(m), *_inputs(m), *_given_values(m), *added, *reads]
    names += [m.first, m.last, m.states]
    if m.column:
        of = m.column
        names += [of.value, of.read, of.first, of.last, of.states]
    return names


def _outputs(m: MemoryText) -> list[Held]:
    added, reads = [u.added for u in m.erasing], [readout.read for readout in m.readouts]
    names = [*_queries(m), *_inputs(m), *_given_values(m), *added, *reads, m.states]
    return names + ([m.column.value, m.column.read, m.column.states] if m.column else [])


def _back(m: MemoryText) -> list[Held]:
    names = [*m.read_back, *_decays_and_gaps(m)]
    names += [*_coefficients(m), *_seen(m), *_left(m)]
    for u in m.updates:
        if u.value and u.scale:
            names += [u.value, u.scale, u.scale.gradient]
        if u.value:
            names.append(u.value.gradient)
        if u.erased:
            names.append(u.added.gradient)
    names += [readout.read.gradient for readout in m.readouts]
    names += [name.gradient for name in (m.first, m.last, m.states)]
    if m.column:
        of, back = m.column, (m.column.first, m.column.last, m.column.states)
        names += [of.value, *(name.gradient for name in (of.value, of.read, *back))]
    return names


def _gradients(m: MemoryText) -> list[Held]:
    names = [*m.every_key, *_coefficients(m), *_given_values(m)]
    names += _decays_and_gaps(m)
    names += [name for u in m.erasing for name in (u.added, u.added.gradient)]
    names += [readout.read.gradient for readout in m.readouts]
    names += [m.states, m.states.gradient]
    if m.column:
        of = m.column
        names += [of.value, of.read.gradient, of.states, of.states.gradient]
    results = [*m.every_key, *_coefficients(m), *([m.log_decay] if m.log_decay else [])]
    return names + [name.gradient for name in results]


KERNELS = {
    "prepare": (_prepare, ("KNOWN",), (CHUNKS,), ("BT", "BV")),
    "scan": (_scan, ("READS", "SAVES"), (VALUE_BLOCKS,), ("BT", "BV")),
    "outputs": (_outputs, (), (VALUE_BLOCKS, CHUNKS), ("BT", "BV")),
    "back": (_back, (), (VALUE_BLOCKS,), ("BT", "BV")),
    "gradients": (_gradients, (), (KEY_BLOCKS, CHUNKS), ("BT", "BK", "BV")),
}
"""Of each kernel its buffers, flags, the grid beside rows and heads, and blocks that are chosen."""


# --- passes --------------------------------------------------------------------------------------


def launches_of(m: MemoryText) -> Launches:
    """Plan the passes of a memory."""
    planned = partial(_pass, m)
    ahead = [("prepare", {"KNOWN": False})] if m.erasers else []
    again = [("prepare", {"KNOWN": True})] if m.erasers else []
    scan = "scan"
    return Launches(
        {name: _parameters(m, name) for name in KERNELS if name != "prepare" or m.erasers},
        planned([*ahead, (scan, {"READS": True, "SAVES": False})]),
        planned([*ahead, (scan, {"READS": False, "SAVES": True}), ("outputs", {})]),
        planned([*ahead, (scan, {"READS": True, "SAVES": True})]),
        planned([*again, ("back", {}), ("gradients", {})]),
    )


def _parameters(m: MemoryText, kernel: str) -> str:
    names, flags, _, _ = KERNELS[kernel]
    constants = ["K", "V", "BT", "BK", "BV", *flags, "GAPS", "RESETS", *_exactness(m), "PRECISION"]
    parts = [f"{one}_p" for one in dict.fromkeys(names(m))]
    parts += [*SIZES, *(f"{name}: tl.constexpr" for name in constants)]
    lines = [""]
    for part in parts:
        fits = len(lines[-1]) + len(part) < 93
        lines[-1:] = [f"{lines[-1]} {part},".lstrip()] if fits else [lines[-1], f"{part},"]
    return "\n".join(lines)


def _exactness(m: MemoryText) -> tuple[str, ...]:
    return ("EXACT",) if m.by_key else ()


def _pass(m: MemoryText, kernels: list[tuple[str, dict[str, bool]]]) -> tuple[KernelLaunch, ...]:
    exact = (False, True) if m.is_marked else (False,)
    return tuple(_launch(m, name, flags, e) for name, flags in kernels for e in exact)


def _launch(m: MemoryText, kernel: str, flags: Mapping[str, bool], is_exact: bool) -> KernelLaunch:
    names, _, grid, blocks = KERNELS[kernel]
    constants: dict[str, Count | bool] = {"K": "K", "V": "V"}
    if "BK" not in blocks:
        constants["BK"] = ("K",)
    constants |= {**flags, **{name: name for name in ("GAPS", "RESETS", "PRECISION")}}
    constants |= dict.fromkeys(_exactness(m), is_exact)
    idle = _idle(m, kernel, flags)
    return KernelLaunch(
        f"{m.name}_{kernel}",
        {f"{one}_p": idle.get(one, one).buffer for one in names(m)},
        SIZES,
        constants,
        blocks,
        (*grid, "B", "N"),
    )


def _idle(m: MemoryText, kernel: str, flags: Mapping[str, bool]) -> dict[Held, Held]:
    """Buffers that a launch with some flags leaves alone, and others that stand in for them."""
    if kernel == "prepare":
        ahead = [*_seen(m), *_left(m), m.states]
        unread = [u.held for u in m.erasing] if flags["KNOWN"] else ahead
        return dict.fromkeys(unread, m.erasing[0].added)
    if kernel == "scan" and not flags["SAVES"]:
        return dict.fromkeys([m.states, *([m.column.states] if m.column else [])], m.last)
    return {}


# --- configurations ------------------------------------------------------------------------------

Settings = tuple[int, int, int, int, int]
"""Steps of a chunk, keys and values of a block, warps, stages."""
CONFIGURATIONS: Mapping[int, Mapping[str, tuple[Settings, ...]]] = {
    64: {
        "prepare": (
            *((64, 0, 32, 8, 1), (64, 0, 64, 8, 1), (64, 0, 64, 4, 1)),
            *((32, 0, 64, 4, 1), (32, 0, 32, 4, 1)),
        ),
        "scan": (
            *((64, 0, 32, 4, 2), (64, 0, 32, 4, 3), (64, 0, 64, 4, 3), (64, 0, 64, 8, 2)),
            *((32, 0, 64, 8, 2), (32, 0, 32, 4, 2), (32, 0, 64, 4, 3), (32, 0, 32, 4, 3)),
        ),
        "outputs": ((64, 0, 64, 4, 1), (32, 0, 64, 4, 1)),
        "back": (
            *((64, 0, 32, 4, 1), (64, 0, 32, 4, 2), (64, 0, 64, 4, 2), (64, 0, 64, 8, 1)),
            *((32, 0, 64, 8, 1), (32, 0, 32, 4, 2), (32, 0, 64, 4, 2)),
        ),
        "gradients": (
            *((64, 64, 64, 8, 1), (64, 64, 64, 4, 1), (64, 32, 64, 4, 1), (64, 32, 64, 8, 1)),
            *((32, 64, 64, 8, 1), (32, 64, 64, 4, 1)),
        ),
    },
    128: {
        "prepare": ((32, 0, 64, 8, 1), (32, 0, 64, 4, 1), (64, 0, 64, 8, 1), (64, 0, 64, 4, 1)),
        "scan": (
            *((32, 0, 32, 4, 2), (32, 0, 64, 8, 2), (32, 0, 32, 4, 3)),
            *((64, 0, 32, 4, 2), (64, 0, 64, 8, 2), (64, 0, 32, 8, 2)),
        ),
        "outputs": ((32, 0, 64, 4, 1), (64, 0, 64, 4, 1), (64, 0, 64, 8, 1)),
        "back": (
            *((32, 0, 32, 8, 1), (32, 0, 64, 8, 1), (32, 0, 32, 4, 2)),
            *((64, 0, 32, 4, 2), (64, 0, 64, 8, 1), (64, 0, 32, 8, 1)),
        ),
        "gradients": (
            *((32, 32, 64, 8, 1), (32, 64, 64, 8, 1), (32, 32, 64, 4, 1), (32, 64, 64, 4, 1)),
            *((64, 64, 64, 8, 1), (64, 32, 64, 4, 1), (32, 16, 64, 8, 1)),
        ),
    },
    256: {
        "prepare": ((32, 0, 32, 8, 1), (32, 0, 64, 8, 1)),
        "scan": ((32, 0, 16, 8, 1), (32, 0, 32, 8, 1), (32, 0, 32, 4, 2)),
        "outputs": ((32, 0, 32, 8, 1), (32, 0, 64, 8, 1)),
        "back": ((32, 0, 16, 8, 1), (32, 0, 32, 8, 1)),
        "gradients": ((32, 32, 64, 8, 1), (32, 64, 64, 8, 1), (32, 16, 64, 8, 1)),
    },
}
"""By the most keys and values. The first that a call may take spills least, which tests hold, and
is taken where nothing is timed. The others are the fastest of a grid on an H200, of mLSTM and the
gated delta rule (lab note 19), some of which spill; wider ones are guesses."""


def configurations_of(m: MemoryText) -> dict[str, tuple[Configuration, ...]]:
    """Configurations that may be chosen, by kernel, of a memory.

    Short chunks stand first where registers do not hold what long ones need, and of those that
    erase by key more warps, which share a state, and blocks of fewer keys.
    """
    erases_by_key = m.by_key and bool(m.erasers)

    def place(one: Settings) -> tuple[int, ...]:
        length, keys, _, warps, _ = one
        if erases_by_key:
            return length, -warps, keys
        return (length,) if m.column is not None else ()

    return {
        f"{m.name}_{kernel}": tuple(
            _configuration(most, settings)
            for most, of in CONFIGURATIONS.items()
            for settings in sorted(of[kernel], key=place)
        )
        for kernel in KERNELS
        if kernel != "prepare" or m.erasers
    }


def _configuration(most: int, settings: Settings) -> Configuration:
    length, keys, values, warps, stages = settings
    blocks = {"BT": length, "BV": values} | ({"BK": keys} if keys else {})
    return Configuration(blocks, warps, stages, most)
