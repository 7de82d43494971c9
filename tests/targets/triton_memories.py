"""Run the kernels of a memory by their plan, in Triton's interpreter or on a device.

Streams are drawn, the reference is the memory's chunk program in float64 (``LayerRun``).
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from cellgen import Cell
from cellgen.program.chunks import Memory
from cellgen.program.chunks.layout import StreamLayout
from cellgen.program.chunks.programs import ChunkPrograms, chunk_programs
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.proof.chunk_layer import LayerRun
from cellgen.proof.interpreted import bfloat16_as_on_devices
from cellgen.targets.target import NotYet
from cellgen.targets.triton.memory import MemoryKernels, column_of, memory_head, memory_kernels
from cellgen.targets.triton.plan import ANEW, LEFT_OUT, MARKS, STEP_BEFORE, BufferRole, literal
from cellgen.torch.chunks.rows import steps_before
from cellgen.torch.memories import MemoryLaunches

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]
HEAD = f"""import triton
import triton.language as tl

ANEW, LEFT_OUT = tl.constexpr({ANEW}), tl.constexpr({LEFT_OUT})


"""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run."""

    T: int = 40
    B: int = 2
    N: int = 2
    K: int = 16
    V: int = 16


def at_steps(array: np.ndarray, valid: np.ndarray, number: float) -> np.ndarray:
    """An array (B, ..., T, X) with a number at the steps that are not valid, (B, T)."""
    table = valid.reshape(len(valid), *(1,) * (array.ndim - 3), -1, 1)
    return np.where(table, array, number)


