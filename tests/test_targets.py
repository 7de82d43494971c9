"""Targets and backends: two tables, one API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cellgen
from cellgen import api
from cellgen.cells import LSTM, Elman
from cellgen.errors import BuildError
from cellgen.runtime.backend import BACKENDS, DEFAULT, backend
from cellgen.runtime.kernel import Kernel
from cellgen.targets import TARGETS

ROOT = Path(__file__).parent.parent


def test_every_target_has_a_backend_of_its_name() -> None:
    assert list(TARGETS) == list(BACKENDS)
    for name, target in TARGETS.items():
        assert (target.name, backend(name).name) == (name, name)
        assert backend(name).toolchain()
    assert DEFAULT in BACKENDS


def test_no_two_targets_write_the_same_file() -> None:
    suffixes = [suffix for target in TARGETS.values() for suffix in target.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    for name, target in TARGETS.items():
        written = api._generated(Elman, name).of(name)
        assert set(written) == {f"elman{suffix}" for suffix in target.suffixes}


@pytest.mark.parametrize(
    ("use", "imported"),
    [
        ("cellgen.load('elman').build()", []),
        ("cellgen.load; cellgen.compile; cellgen.load_cuda; cellgen.Layers; cellgen.Kernel", []),
        # rendering knows the structs of a .cu, which are plain data
        ("from cellgen.cells import Elman; cellgen.compile(Elman)", ["cuda_abi"]),
    ],
)
def test_what_is_not_for_cuda_imports_no_backend_of_it(use: str, imported: list[str]) -> None:
    code = f"import sys, cellgen, cellgen.api; {use}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "cellgen.runtime.backend" in loaded
    device = "cellgen.runtime.device."
    found = [name.removeprefix(device) for name in loaded if name.startswith(device)]
    assert found == imported


def test_loading_a_cuda_kernel_imports_no_compiler_of_cells() -> None:
    code = "import sys, cellgen; cellgen.load('elman', 'cuda'); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "cellgen.runtime.device.kernel" in loaded
    assert not loaded & {"sympy", "jinja2", "cellgen.targets"}


def test_the_target_is_c_where_none_is_named() -> None:
    assert isinstance(cellgen.load("elman"), Kernel)
    assert cellgen.load("elman", "c").interface == cellgen.load("elman").interface
    assert cellgen.compile(Elman, target="c").digest() == cellgen.compile(Elman).digest()


def test_a_kernel_is_the_same_under_both_spellings_of_cuda() -> None:
    one, other = cellgen.load("elman", "cuda", emulated=True), cellgen.load_cuda("elman")
    assert (one.interface, one.digest()) == (other.interface, other.digest())
    assert (one.emulated, other.emulated) == (True, False)
    one, other = cellgen.compile(Elman, "cuda"), cellgen.compile_cuda(Elman, emulated=True)
    assert (one.interface, one.digest()) == (other.interface, other.digest())
    assert (one.emulated, other.emulated) == (False, True)


@pytest.mark.parametrize("target", ["metal", "C", "", 3, None])
def test_a_target_that_is_not_there_is_said_with_those_that_are(target: str) -> None:
    for name, call in (
        ("load", lambda: cellgen.load("lstm", target)),
        ("compile", lambda: cellgen.compile(LSTM, target=target)),
    ):
        with pytest.raises(BuildError, match=f"{name}: target is .*, expected one of c, cuda"):
            call()


def test_a_target_without_an_emulation_refuses_to_emulate() -> None:
    with pytest.raises(BuildError, match="load: emulated is True, but target 'c' has no emulation"):
        cellgen.load("lstm", emulated=True)  # type: ignore[call-overload]
