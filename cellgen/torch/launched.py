"""Forms of scans and memories by the kernels of Triton, where a device has them: both passes.

Input: tensors of a call, in the order in which its steps run. Output: outputs over time and final
states, differentiable once by the module's own backward pass; further derivatives are those of
torch's operators. Before a cell is first run on a device by a version of Triton, its kernels are
compared with the equations on few steps (``first_use``), for compilers of devices have been wrong.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cellgen import api
from cellgen.errors import BuildError
from cellgen.runtime.abi import Argument
from cellgen.runtime.options import BF16, BY_TYPE, FULL
from cellgen.runtime.triton.assembler import Assembler, assembler_in_use, take_assembler
from cellgen.runtime.triton.kernel import TritonKernel
from cellgen.torch.chunks.rows import Gaps
from cellgen.torch.devices import on_device
from cellgen.torch.memories import FIRST, Chosen
from cellgen.torch.modes import has_gradient, is_transforming
from cellgen.torch.registry import Known

if TYPE_CHECKING:
    from cellgen.torch.passes import PlanRun

DEVICES = {"cuda"}
"""Types of devices whose tensors kernels run on. Tests put the CPU here, for the interpreter."""
PRODUCTS = {
    torch.float32: (BY_TYPE, FULL),
    torch.float64: (BY_TYPE, FULL),
    torch.bfloat16: (BY_TYPE, BF16),
    torch.float16: (BY_TYPE,),
}
"""The types of tensors that kernels run on, and what products a call of them may ask for."""

Exact: TypeAlias = Callable[
    [Sequence[Tensor], Gaps | None, torch.dtype | None], Mapping[str, Tensor]
]
"""A cell in torch's own operators: results by name of the tensors of a call; outputs of steps that
are left out are 0."""


class HigherDerivativeWarning(UserWarning):
    """A derivative of a gradient goes by torch's operators in place of kernels."""


