"""Forms of scans and memories by the kernels of Triton, where a device has them: both passes.

Input: tensors of a call without gaps. Output: outputs over time and final states, differentiable
once by the module's own backward pass; further derivatives are those of torch's operators. Before
a cell is first run on a device by a version of Triton, its kernels are compared with the equations
at a small size, for compilers of devices have been wrong; ``CELLGEN_PROVE=0`` leaves that out.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from cellgen import api
from cellgen.errors import BuildError
from cellgen.runtime.build import cache
from cellgen.runtime.triton.assembler import require_assembler
from cellgen.runtime.triton.kernel import TritonKernel
from cellgen.torch.errors import DeviceRunError
from cellgen.torch.modes import is_transforming
from cellgen.torch.registry import Known

if TYPE_CHECKING:
    from cellgen.torch.passes import PlanRun

DEVICES = {"cuda"}
"""Types of devices whose tensors kernels run on. Tests put the CPU here, for the interpreter."""
BARS = {torch.float32: 1e-4, torch.float64: 1e-11}
"""The types of kernels, and how far they may be from the equations in float64, by the largest
number of a result: rounding of sums over some hundred steps."""
PROVED_STEPS, PROVED_ROWS, PROVED_LENGTH = 150, 2, 40
"""The size of the proof: steps that are no multiple of a segment, and at most so long axes."""

Exact: TypeAlias = Callable[[Sequence[Tensor]], Mapping[str, Tensor]]
"""A cell in torch's own operators: results by name of the tensors of a call."""


class HigherDerivativeWarning(UserWarning):
    """A derivative of a gradient goes by torch's operators in place of kernels."""


@dataclass(frozen=True)
class FormLaunch:
    """A cell's kernels for one call: names of arguments, of results, and sizes."""

    cell: str
    module: ModuleType
    names: tuple[str, ...]
    results: tuple[str, ...]
    sizes: Mapping[str, int]
    exact: Exact

    def run(self, theta: Sequence[Tensor]) -> PlanRun:
        """Set up a run of the plan."""
        from cellgen.torch.passes import PlanRun

        arrays = {n: t.detach().contiguous() for n, t in zip(self.names, theta, strict=True)}
        return PlanRun(self.module, dict(self.sizes), arrays)


