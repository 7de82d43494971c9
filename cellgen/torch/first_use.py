"""Compare the kernels of a launch with the equations before they are first used on a device.

Input: the launch of a call. Output: nothing, or DeviceRunError. What is compared is the
configuration that the call launches: its own units, keys and values, blocks and warps; steps, rows
and heads alone are fewer. The bar of a result is ten times what has to be lost: what torch's
operators lose in float32 on the same numbers, in the type of the kernels; of 16 bits, by how much
the equations in float64 differ where arguments and upstream gradients are rounded to that type, and
so are rows of keys and values that a memory is handed. A gradient that is hardly told from 0 so is
left out, by name. The cache remembers; ``CELLGEN_PROVE=0`` leaves the comparison out.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import cellgen
from cellgen.runtime.abi import Argument
from cellgen.runtime.build import cache
from cellgen.runtime.triton.kernel import module_digest
from cellgen.torch.chunks.rows import Gaps
from cellgen.torch.devices import is_capturing, on_device
from cellgen.torch.errors import DeviceRunError, WrongKernelsError
from cellgen.torch.launched import assembler_of
from cellgen.torch.passes import PlanRun

if TYPE_CHECKING:
    from cellgen.torch.launched import FormLaunch

STEPS, ROWS, WHOLE = 150, 2, 16
"""Steps and rows, and heads as rows. A size of a call that is a multiple of ``WHOLE`` is one here,
too, and one of 1 is 1: Triton compiles these by themselves."""
FLOORS = {torch.float32: 5e-5, torch.float64: 1e-11, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""The types of kernels, and bars at least, by the largest number of a result: exponentials of
devices, and sums over some hundred steps in another order; of 16 bits two units in the last place,
of a result and of what it is formed of."""
NARROW = (torch.bfloat16, torch.float16)
TIMES = 10.0
"""How much more may be lost than has to be."""
LOST, LOST_IN_16_BITS = 1e-3, 5e-2
"""What may have to be lost of a result that is compared, by its largest number."""
SHIFTS = (2.0, -2.0, 0.5, -0.5)
"""What is added to biases, by draw: gates are wide open in one of the first two draws, and decays
near 1 in the other."""
LEFT_OUT, ANEW = 0.2, 0.02
"""The part of steps that are left out and that begin anew, of a call that has such."""
ALWAYS = 2
"""Draws that are always compared; further ones where a result was left out."""

Results = dict[str, Tensor]


def prove_once(launch: FormLaunch, device: torch.device, dtype: torch.dtype) -> None:
    """Compare once for each device, configuration, type and version. Raises DeviceRunError."""
    sizes = tuple(sorted(launch.sizes.items()))
    kind = (launch.learning, launch.gaps is not None, _resets(launch), launch.trains, launch.chosen)
    call = (launch.cell, launch.module.__file__, device, dtype, sizes, kind)
    if call in proofs_of_process():
        return
    _prove(launch, device, dtype)
    proofs_of_process()[call] = True


@functools.cache
def proofs_of_process() -> dict[object, bool]:
    """The calls of this process that need no look into the cache."""
    return {}


def _prove(launch: FormLaunch, device: torch.device, dtype: torch.dtype) -> None:
    device_name = name_of(device)
    stated = _stated(launch, device, dtype)
    key = "proved-" + cache.digest((str(place), text) for place, text in enumerate(stated))
    if cache.recall(key) is not None:
        return
    if is_capturing(device):
        raise DeviceRunError(
            f"{launch.cell}: the first call of these sizes compares kernels with the equations, "
            f"which cannot be while a graph of CUDA is captured; call it once before",
            code="device.proof",
        )
    with ThreadPoolExecutor(1) as apart_from_modes:  # of grad, autocast, devices, hooks of a caller
        compared, left_out = apart_from_modes.submit(compare, launch, device, dtype).result()
    name = max(compared, key=lambda n: compared[n][0] / compared[n][1], default="")
    version = importlib.metadata.version("triton")
    if not name:
        raise DeviceRunError(
            f"{launch.cell}: kernels of Triton {version} on {device_name} cannot be compared with "
            f"the equations, whose results are no numbers, or are lost in {dtype}, where arguments "
            f"are drawn; pass form='step', or set CELLGEN_PROVE=0 to use what is not compared",
            code="device.proof",
        )
    apart, bar = compared[name]
    if not apart <= bar:
        raise WrongKernelsError(
            f"{launch.cell}: {name} by kernels of Triton {version} on {device_name} is "
            f"{apart:.1e} from the equations, at most {bar:.0e} was expected: the compiler of the "
            f"device is wrong there, or the kernel rounds too much for this type; take another "
            f"Triton or an assembler of your own (TRITON_PTXAS_PATH), a wider type, or pass "
            f"form='step'",
            code="device.proof",
        )
    facts = {"stated": list(stated), "farthest": name, "apart": apart, "bar": bar}
    cache.remember(key, facts | {"left_out": list(left_out)})


