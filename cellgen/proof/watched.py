"""Run Triton's kernels in its interpreter with every load and store watched.

``with watched("gla") as watch:`` watches every kernel that is launched inside. Arrays that come
from outside are inputs: whole, and not to be written. Arrays that ``torch.empty`` and its kind give
inside are outputs of which nothing is written; those of ``torch.zeros`` and its kind are outputs
that are written. The first access that must not be raises AccessError, with the cell, the kernel,
the argument, the element and the program. ``watch.traffic`` has the bytes of every argument.

Kernels have to be interpreted: ``TRITON_INTERPRET=1`` before their module is imported. The
interpreter runs the programs of a launch one after the other, so that races show here, not in the
numbers. Its products of bfloat16 are formed in float32.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.jit import mangle_type

from cellgen.proof.interpreted import BUILDER, as_numbers, replaced
from cellgen.proof.shadow import AccessError, Program, Shadow, Traffic, WatchedStorage, WatchedView

UNWRITTEN = (
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
)
WRITTEN = (
    torch.zeros,
    torch.zeros_like,
    torch.ones,
    torch.ones_like,
    torch.full,
    torch.full_like,
    torch.Tensor.new_zeros,
    torch.Tensor.new_ones,
    torch.Tensor.clone,
    torch.Tensor.new_full,
)
POISON: dict[torch.dtype, float] = {
    torch.int32: 0x7F7F7F7F,
    torch.int64: 0x7F7F7F7F,
    torch.uint8: 0xFF,
    torch.bool: True,
}
"""What stands in unwritten elements of types that have no NaN."""


@dataclass(frozen=True)
class WatchedCall:
    """A launch as it was called: the kernel, what it was handed, how it was to be compiled.

    ``arguments`` by parameter, in order: bytes of an array with its type in Triton's words, or a
    number. ``constants`` are what is fixed when the kernel is compiled.
    """

    path: str
    kernel: str
    arguments: tuple[tuple[str, str, int], ...]
    constants: tuple[tuple[str, int | bool | str | None], ...]
    grid: tuple[int, ...]
    warps: int
    stages: int


@dataclass
class Watch:
    """What is watched: storages by address, the launch that runs, what was counted."""

    shadow: Shadow
    storages: dict[int, WatchedStorage] = field(default_factory=dict)
    keep: list[torch.Tensor] = field(default_factory=list)
    """No memory is given to another array while it is watched."""
    launches: list[WatchedCall] = field(default_factory=list)
    products: dict[str, int] = field(default_factory=dict)
    """Multiply-adds of ``tl.dot`` by kernel."""
    error: AccessError | None = None

    @property
    def traffic(self) -> Mapping[tuple[str, str], Traffic]:
        """Bytes by kernel and argument."""
        return self.shadow.traffic

    def bytes(self, kernel: str = "") -> tuple[int, int]:
        """Bytes read and written by a kernel, or by all."""
        chosen = [t for (name, _), t in self.traffic.items() if kernel in ("", name)]
        return sum(t.read for t in chosen), sum(t.written for t in chosen)

    def add(self, tensor: torch.Tensor, *, is_input: bool, is_written: bool) -> WatchedStorage:
        """Watch the memory of an array."""
        memory = tensor.untyped_storage()
        width = tensor.element_size()
        elements = memory.nbytes() // width
        storage = WatchedStorage.of(
            memory.data_ptr(), elements, width, is_input=is_input, is_written=is_written
        )
        self.storages[storage.start] = storage
        self.keep.append(tensor)
        return storage

    def mark(self, tensor: torch.Tensor) -> None:
        """Say that all elements of an array have been written."""
        storage = self.storages.get(tensor.untyped_storage().data_ptr())
        if storage is not None and tensor.numel():
            place = storage.written[tensor.storage_offset() :]
            strides = tuple(place.itemsize * stride for stride in tensor.stride())
            np.lib.stride_tricks.as_strided(place, tuple(tensor.shape), strides)[...] = True

    def view(self, name: str, tensor: torch.Tensor) -> WatchedView:
        """Say which elements of which storage an argument has."""
        start = tensor.untyped_storage().data_ptr()
        storage = self.storages.get(start)
        if storage is None:
            storage = self.add(tensor, is_input=True, is_written=True)
        if storage.width != tensor.element_size():
            raise AccessError(
                f"{self.shadow.cell}: {name} has elements of {tensor.element_size()} bytes in "
                f"memory that was made for {storage.width}"
            )
        return WatchedView(
            name, storage, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
        )


class _Allocations(TorchFunctionMode):  # type: ignore[misc]
    """Arrays that are made inside are outputs; those without values get poison."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        is_written = func in WRITTEN
        if isinstance(result, torch.Tensor) and (is_written or func in UNWRITTEN):
            if not is_written:
                _poison(result)
            if result.numel():
                self.watch.add(result, is_input=False, is_written=is_written)
        elif func not in UNWRITTEN:
            for tensor in _written_by(func, args, kwargs or {}):
                self.watch.mark(tensor)
        return result