@dataclass
class MemoryRun:
    """A memory of a cell, its reference and its kernels."""

    cell: type[Cell]
    sizes: Sizes
    programs: ChunkPrograms = field(init=False)
    chunk: ChunkProgram = field(init=False)
    column: ChunkProgram | None = field(init=False, default=None)
    kernels: MemoryKernels = field(init=False)

    def __post_init__(self) -> None:
        self.programs = chunk_programs(self.cell.definition, gaps=True)
        of = {one.layer.states: one for one in self.programs.layers}
        self.chunk = next(
            one
            for one in self.programs.layers
            if isinstance(one.layer, Memory) and one.layer.value_axis is not None
        )
        assert isinstance(self.memory, Memory)
        column = column_of(self.programs, self.memory)
        self.column = column and of[column.states]
        spelled = memory_kernels(self.programs, self.memory)
        assert not isinstance(spelled, NotYet), spelled
        self.kernels = spelled

    @property
    def memory(self) -> Memory:
        layer = self.chunk.layer
        assert isinstance(layer, Memory)
        return layer

    # --- what is drawn ---

    def drawn(self, rng: np.random.Generator, decays: Callable[..., np.ndarray]) -> Arrays:
        """Streams (B, N, T, X) and states, by the names of buffers; keys that erase have norm 1."""
        s, memory = self.sizes, self.memory
        arrays: Arrays = {}
        widths = {"K": s.K, "V": s.V}
        every = self.kernels.plan.buffers
        for name, buffer in every.items():
            if buffer.role is BufferRole.STREAM:
                last = buffer.shape[-1]
                width = widths[last] if last in widths and len(buffer.shape) == 4 else 1
                arrays[name] = rng.normal(size=(s.B, s.N, s.T, width)) / math.sqrt(width)
            elif buffer.role is BufferRole.FIRST:
                shape = tuple(getattr(s, str(axis)) for axis in buffer.shape)
                arrays[name] = rng.normal(size=shape) / math.sqrt(shape[-1])
        if memory.log_decay is not None:
            name = str(memory.log_decay)
            least = -math.inf if memory.bound is None else memory.bound
            arrays[name] = np.maximum(decays(rng, arrays[name].shape), least)
        for update in memory.updates:
            for stream in (update.scale, *update.erased.values()):
                if stream is not None:
                    arrays[str(stream)] = rng.random(arrays[str(stream)].shape)
        for eraser in memory.erasers:
            key = arrays[str(eraser)]
            arrays[str(eraser)] = key / np.linalg.norm(key, axis=-1, keepdims=True)
        self._agree(arrays)
        return arrays

    def _agree(self, arrays: Arrays) -> None:
        """Erased reads and the keys of their updates point the same way; a column that a matrix is
        scaled by has the numbers of the scale."""
        if self.column is not None and self.column.layer.is_scale:
            value, scale = self.column.layer.updates[0].value, self.memory.updates[0].scale
            arrays[str(value)] = arrays[str(scale)].copy()
        for update in self.memory.updates:
            for read in update.erased:
                arrays[str(update.key)] = arrays[str(self.memory.erasers[read])].copy()

    def with_same_keys(self, arrays: Arrays) -> Arrays:
        """The same with one key at all steps of a row and head, and values of 0 at some."""
        same, memory = dict(arrays), self.memory
        keys = (*memory.erasers, *(update.key for update in memory.updates))
        for name in map(str, keys):
            same[name] = np.broadcast_to(arrays[name][:, :, :1], arrays[name].shape).copy()
        for update in memory.updates:
            if update.value is not None:
                same[str(update.value)] = arrays[str(update.value)].copy()
                same[str(update.value)][:, :, ::3] = 0.0
        return same

    def with_gaps(self, arrays: Arrays, valid: np.ndarray, number: float) -> Arrays:
        """The same with a number at steps that are left out."""
        role = BufferRole.STREAM
        is_stream = {name: b.role is role for name, b in self.kernels.plan.buffers.items()}
        return {n: at_steps(a, valid, number) if is_stream[n] else a for n, a in arrays.items()}

    def restarts(self, rng: np.random.Generator) -> np.ndarray:
        """Steps that begin with initial states, (B, T)."""
        flags: np.ndarray = (rng.random((self.sizes.B, self.sizes.T)) < 0.1).astype(float)
        return flags

    # --- the reference ---

    def expected(
        self, given: Arrays, restart: np.ndarray, upstream: Callable[[str, tuple[int, ...]], Arrays]
    ) -> tuple[Arrays, Arrays, Arrays]:
        """What is formed, what was drawn upstream, gradients; as buffers of kernels."""
        formed, above, gradients = {}, {}, {}
        for chunk in (self.chunk, self.column):
            if chunk is not None:
                part = self._expected(chunk, given, restart, upstream)
                formed |= part[0]
                above |= part[1]
                for name, array in part[2].items():
                    gradients[name] = gradients.get(name, 0) + array
        return formed, above, gradients

    def _expected(
        self,
        chunk: ChunkProgram,
        given: Arrays,
        restart: np.ndarray,
        upstream: Callable[[str, tuple[int, ...]], Arrays],
    ) -> tuple[Arrays, Arrays, Arrays]:
        layer, layout, s = chunk.layer, StreamLayout(chunk.layer), self.sizes
        assert isinstance(layer, Memory)
        names = self._buffers_of(layer)
        streams = {
            str(over): self._fronted(given[names[str(v)]]) for v, over in chunk.streams.items()
        }
        streams[str(chunk.restart)] = self._fronted(restart[:, None, :, None])
        cuts = tuple(slice(t, min(t + 16, s.T)) for t in range(0, s.T, 16))
        dims = {str(n): getattr(s, k) for k, of in self.kernels.plan.sizes.items() for n in of}
        run = LayerRun(
            chunk,
            layout,
            streams,
            (chunk.program,),
            {**dims, "B": s.B},
            str(self.programs.length),
            cuts,
        )
        first = f"{layer.state}.first"
        out = run.forward([layout.state_to_chunk(self._fronted(given[first]))])
        formed = {str(v): out[str(over)] for v, over in chunk.formed.items()}
        last = f"{layer.next}_last"
        formed[last] = layout.state_from_chunk(out[str(chunk.last[0])])
        above = {name: upstream(name, array.shape) for name, array in formed.items()}
        back = run.backward(
            {str(over): above[str(v)] for v, over in chunk.formed.items()},
            [layout.state_to_chunk(above[last])],
        )
        gradients = {first: layout.state_from_chunk(back[str(chunk.first[0])])}
        for value, over in chunk.streams.items():
            gradients[names[str(value)]] = back[str(over)]
        return formed, above, gradients

    def _fronted(self, array: np.ndarray) -> np.ndarray:
        """An array of a cell that may have no heads."""
        return array if self.kernels.plan.sizes["N"] else array[:, 0]

    def _buffers_of(self, layer: Memory) -> dict[str, str]:
        """The buffers that streams are drawn as: those of a column are its memory's."""
        names = {str(stream): str(stream) for stream in layer.streams}
        if layer is not self.memory:
            own = self.memory
            pairs = [
                (layer.log_decay, own.log_decay),
                (layer.updates[0].key, own.updates[0].key),
                (layer.readouts[0].query, own.readouts[0].query),
            ]
            names |= {str(theirs): str(ours) for theirs, ours in pairs if theirs is not None}
        return names