def _stated(launch: FormLaunch, device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """All that a comparison holds for."""
    table = torch.empty(0, dtype=torch.int32) if launch.gaps is not None else None
    arrays = {"": torch.empty(0, dtype=dtype)}
    call = PlanRun(
        launch.module,
        dict(launch.sizes),
        arrays,
        trains=launch.trains,
        chosen=launch.chosen.blocks,
        before=table,
        resets=_resets(launch),
    )
    return (
        *versions(launch, device),
        str(dtype),
        str(sorted(smaller_sizes(launch).items())),
        str(call.configuration()),
        str(sorted(launch.learning)) if launch.trains else "without gradients",
    )


def versions(launch: FormLaunch, device: torch.device) -> tuple[str, ...]:
    """The kernels of a cell, their device, and what compiles them for it."""
    file = Path(str(launch.module.__file__))
    assembler = assembler_of(device)
    return (
        launch.cell,
        module_digest(file) if file.is_file() else "",
        name_of(device),
        f"cellgen {cellgen.__version__}, torch {torch.__version__}",
        f"triton {importlib.metadata.version('triton')}",
        assembler.release if assembler else "",
    )


def name_of(device: torch.device) -> str:
    """What a device is called."""
    return str(torch.cuda.get_device_name(device) if device.type == "cuda" else device.type)


# --- what is compared ----------------------------------------------------------------------------


def compare(
    launch: FormLaunch, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, tuple[float, float]], tuple[str, ...]]:
    """Of each result how far it is and its bar, where that is farthest; and what is left out."""
    sizes, compared, left_out = smaller_sizes(launch), dict[str, tuple[float, float]](), set[str]()
    for draw, shift in enumerate(SHIFTS):
        if draw >= ALWAYS and not left_out - compared.keys():
            break
        generator = torch.Generator().manual_seed(draw)
        gaps = None if launch.gaps is None else _gaps(sizes, _resets(launch), generator)
        small = replace(launch, sizes=sizes, call=launch.sizes, gaps=gaps)
        is_positive = draw % 2 == 1
        theta = [
            draw_values(item, launch.shape_of(item, sizes), generator, shift, is_positive)
            if item.name not in launch.decays
            else _decays(launch.shape_of(item, sizes), generator)
            for item in launch.arguments
        ]
        true, near, above, handed = true_and_near(small, theta, dtype, generator)
        formed = _by_kernels(small, handed, above, device, dtype)
        is_narrow = dtype in NARROW
        scale = 1.0 if is_narrow else torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
        for name in true:
            lost = apart(near[name], true[name])
            if not lost <= (LOST_IN_16_BITS if is_narrow else LOST) or not bool(true[name].any()):
                left_out.add(name)
                continue
            bar = max(FLOORS[dtype], TIMES * lost * scale)
            here = (apart(formed[name], true[name]), bar)
            before = compared.get(name, (0.0, bar))
            compared[name] = max(here, before, key=lambda one: one[0] / one[1])
    return compared, tuple(sorted(left_out - compared.keys()))


