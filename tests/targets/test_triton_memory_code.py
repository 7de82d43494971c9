"""Kernels of memories compile for Hopper and MI300 without a device; registers suffice.

Of the configurations that are taken first nothing is spilt at 64 keys and values, and less than
200 bytes at 128; RWKV-7's gradients, of two updates and an erased read by key, spill 8 at 64 too.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cellgen import Cell
from cellgen.cells import MLSTM, RWKV7, DeltaNet, GatedDeltaNet, GatedLinearAttention
from cellgen.proof.machine.assembled import assemble
from cellgen.proof.machine.compiled import HOPPER, MI300, SpecialisedKernel, compile_kernels
from cellgen.targets.triton.memory import MemoryKernels, memory_head
from cellgen.targets.triton.memory_plan import CONFIGURATIONS
from cellgen.targets.triton.plan import Configuration, Count, KernelLaunch
from tests.targets.test_triton_memories import CELLS, HEAD, spelled

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="Triton is not installed"
)
TYPES = {"streams": "*bf16", "float32": "*fp32", "int32": "*i32"}
SPILT = {64: 0, 128: 200}
LIMITS = {
    **{
        (cell, width): SPILT[width]
        for cell in (GatedLinearAttention, MLSTM, GatedDeltaNet, RWKV7)
        for width in SPILT
    },
    (RWKV7, 64): 8,
}


def launches_of(kernels: MemoryKernels) -> list[KernelLaunch]:
    """Each kernel once with each of its flags."""
    plan = kernels.plan
    every = (*plan.training, *plan.few_rows, *plan.backward)
    return list({(one.kernel, str(one.constants)): one for one in every}.values())


def first_of(kernels: MemoryKernels, kernel: str, width: int) -> Configuration:
    of = kernels.plan.configurations[kernel]
    return next(one for one in of if one.most >= width)


def specialised(
    path: Path,
    kernels: MemoryKernels,
    launch: KernelLaunch,
    one: Configuration,
    width: int,
    resets: bool = False,
) -> SpecialisedKernel:
    """A kernel with the types and constants of a launch, of bfloat16 streams."""
    buffers = kernels.plan.buffers
    signature = {p: TYPES[buffers[name].dtype] for p, name in launch.buffers.items()}
    signature |= dict.fromkeys(launch.sizes, "i32")
    constants = {name: _constant(of, width, resets) for name, of in launch.constants.items()}
    constants |= {name: one.blocks[name] for name in launch.blocks}
    return SpecialisedKernel(str(path), launch.kernel, signature, constants, one.warps, one.stages)


def _constant(of: Count | bool, width: int, resets: bool) -> int | bool | str:
    if isinstance(of, bool):
        return of
    return {"GAPS": resets, "RESETS": resets, "PRECISION": "tf32"}.get(str(of), width)


def module(cell: type[Cell], folder: Path) -> tuple[Path, MemoryKernels]:
    kernels = spelled(cell)
    path = folder / f"{cell.definition.name}.py"
    path.write_text(HEAD + memory_head(kernels.by_key) + "\n\n" + kernels.text)
    return path, kernels


def spilt(cell: type[Cell], width: int, folder: Path) -> dict[str, int]:
    """Bytes that each kernel spills in the configuration that is taken first."""
    path, kernels = module(cell, folder)
    launches = [one for one in launches_of(kernels) if not one.constants.get("EXACT")]
    wanted = [
        specialised(path, kernels, one, first_of(kernels, one.kernel, width), width)
        for one in launches
    ]
    made = compile_kernels(wanted, HOPPER)
    return {
        f"{one.kernel} {one.constants}": assemble(code.text).spilled
        for one, code in zip(wanted, made, strict=True)
    }


@pytest.mark.parametrize("cell", [GatedLinearAttention], ids=["gla"])
def test_registers_suffice_at_64_keys_and_values(cell: type[Cell], tmp_path: Path) -> None:
    bytes_spilt = spilt(cell, 64, tmp_path)
    assert max(bytes_spilt.values()) <= SPILT[64], bytes_spilt


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "width"), LIMITS)
def test_registers_suffice(cell: type[Cell], width: int, tmp_path: Path) -> None:
    bytes_spilt = spilt(cell, width, tmp_path)
    assert max(bytes_spilt.values()) <= LIMITS[cell, width], bytes_spilt


@pytest.mark.parametrize(("cell", "warps"), [(RWKV7, 8), (GatedLinearAttention, 4)])
def test_more_warps_share_a_state_that_erases_by_key(cell: type[Cell], warps: int) -> None:
    kernels = spelled(cell)
    scan = kernels.plan.training[-1].kernel
    assert first_of(kernels, scan, 128).warps == warps


CLEARING = (GatedDeltaNet, MLSTM, DeltaNet)
"""Erased reads; a column; no decay."""


@pytest.mark.slow
@pytest.mark.parametrize("cell", CLEARING, ids=lambda cell: cell.definition.name)
def test_kernels_that_clear_states_compile(cell: type[Cell], tmp_path: Path) -> None:
    path, kernels = module(cell, tmp_path)
    wanted = [
        specialised(path, kernels, launch, first_of(kernels, launch.kernel, 64), 64, True)
        for launch in launches_of(kernels)
    ]
    assert len(compile_kernels(wanted, HOPPER)) == len(wanted)


@pytest.mark.slow
def test_a_kernel_compiles_for_devices_of_amd(tmp_path: Path) -> None:
    path, kernels = module(GatedDeltaNet, tmp_path)
    launch = next(one for one in kernels.plan.backward if one.kernel.endswith("_gradients"))
    one = first_of(kernels, launch.kernel, 64)
    (made,) = compile_kernels([specialised(path, kernels, launch, one, 64)], MI300)
    assert "v_mfma" in made.text  # products of matrices by the units that are there for them


@pytest.mark.slow
@pytest.mark.parametrize("target", [HOPPER, MI300], ids=["hopper", "mi300"])
@pytest.mark.parametrize("width", CONFIGURATIONS)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.definition.name)
def test_every_configuration_compiles(
    cell: type[Cell], width: int, target: tuple[str, int | str, int], tmp_path: Path
) -> None:
    path, kernels = module(cell, tmp_path)
    wanted = [
        specialised(path, kernels, launch, one, width)
        for launch in launches_of(kernels)
        for one in kernels.plan.configurations[launch.kernel]
        if one.most == width
    ]
    assert len(compile_kernels(wanted, target)) == len(wanted)