@dataclass(frozen=True)
class FormLaunch:
    """A cell's kernels for one call: names of arguments, of results, and sizes.

    ``call`` are the sizes of the call whose configuration is launched, where ``sizes`` are others.
    ``gaps``: steps that are left out or begin anew. ``trains``: that gradients may be asked for.
    ``chosen``: the configurations of memories.
    """

    cell: str
    module: ModuleType
    names: tuple[str, ...]
    results: tuple[str, ...]
    sizes: Mapping[str, int]
    exact: Exact
    known: Known
    learning: frozenset[str]
    call: Mapping[str, int] = field(default_factory=dict)
    gaps: Gaps | None = None
    trains: bool = True
    chosen: Chosen = FIRST

    @property
    def arguments(self) -> Sequence[Argument]:
        """The tensors of the call, in order."""
        return self.known.layout.theta

    @property
    def decays(self) -> frozenset[str]:
        """Arguments by which a memory decays as they are."""
        chunked = self.known.chunked
        return frozenset(name for name, _ in chunked.positive) if chunked else frozenset()

    def shape_of(self, item: Argument, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of an argument at other sizes."""
        return tuple(self.known.layout.shape(item.name, dict(sizes)))

    def to(self, device: torch.device) -> FormLaunch:
        """The same with its tables on a device."""
        if self.gaps is None:
            return self
        valid, restart = self.gaps.valid.to(device), self.gaps.restart.to(device)
        return replace(self, gaps=replace(self.gaps, valid=valid, restart=restart))

    def run(self, theta: Sequence[Tensor]) -> PlanRun:
        """Set up a run of the plan."""
        from cellgen.torch.passes import PlanRun

        arrays = {n: t.detach().contiguous() for n, t in zip(self.names, theta, strict=True)}
        gaps = self.gaps
        return PlanRun(
            self.module,
            dict(self.sizes),
            arrays,
            trains=self.trains,
            chosen=self.chosen.blocks,
            call=self.call,
            before=None if gaps is None else gaps.before,
            resets=gaps is None or gaps.resets,
        )


class Launched(torch.autograd.Function):
    """Both passes of a plan as one function of torch.

    What the backward pass reads is saved by torch, which notices where it was changed in place,
    hands it to hooks of saved tensors and drops it after the pass. A pass forms its own arrays.
    """

    @staticmethod
    def forward(ctx: Any, launch: FormLaunch, *theta: Any) -> tuple[Tensor, ...]:
        """Run the forward pass."""
        with _on_device_as_it_is(theta[0].device):
            run = launch.run(theta)
            formed = run.forward()
        if launch.trains:
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
            say_once()
            return None, *_differentiable(launch, theta, upstream, is_needed)
        above = {f"d_{name}": u for name, u in zip(launch.results, upstream, strict=True)}
        with _on_device_as_it_is(theta[0].device):
            run = launch.run(theta)
            run.resume(dict(zip(ctx.kept, saved[many:], strict=True)))
            gradients = run.backward(above)
        return None, *(
            gradients[name].reshape(tensor.shape).to(tensor.dtype)
            if needs and name in gradients
            else None
            for name, tensor, needs in zip(launch.names, theta, is_needed, strict=True)
        )


@contextmanager
def _on_device_as_it_is(device: torch.device) -> Iterator[None]:
    """Launch on a device, with products of the types that a plan has, whatever autocast says."""
    with on_device(device), torch.autocast(device.type, enabled=False):
        yield


def _differentiable(
    launch: FormLaunch, theta: Sequence[Tensor], upstream: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients that torch can differentiate again."""
    named = launch.exact(theta, launch.gaps, None)
    results = [named[name] for name in launch.results]
    wanted = [t for t, is_needed in zip(theta, needed, strict=True) if is_needed]
    gradients = iter(
        torch.autograd.grad(results, wanted, upstream, create_graph=True, materialize_grads=True)
    )
    return [next(gradients) if is_needed else None for is_needed in needed]


@functools.cache
def say_once() -> None:
    """Warn once a process."""
    warnings.warn(
        "the gradient of a cell in chunks or scans is differentiated: that goes by torch's "
        "operators, which take longer than kernels",
        HigherDerivativeWarning,
        stacklevel=3,
    )


# --- which calls ---------------------------------------------------------------------------------


@functools.cache
def module_of(known: Known) -> ModuleType | None:
    """The generated module of a cell; None where there is none, or no Triton.

    Raises BuildError for kernels that are not those of their list of digests.
    """
    try:
        ships = known.text == known.kernel.name
        kernel = (
            api.load(known.text, "triton") if ships else api.compile(known.cell, target="triton")
        )
        module = kernel.module if isinstance(kernel, TritonKernel) else None
    except BuildError as error:
        if error.code == api.STALE:
            raise
        return None
    return module if module is not None and "forward" in module.PLAN else None


def may_launch(known: Known, theta: Sequence[Tensor]) -> bool:
    """Whether kernels of a device may run the tensors of a call."""
    if torch.compiler.is_compiling() or is_transforming() or known.layout.scalars:
        return False
    if any(isinstance(tensor, FakeTensor) for tensor in theta):
        return False
    return theta[0].device.type in DEVICES and theta[0].dtype in PRODUCTS


def launch_of(
    known: Known,
    sizes: Mapping[str, int],
    theta: Sequence[Tensor],
    exact: Exact,
    learning: frozenset[str],
    gaps: Gaps | None = None,
) -> FormLaunch | None:
    """The launch of a call that kernels may run; None for a cell that has none.

    Raises DeviceRunError where the kernels of a device have other results than the equations,
    DeviceError for an assembler that is known to be wrong.
    """
    module = module_of(known)
    if module is None:
        return None
    plan = module.PLAN
    arch = arch_of(theta[0].device)
    if arch is not None:  # products of matrices are what assemblers have spoilt
        take_assembler(known.layout.cell, arch, multiplies=bool(plan.get("memories")))
    from cellgen.torch.choice import configured

    launch = FormLaunch(
        known.layout.cell,
        module,
        tuple(item.name for item in known.layout.theta),
        (*plan["outputs"], *plan["last"]),
        sizes,
        exact,
        known,
        learning,
        gaps=gaps,
        trains=has_gradient(theta),
    )
    return configured(launch, theta)


def arch_of(device: torch.device) -> int | None:
    """The compute capability of a device times ten; None where no assembler of NVIDIA's serves."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * int(major) + int(minor)


def assembler_of(device: torch.device) -> Assembler | None:
    """What Triton's kernels are assembled by for a device; None where nothing of NVIDIA's serves.

    Raises DeviceError for one that does not run.
    """
    arch = arch_of(device)
    return None if arch is None else assembler_in_use(arch)
