"""Launch the kernels of a memory over a whole sequence, as the plan of a Triton module has them.

Input: a generated module, the plan of one of its layers, tensors by the names of its buffers.
Output: what is read at every step and the last states; gradients of streams and of first states.
Every tensor lies as its buffer says, (T, B, heads, units), contiguous; which ones are views is the
caller's affair. Nothing of the compiler is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cellgen.runtime.triton.kernel import configuration_text

Row: TypeAlias = Mapping[str, Any]  # a row of a plan: strings, numbers, tuples, dicts
LEAST_BLOCK = 16
"""Rows and columns of the least product of a device."""
LEAST_CHUNK = 32
"""Steps of a chunk where keys or values are more than any configuration is meant for."""
FEW_PROGRAMS = 100
"""Programs that a device should have at once: with fewer, chunks run beside each other."""
FORWARD, BACKWARD = ("read", "last", "saved", "marks"), ("gradient",)
UPSTREAM = ("upstream", "upstream_last")


@dataclass(frozen=True, eq=False)
class Chosen:
    """Blocks, warps and stages by kernel, and the milliseconds that they were timed at.

    ``note`` says why a memory has none that could be timed.
    """

    blocks: Mapping[str, Mapping[str, int]]
    ms: float = 0.0
    note: str = ""

    @cached_property
    def text(self) -> str:
        """In words; empty where nothing was chosen."""
        return configuration_text(self.blocks, self.ms, self.note)


FIRST = Chosen({})
"""The first of each list."""


def settings_of(configuration: Row) -> dict[str, int]:
    """Blocks, warps and stages of a configuration of the plan."""
    of = configuration
    return {**of["blocks"], "warps": of["warps"], "stages": of["stages"]}


@dataclass
class MemoryLaunches:
    """One memory over one sequence.

    ``sizes`` are those of the call, ``T``, ``B`` and the cell's dimensions. ``chosen`` are blocks,
    warps and stages by kernel, or of all under ``""``; ``BT``, the steps of a chunk, is one for
    all. ``READS`` of the scan: that it forms what is read, 0 leaves that to the kernel behind it.
    What is left out is the first configuration of the plan. ``gaps``: that ``step.before`` says
    which steps are left out or begin anew; ``resets``: that some may begin anew. ``call``: launches
    whose configuration is taken, of other sizes.
    """

    module: ModuleType
    plan: Row
    sizes: Mapping[str, int]
    dtype: torch.dtype
    device: torch.device
    gaps: bool = False
    resets: bool = False
    chosen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    arrays: dict[str, Tensor] = field(default_factory=dict)
    call: MemoryLaunches | None = None

    def __post_init__(self) -> None:
        counted = {
            name: math.prod(self.sizes[dim] for dim in dims)
            for name, dims in self.plan["sizes"].items()
        }
        self.known = {**self.sizes, **counted}
        self.known["BT"] = self._length() if self.call is None else self.call.known["BT"]
        is_wide = self.dtype in (torch.float32, torch.float64)
        precision = "ieee" if is_wide else "tf32"
        resets = self.gaps and self.resets
        self.constants = {"GAPS": self.gaps, "RESETS": resets, "PRECISION": precision}
        self.blocks = {name: self._configuration(name) for name in self._kernels()}

    # --- passes ---

    def forward(self, trains: bool = True) -> dict[str, Tensor]:
        """What is read and the last states, and what the backward pass needs of this one."""
        self.launch(self.plan[self.which(trains)])
        results = self._of_roles(FORWARD)
        self._drop(("scratch",))
        return results

    def backward(self) -> dict[str, Tensor]:
        """Gradients of streams and first states, by their names; shares are added up."""
        self.launch(self.plan["backward"])
        gradients = {}
        for name, array in self._of_roles(BACKWARD).items():
            buffer = self.plan["buffers"][name]
            total = array.sum(0) if buffer["shares"] else array
            gradients[name] = total
        self._drop(("scratch", *BACKWARD, *UPSTREAM))  # another pass must not write into these
        return gradients

    def kept(self) -> dict[str, Tensor]:
        """What the forward pass formed that the backward one reads."""
        read = {name for row in self.plan["backward"] for name in row["buffers"].values()}
        return {name: a for name, a in self._of_roles(FORWARD).items() if name in read}

    def _drop(self, roles: Sequence[str]) -> None:
        for name in self._of_roles(roles):
            del self.arrays[name]

    def launch(self, launches: Sequence[Row]) -> None:
        """Launch kernels in order; buffers that are not there are made."""
        for row in launches:
            grid, arguments = self._call_of(row)
            if grid:
                self._kernel(row["kernel"])[(grid,)](**arguments)

    def make(self, launches: Sequence[Row]) -> None:
        """Make the buffers that are not there."""
        for name in (name for row in launches for name in row["buffers"].values()):
            self._at(name)

    def compile(self, launches: Sequence[Row]) -> None:
        """Have Triton compile kernels, which are not launched."""
        for row in launches:
            grid, arguments = self._call_of(row)
            self._kernel(row["kernel"]).warmup(**arguments, grid=(max(1, grid),))

    def _call_of(self, row: Row) -> tuple[int, dict[str, object]]:
        """Programs of a launch, and what it hands over."""
        blocks = self.blocks[row["kernel"]]
        arguments: dict[str, object] = {p: self._at(n) for p, n in row["buffers"].items()}
        arguments |= {name: self.known[name] for name in row["sizes"]}
        arguments |= {name: self._constant(of, blocks) for name, of in row["constants"].items()}
        arguments |= {name: blocks[name] for name in row["blocks"]}
        arguments |= {"num_warps": blocks["warps"], "num_stages": blocks["stages"]}
        return math.prod(self._count(axis, blocks) for axis in row["grid"]), arguments

    # --- what is chosen ---

    def lengths(self) -> list[int]:
        """Steps of a chunk that configurations have, in the order of the plan."""
        every = self.plan["configurations"]
        fitting = (one for kernel in every for one in self.configurations(kernel))
        return list(dict.fromkeys(int(one["blocks"]["BT"]) for one in fitting))

    def configurations(self, kernel: str) -> list[Row]:
        """The configurations of a kernel that are meant for so many keys and values."""
        widest = max(self.known["K"], self.known["V"])
        every = self.plan["configurations"][kernel]
        fitting = [one for one in every if not one["most"] or widest <= one["most"]]
        least = min((one["most"] for one in fitting), default=0)
        return [one for one in fitting if one["most"] == least]

    @property
    def untuned(self) -> str:
        """Why kernels have one configuration alone, where keys or values are too many."""
        of = (one for kernel in self.plan["configurations"].values() for one in kernel)
        most = max((one["most"] for one in of), default=0)
        return (
            f"{self.known['K']} keys and {self.known['V']} values of a head, where {most} are the "
            f"most that configurations are for: kernels take small blocks, which are not tuned"
        )

    def _length(self) -> int:
        """Steps of a chunk: what is chosen, the first of the plan, less for shorter sequences."""
        of = (self.chosen.get(name, {}).get("BT") for name in ("", *self._kernels()))
        chosen = next(filter(None, of), None)
        if chosen is not None:
            return chosen
        every = self.lengths()
        shorter = [length for length in every if self.sizes["T"] <= length < every[0]]
        return min(shorter) if shorter else every[0] if every else LEAST_CHUNK

    def _configuration(self, kernel: str) -> dict[str, int]:
        own = {"warps": 4, "stages": 1, "BT": self.known["BT"], "BK": 32, "BV": 32}
        for one in self.configurations(kernel):
            if one["blocks"]["BT"] == self.known["BT"]:
                own = settings_of(one)
                break
        return {**own, **self.chosen.get("", {}), **self.chosen.get(kernel, {})}

    def which(self, trains: bool) -> str:
        """The launches of the forward pass."""
        if self.call is not None:
            return self.call.which(trains)
        scan = self.plan["forward"][-1]
        blocks = self.blocks[scan["kernel"]]
        programs = math.prod(self._count(axis, blocks) for axis in scan["grid"])
        is_long = self.sizes["T"] > 2 * self.known["BT"]
        reads = blocks.get("READS", not (programs < FEW_PROGRAMS and is_long))
        return ("training" if trains else "forward") if reads else "few_rows"

    def _kernels(self) -> set[str]:
        passes = ("forward", "few_rows", "training", "backward")
        return {row["kernel"] for name in passes for row in self.plan[name]}

    def _kernel(self, name: str) -> Any:  # a kernel of Triton, which has no types
        return getattr(self.module, name)

    # --- buffers and counts ---

    def _at(self, name: str) -> Tensor:
        if name not in self.arrays:
            self.arrays[name] = self.new(name)
        return self.arrays[name]

    def new(self, name: str) -> Tensor:
        """Make a buffer."""
        buffer = self.plan["buffers"][name]
        role, dtype = buffer["role"], self._dtype(buffer["dtype"])
        longest = {"BT": self.known["BT"], "BK": LEAST_BLOCK, "BV": LEAST_BLOCK}
        if role == "gradient" and buffer["shares"]:
            longest |= self._shared_by(name)
        shape = [self._count(axis, longest) for axis in buffer["shape"]]
        if role == "before":
            return torch.empty(1, dtype=dtype, device=self.device)
        make = torch.zeros if role in ("marks", "upstream", "upstream_last") else torch.empty
        return make(shape, dtype=dtype, device=self.device)

    def laid(self, name: str, array: Tensor) -> Tensor:
        """An array as a buffer has it: fewer axes of 1, wider numbers."""
        like = self.new(name)
        return array.reshape(like.shape).to(like.dtype).contiguous()

    def _shared_by(self, name: str) -> Mapping[str, int]:
        """The blocks of the kernel that writes shares."""
        for row in self.plan["backward"]:
            if name in row["buffers"].values():
                return self.blocks[row["kernel"]]
        return {}

    def _dtype(self, name: str) -> torch.dtype:
        if name == "streams":
            return self.dtype
        if name == "float32" and self.dtype == torch.float64:
            return torch.float64
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    def _constant(self, of: object, blocks: Mapping[str, int]) -> object:
        if isinstance(of, bool):
            return of
        if isinstance(of, str) and of in self.constants:
            return self.constants[of]
        return self._count(of, blocks)

    def _count(self, count: object, blocks: Mapping[str, int]) -> int:
        """A number, a size, the power of two at a size, or blocks that a size takes."""
        if isinstance(count, int):
            return count
        if isinstance(count, str):
            return blocks[count] if count in blocks else self.known[count]
        assert isinstance(count, tuple)
        size = self.known[count[0]]
        if len(count) == 1:
            return max(LEAST_BLOCK, 1 << (size - 1).bit_length())
        return -(-size // blocks[count[1]])

    def _of_roles(self, roles: Sequence[str]) -> dict[str, Tensor]:
        buffers = self.plan["buffers"]
        return {name: a for name, a in self.arrays.items() if buffers[name]["role"] in roles}