@dataclass
class Host:
    """The launches of one memory, and arrays (B, N, T, X) laid as its buffers."""

    run: MemoryRun
    launches: MemoryLaunches

    def put(self, arrays: Arrays, prefix: str = "") -> None:
        """Lay steps as (T, B, N, X), states as they are."""
        host, s = self.launches, self.run.sizes
        for name, array in arrays.items():
            buffer = host.plan["buffers"][prefix + name]
            if buffer["shape"][0] == "T":
                array = np.moveaxis(array.reshape(s.B, s.N, s.T, -1), 2, 0)
            shape = [host.known[axis] for axis in buffer["shape"]]
            laid = torch.tensor(array).reshape(shape).to(host._dtype(buffer["dtype"]))
            host.arrays[prefix + name] = laid.contiguous().to(host.device)

    def rounded(self, name: str, array: np.ndarray) -> np.ndarray:
        """Numbers as a buffer of 16 bits has them; of wider ones as they are."""
        dtype = self.launches._dtype(self.launches.plan["buffers"][name]["dtype"])
        if dtype.itemsize > 2:
            return array
        numbers: np.ndarray = torch.tensor(array).to(dtype).double().numpy()
        return numbers

    def restart(self, flags: np.ndarray, valid: np.ndarray) -> None:
        """Say where steps begin with initial states, and which are not left out, (B, T)."""
        tables = (torch.tensor(table.T.copy()) for table in (valid, flags > 0))
        self.launches.arrays[STEP_BEFORE] = steps_before(*tables)

    def result(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        """A result, laid as the reference has it."""
        array: np.ndarray = tensor.to("cpu", torch.float64).numpy()
        if "T" not in self.launches.plan["buffers"][name]["shape"]:
            return array
        s = self.run.sizes
        return np.moveaxis(array.reshape(s.T, s.B, s.N, -1), 0, 2)


@dataclass(frozen=True)
class Case:
    """What one comparison is about."""

    sizes: Sizes = Sizes()
    blocks: Mapping[str, int] = field(default_factory=lambda: {"BT": 16, "BK": 16, "BV": 16})
    dtype: str = "float64"
    strong: bool = False
    gaps: bool = False
    few_rows: bool = False
    same_keys: bool = False
    """All steps have one key, and every third one adds nothing."""


def errors(cell: type[Cell], case: Case, folder: Path, seed: int = 0) -> dict[str, float]:
    """Distances of results and gradients from the reference, and how many rows were marked."""
    run, rng = MemoryRun(cell, case.sizes), np.random.default_rng(seed)
    drawn = run.drawn(rng, strong if case.strong else mild)
    if case.same_keys:
        drawn = run.with_same_keys(drawn)
    host = Host(run, launches_of(run, case, folder))
    drawn = {name: host.rounded(name, array) for name, array in drawn.items()}
    every = np.ones((case.sizes.B, case.sizes.T), bool)
    valid = rng.random(every.shape) < 0.8 if case.gaps else every
    flags = (run.restarts(rng) if case.gaps else np.zeros(every.shape)) * valid

    def upstream(name: str, shape: tuple[int, ...]) -> np.ndarray:
        numbers = host.rounded(f"d_{name}", rng.normal(size=shape))
        return numbers if name.endswith("_last") else at_steps(numbers, valid, 0.0)

    expected = run.expected(run.with_gaps(drawn, valid, 0.0), flags, upstream)
    formed, above, gradients = expected
    gradients = run.with_gaps(gradients, valid, 0.0)
    host.put(run.with_gaps(drawn, valid, np.nan))
    host.put(above, "d_")
    if case.gaps:
        host.restart(flags, valid)
    with bfloat16_as_on_devices():
        host.launches.launch(host.launches.plan["few_rows" if case.few_rows else "training"])
        back = host.launches.backward()
    found = {
        name: distance(host.result(name, host.launches.arrays[name]), array)
        for name, array in formed.items()
    }
    for name, tensor in back.items():
        own = name.removeprefix("d_")
        found[name] = distance(host.result(name, tensor), gradients[own])
    assert set(found) == {*formed, *(f"d_{name}" for name in gradients)}
    if MARKS in host.launches.arrays:
        found["marks"] = float(host.launches.arrays[MARKS].sum())
    return found


def launches_of(run: MemoryRun, case: Case, folder: Path) -> MemoryLaunches:
    """The launches of a memory; what they form starts as NaN where PyTorch fills new tensors."""
    s = case.sizes
    axes = {"N": s.N, "K": s.K, "V": s.V}
    dims = {dim: axes[name] for name, of in run.kernels.plan.sizes.items() for dim in of}
    plan = literal(run.kernels.plan)
    assert isinstance(plan, dict)
    return MemoryLaunches(
        module_of(run, folder),
        plan,
        {"T": s.T, "B": s.B, **dims},
        getattr(torch, case.dtype),
        torch.device("cpu"),
        case.gaps,
        case.gaps,
        {"": case.blocks},
    )


def imported(text: str, name: str, folder: Path) -> ModuleType:
    """A generated module, from a file: Triton reads the sources of its kernels."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_of(run: MemoryRun, folder: Path) -> ModuleType:
    """The kernels of one memory as a module."""
    text = HEAD + memory_head(run.kernels.by_key) + "\n\n" + run.kernels.text
    return imported(text, f"{run.cell.definition.name}_memory", folder)


def mild(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithms of decays of weak gates."""
    return -0.3 * rng.random(shape)


def strong(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Gates of the first rows down to e^-100 a step and zeros, which count as e^-80 where no bound
    is nearer; weak ones elsewhere."""
    drawn = -0.3 * rng.random(shape)
    drawn[0] = -100.0 * rng.random(drawn[0].shape) ** 8
    drawn[0][rng.random(drawn[0].shape) < 0.05] = -np.inf
    return drawn


def distance(array: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference beside the largest entry."""
    assert array.size == expected.size
    array = array.reshape(expected.shape)
    scale = float(np.abs(expected).max()) or 1.0
    difference = np.abs(array - expected)
    return float("inf") if np.isnan(difference).any() else float(difference.max()) / scale