def true_and_near(
    launch: FormLaunch,
    theta: Sequence[Tensor],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> tuple[Results, Results, Results, Sequence[Tensor]]:
    """True results, others that are as near as can be asked, and what kernels are handed."""
    if dtype not in NARROW:
        exact, above = by_torch(launch, theta, torch.float64, generator)
        near, _ = by_torch(launch, theta, torch.float32, generator, above)
        return exact, near, above, theta
    near, above = by_torch(launch, theta, torch.float64, generator, stored=dtype)
    theta = [tensor.to(dtype).double() for tensor in theta]
    above = {name: tensor.to(dtype).double() for name, tensor in above.items()}
    true, _ = by_torch(launch, theta, torch.float64, generator, above)
    return true, near, above, theta


def smaller_sizes(launch: FormLaunch) -> dict[str, int]:
    """The sizes of a comparison: those of the call, but for steps, rows and heads."""
    memories = launch.module.PLAN.get("memories", ())
    heads = {dim for memory in memories for dim in memory["sizes"]["N"]}
    heads -= {dim for memory in memories for axis in "KV" for dim in memory["sizes"][axis]}
    fewer = {"T": STEPS, **dict.fromkeys(("B", *heads), ROWS)}
    return {
        name: compiled_alike(size, fewer.get(name, size)) for name, size in launch.sizes.items()
    }


def compiled_alike(size: int, fewer: int) -> int:
    """A smaller size that Triton compiles alike."""
    if size in (1, fewer):
        return size
    if size % WHOLE == 0:
        return -(-fewer // WHOLE) * WHOLE
    return fewer if fewer % WHOLE else fewer + 1


def draw_values(
    item: Argument,
    shape: Sequence[int],
    generator: torch.Generator,
    shift: float,
    is_positive: bool,
) -> Tensor:
    """Numbers that float32 holds: products of the size of 1; states and inputs of one sign, too."""
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if item.over_time:
        numbers = numbers.abs() if is_positive else numbers
    elif item.role == "state":
        numbers = 0.5 * (numbers.abs() + 0.5 if is_positive else numbers)
    elif item.role == "bias":
        numbers = 0.5 * numbers + shift
    elif len(shape) > 1:
        numbers = numbers / max(shape[0], 1) ** 0.5
    else:
        numbers = 0.5 * numbers
    return numbers.float().double()


def _resets(launch: FormLaunch) -> bool:
    return launch.gaps is not None and launch.gaps.resets


def _gaps(sizes: Mapping[str, int], resets: bool, generator: torch.Generator) -> Gaps:
    """Steps that are left out, among them the last ones of a row, and steps that begin anew."""
    numbers = torch.rand(2, sizes["T"], sizes["B"], generator=generator)
    valid = numbers[0] > LEFT_OUT
    if len(valid) > 1:  # a row of one step has it, or nothing is compared
        valid[-len(valid) // 5 :, -1] = False
    return Gaps(valid, valid & (numbers[1] < ANEW) & resets, resets)


def _decays(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    numbers = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return (0.9 + 0.09 * numbers).float().double()


def by_torch(
    launch: FormLaunch,
    theta: Sequence[Tensor],
    dtype: torch.dtype,
    generator: torch.Generator,
    above: Mapping[str, Tensor] | None = None,
    stored: torch.dtype | None = None,
) -> tuple[Results, Results]:
    """Results and gradients by torch's operators, and the upstream gradients, which are drawn."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in theta]
    with torch.set_grad_enabled(launch.trains):
        named = launch.exact(leaves, launch.gaps, stored)
    results = {name: named[name] for name in launch.results}
    drawn = above or {
        name: torch.randn(r.shape, generator=generator, dtype=torch.float64).float().double()
        for name, r in results.items()
    }
    if not launch.trains:
        return results, dict(drawn)
    gradients = torch.autograd.grad(
        [*results.values()],
        leaves,
        [drawn[name].to(dtype) for name in results],
        materialize_grads=True,
    )
    named_gradients = zip(launch.names, gradients, strict=True)
    wanted = launch.learning & {*launch.module.PLAN["gradients"]}
    own = {f"d_{name}": g for name, g in named_gradients if name in wanted}
    return {name: r.detach() for name, r in results.items()} | own, dict(drawn)


def _by_kernels(
    small: FormLaunch,
    theta: Sequence[Tensor],
    above: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> Results:
    with on_device(device), full_products(), torch.no_grad():
        run = small.to(device).run([tensor.to(device, dtype) for tensor in theta])
        formed, gradients = run.forward(), dict[str, Tensor]()
        if small.trains:
            gradients = run.backward({f"d_{n}": a.to(device, dtype) for n, a in above.items()})
    return {n: formed[n] for n in small.results} | {f"d_{n}": g for n, g in gradients.items()}


@contextmanager
def full_products() -> Iterator[None]:
    """Products of float32 in float32: what a caller allows is no fault of kernels."""
    matmul = torch.backends.cuda.matmul
    is_new = hasattr(matmul, "fp32_precision")
    setting = "fp32_precision" if is_new else "allow_tf32"
    before, full = getattr(matmul, setting), "ieee" if is_new else False
    setattr(matmul, setting, full)
    try:
        yield
    finally:
        setattr(matmul, setting, before)


def apart(formed: Tensor, true: Tensor) -> float:
    """How far by the largest number of the true one; infinite where one is no number."""
    error = (formed.detach().double().cpu().reshape(true.shape) - true).abs().amax()
    by_largest = float(error / true.abs().amax())
    return by_largest if by_largest == by_largest else float("inf")  # noqa: PLR0124 - NaN is not