class Launched(torch.autograd.Function):
    """Both passes of a plan as one function of torch.

    What the backward pass reads is saved by torch, which notices where it was changed in place,
    hands it to hooks of saved tensors and drops it after the pass. A pass forms its own arrays.
    """

    @staticmethod
    def forward(ctx: Any, launch: FormLaunch, *theta: Any) -> tuple[Tensor, ...]:
        """Run the forward pass."""
        with on_device(theta[0].device):
            run = launch.run(theta)
            formed = run.forward()
        kept = run.kept()
        ctx.launch, ctx.kept = launch, tuple(kept)
        ctx.save_for_backward(*theta, *kept.values())
        return tuple(formed[name] for name in launch.results)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients; where they are differentiated, by torch's operators."""
        launch: FormLaunch = ctx.launch
        saved, many = ctx.saved_tensors, len(launch.names)
        theta, is_needed = saved[:many], ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            _say_once()
            return None, *_differentiable(launch, theta, upstream, is_needed)
        above = {f"d_{name}": u for name, u in zip(launch.results, upstream, strict=True)}
        with on_device(theta[0].device):
            run = launch.run(theta)
            run.resume(dict(zip(ctx.kept, saved[many:], strict=True)))
            gradients = run.backward(above)
        return None, *(
            gradients[name].reshape(tensor.shape) if needs and name in gradients else None
            for name, tensor, needs in zip(launch.names, theta, is_needed, strict=True)
        )


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the one that kernels are launched on: Triton takes the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _differentiable(
    launch: FormLaunch, theta: Sequence[Tensor], upstream: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients that torch can differentiate again."""
    named = launch.exact(theta)
    results = [named[name] for name in launch.results]
    wanted = [t for t, is_needed in zip(theta, needed, strict=True) if is_needed]
    gradients = iter(
        torch.autograd.grad(results, wanted, upstream, create_graph=True, materialize_grads=True)
    )
    return [next(gradients) if is_needed else None for is_needed in needed]


@functools.cache
def _say_once() -> None:
    warnings.warn(
        "the gradient of a cell in chunks or scans is differentiated: that goes by torch's "
        "operators, which take longer than kernels",
        HigherDerivativeWarning,
        stacklevel=3,
    )


# --- which calls ---------------------------------------------------------------------------------


@functools.cache
def module_of(known: Known) -> ModuleType | None:
    """The generated module of a cell; None where there is none, or no Triton."""
    try:
        ships = known.text == known.kernel.name
        made = api.load(known.text, "triton") if ships else api.compile(known.cell, target="triton")
        module = made.module if isinstance(made, TritonKernel) else None
    except BuildError:
        return None
    return module if module is not None and "forward" in module.PLAN else None


def launch_of(
    known: Known, sizes: Mapping[str, int], theta: Sequence[Tensor], exact: Exact
) -> FormLaunch | None:
    """The launch of a call without gaps; None where torch's operators run it.

    Raises DeviceRunError where the kernels of a device have other results than the equations,
    DeviceError for an assembler that is known to be wrong.
    """
    if torch.compiler.is_compiling() or is_transforming() or known.layout.scalars:
        return None
    if theta[0].device.type not in DEVICES or theta[0].dtype not in BARS:
        return None
    module = module_of(known)
    if module is None:
        return None
    plan = module.PLAN
    if plan.get("memories"):  # products of matrices, which assemblers have spoilt
        _require_assembler(known.layout.cell, theta[0].device)
    names = tuple(item.name for item in known.layout.theta)
    results = (*plan["outputs"], *plan["last"])
    launch = FormLaunch(known.layout.cell, module, names, results, sizes, exact)
    if os.environ.get("CELLGEN_PROVE", "1") != "0":
        _prove_once(known, launch, theta[0].device, theta[0].dtype)
    return launch


def _require_assembler(cell: str, device: torch.device) -> None:
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        require_assembler(cell, 10 * major + minor)


# --- the proof at first use ----------------------------------------------------------------------


@functools.cache
def _proved() -> dict[str, bool]:
    return {}


def _prove_once(known: Known, launch: FormLaunch, device: torch.device, dtype: torch.dtype) -> None:
    """Compare once for each device, version and cell; the cache remembers."""
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    version = importlib.metadata.version("triton")
    told = (launch.cell, str(launch.module.__file__), device_name, version, str(dtype))
    assembler = os.environ.get("TRITON_PTXAS_PATH", "")
    key = "proved-" + hashlib.sha256("\n".join((*told, assembler)).encode()).hexdigest()[:32]
    if key in _proved():
        return
    if cache.recall(key) is None:
        apart, name = _farthest(known, launch, device, dtype)
        if not apart <= BARS[dtype]:
            raise DeviceRunError(
                f"{launch.cell}: {name} by kernels of Triton {version} on {device_name} is "
                f"{apart:.1e} from the equations, at most {BARS[dtype]:.0e} was expected: the "
                f"compiler of the device is wrong there; take another Triton or an assembler of "
                f"your own (TRITON_PTXAS_PATH), or pass form='step'",
                code="device.proof",
            )
        cache.remember(key, {"told": list(told), "apart": apart})
    _proved()[key] = True


def _farthest(
    known: Known, launch: FormLaunch, device: torch.device, dtype: torch.dtype
) -> tuple[float, str]:
    """The largest difference of results and gradients at a small size, and whose it is."""
    sizes = {name: min(size, PROVED_LENGTH) for name, size in launch.sizes.items()}
    sizes |= {"T": PROVED_STEPS, "B": PROVED_ROWS}
    small = FormLaunch(
        launch.cell, launch.module, launch.names, launch.results, sizes, launch.exact
    )
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.rand(known.layout.shape(name, sizes), generator=generator, dtype=torch.float64) * 0.8
        + 0.1
        for name in launch.names
    ]
    rounded = [tensor.to(dtype).to(device) for tensor in drawn]
    with torch.enable_grad():
        theta = [tensor.double().cpu().requires_grad_() for tensor in rounded]
        named = launch.exact(theta)
        expected = [named[name] for name in launch.results]
        above = [torch.rand(r.shape, generator=generator, dtype=r.dtype) for r in expected]
        wanted = torch.autograd.grad(expected, theta, above, materialize_grads=True)
    run = small.run(rounded)
    formed = run.forward()
    found = {name: formed[name] for name in launch.results}
    true = dict(zip(launch.results, expected, strict=True))
    upstream = {
        f"d_{name}": a.to(dtype).to(device) for name, a in zip(launch.results, above, strict=True)
    }
    gradients = run.backward(upstream)
    for name, gradient in zip(launch.names, wanted, strict=True):
        if name in gradients:
            found[f"d_{name}"], true[f"d_{name}"] = gradients[name], gradient
    errors = {name: _apart(array, true[name].detach()) for name, array in found.items()}
    name = max(errors, key=errors.__getitem__)
    return errors[name], name


def _apart(found: Tensor, true: Tensor) -> float:
    """How far by the largest number; infinite where one is no number."""
    error = (found.double().cpu().reshape(true.shape) - true).abs().amax()
    apart = float(error / true.abs().amax().clamp(min=1e-3))
    return apart if apart == apart else float("inf")  # noqa: PLR0124 - of NaN it is not