def _written_by(
    func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[torch.Tensor]:
    """Arrays that a function of PyTorch writes: ``out``, and the first of those in place."""
    name = getattr(func, "__name__", "")
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    for value in (kwargs.get("out"), args[0] if in_place and args else None):
        if isinstance(value, torch.Tensor):
            yield value


def _poison(tensor: torch.Tensor) -> None:
    poison = POISON.get(tensor.dtype, float("nan"))
    with torch.no_grad():
        tensor.detach().fill_(poison)


@contextmanager
def watched(cell: str) -> Iterator[Watch]:
    """Watch the kernels that are launched inside, for a cell whose name errors have.

    Raises AccessError at the first access that must not be, and at the end where no kernel ran
    under Triton's interpreter.
    """
    watch = Watch(Shadow(cell))
    hooks = {
        "create_masked_load": _load(watch),
        "create_masked_store": _store(watch),
        "create_atomic_rmw": _atomic(watch, BUILDER.create_atomic_rmw, 1),
        "create_atomic_cas": _atomic(watch, BUILDER.create_atomic_cas, 0),
        "create_barrier": lambda: watch.shadow.barrier(_program()),
        "create_dot": _dot(watch),
    }
    function, run = interpreter.InterpretedFunction, {"run": _run(watch)}
    with replaced(BUILDER, hooks), replaced(function, run), _Allocations(watch):
        yield watch
    if not watch.launches:
        raise AccessError(
            f"{cell}: no kernel ran in Triton's interpreter; set TRITON_INTERPRET=1 before its "
            f"module is imported"
        )


def _run(watch: Watch) -> Callable[..., object]:
    """Name the arguments of a launch, then launch."""
    launch = interpreter.InterpretedFunction.run

    def run(self: Any, *args: object, grid: object, warmup: bool, **options: object) -> object:
        name = self.fn.__name__
        constants = {key: value for key, value in options.items() if key in self.arg_names}
        bound = inspect.signature(self.fn).bind_partial(*args, **constants).arguments
        tensors = {n: t for n, t in bound.items() if isinstance(t, torch.Tensor) and t.numel()}
        watch.launches.append(_called(self, bound, grid, options))
        watch.shadow.begin(name, tuple(watch.view(n, t) for n, t in tensors.items()))
        try:
            return launch(self, *args, grid=grid, warmup=warmup, **options)
        except InterpreterError:
            if watch.error is not None:
                raise watch.error from None
            raise

    return run


def _called(
    kernel: Any, bound: Mapping[str, object], grid: object, options: Mapping[str, object]
) -> WatchedCall:
    """Write down a launch."""
    fixed = {n for n, a in inspect.get_annotations(kernel.fn).items() if _is_constant(a)}
    arguments: list[tuple[str, str, int]] = []
    constants: list[tuple[str, int | bool | str | None]] = []
    for name, value in bound.items():
        if name in fixed or value is None:
            constants.append((name, _constant(value)))
        elif isinstance(value, torch.Tensor):
            size = value.untyped_storage().nbytes() - value.storage_offset() * value.element_size()
            arguments.append((name, mangle_type(value), size))
        elif isinstance(value, int):
            arguments.append((name, mangle_type(value), value))
    programs = grid(dict(bound)) if callable(grid) else grid
    sizes = tuple(int(n) for n in programs) if isinstance(programs, tuple | list) else ()
    warps, stages = (int(str(options.get(n, d))) for n, d in (("num_warps", 4), ("num_stages", 3)))
    path = str(inspect.getsourcefile(kernel.fn))
    return WatchedCall(
        path, kernel.fn.__name__, tuple(arguments), tuple(constants), sizes, warps, stages
    )


def _is_constant(annotation: object) -> bool:
    return "constexpr" in str(annotation)


def _constant(value: object) -> int | bool | str | None:
    """A constant as it can be written down: types of Triton by their names."""
    plain = getattr(value, "value", value)
    return plain if isinstance(plain, int | bool | None) else str(plain)


def _program() -> Program:
    x, y, z = BUILDER.grid_idx
    return int(x), int(y), int(z)


def _lanes(pointers: Any, mask: Any) -> tuple[Any, Any, int]:
    """Addresses of the lanes that are on, which those are, and the bytes of an element."""
    shape = np.shape(pointers.data)
    on = np.ones(shape, bool) if mask is None else np.broadcast_to(mask.data, shape).astype(bool)
    width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    return np.asarray(pointers.data)[on].reshape(-1), on, width


@contextmanager
def _kept(watch: Watch) -> Iterator[None]:
    """Keep an error past the interpreter, which gives its text alone."""
    try:
        yield
    except AccessError as error:
        watch.error = watch.error or error
        raise


def _load(watch: Watch) -> Callable[..., object]:
    inner = BUILDER.create_masked_load

    def load(pointers: Any, mask: Any, *rest: object) -> object:
        with _kept(watch):
            addresses, _, width = _lanes(pointers, mask)
            watch.shadow.read(addresses, width, _program())
        return inner(pointers, mask, *rest)

    return load


def _store(watch: Watch) -> Callable[..., object]:
    inner = BUILDER.create_masked_store

    def store(pointers: Any, value: Any, mask: Any, *rest: object) -> object:
        with _kept(watch):
            addresses, on, width = _lanes(pointers, mask)
            values = np.broadcast_to(value.data, on.shape)[on].reshape(-1)
            watch.shadow.write(addresses, width, _program(), values)
        return inner(pointers, value, mask, *rest)

    return store


def _atomic(watch: Watch, inner: Callable[..., object], at: int) -> Callable[..., object]:
    """``at``: which argument has the addresses; the mask of a read-modify-write stands third.

    The last but one is what it orders.
    """

    def atomic(*args: Any) -> object:
        with _kept(watch):
            addresses, _, width = _lanes(args[at], args[3] if at == 1 else None)
            orders = args[-2].name
            watch.shadow.add(
                addresses,
                width,
                _program(),
                releases="RELEASE" in orders,
                acquires="ACQUIRE" in orders,
            )
        return inner(*args)

    return atomic


def _dot(watch: Watch) -> Callable[..., object]:
    """Count a product; bfloat16, which the interpreter has as bits, is multiplied as numbers."""
    inner = BUILDER.create_dot

    def dot(a: Any, b: Any, *rest: object) -> object:
        work = int(np.prod(a.data.shape)) * b.data.shape[-1]
        kernel = watch.shadow.kernel
        watch.products[kernel] = watch.products.get(kernel, 0) + work
        return inner(as_numbers(a), as_numbers(b), *rest)

    return dot
