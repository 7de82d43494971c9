"""Pickling and copying: kernels, what they make, and what says that it cannot travel."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cellgen
from cellgen import Bias, Cell, H, I, Input, Layers, State, Weight, tanh
from cellgen.errors import BuildError, CellgenError, DeviceError
from cellgen.runtime import kernel
from cellgen.runtime.abi import ABI_VERSION
from cellgen.runtime.build import cache, compiler, driver
from cellgen.runtime.device.arrays import DeviceArray
from cellgen.runtime.kernel import Kernel, load_folder
from tests.within import forget_arrivals, kernel_behind

ROOT = Path(__file__).parents[3]
TOY = Path(__file__).parents[2] / "toy" / "toy_cell"
PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 2, 3))
WEIGHTS = {"w": RNG.normal(size=(3, 5)), "u": RNG.normal(size=(5, 5)), "b": np.ones(5)}
START = {"h_prev": np.zeros((2, 5))}

ANSWER = """
import pickle, sys
for name in ("sympy", "jinja2"):
    sys.modules[name] = None  # as where they are not installed
function, arguments = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pickle.dumps(function(**arguments)))
"""


@pytest.fixture(scope="module", autouse=True)
def compiled_as_where_it_arrives() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.conftest.QUICK_FLAGS", ())
        yield


@pytest.fixture(scope="module")
def own(compiled_as_where_it_arrives: None) -> Kernel:
    class Travelling(Cell):
        x, h_prev = Input(I), State(H)
        w, u, b = Weight(I, H), Weight(H, H), Bias(H)
        h = tanh(x @ w + h_prev @ u + b)

    return cellgen.compile(Travelling)


@pytest.fixture
def emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for the processes that start, and no kernel that arrived before."""
    forget_arrivals()
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def without_kernels(own: Kernel, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The same, but for the driver, which compiles for seconds."""
    shared = own.sources().driver()
    assert shared is not None
    made = driver.compiled(shared, compiler.compiler()).parent
    emptied: Path = request.getfixturevalue("emptied")
    emptied.mkdir(mode=0o700)
    shutil.copytree(made, emptied / "kernels" / made.name)
    (emptied / "kernels").chmod(0o700)
    return emptied


def elsewhere(function: Callable[..., object], **arguments: object) -> Any:
    """Call in a new process, which gets a pickle alone; return what it returned."""
    done = subprocess.run(
        [sys.executable, "-c", ANSWER],
        input=pickle.dumps((function, arguments)),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def forward(function: Callable[..., object]) -> np.ndarray:
    result = function(x=X, **START, **WEIGHTS)
    return result.h  # type: ignore[attr-defined, no-any-return]


# --- kernels ----------------------------------------------------------------------------------


def test_a_kernel_of_ones_own_is_compiled_where_it_arrives(
    own: Kernel, without_kernels: Path
) -> None:
    result = elsewhere(own.sequence_forward, x=X, **START, **WEIGHTS)
    np.testing.assert_array_equal(result.h, forward(own.sequence_forward))
    kernels = [path.name for path in (without_kernels / "kernels").iterdir()]
    cells = [name for name in kernels if not name.startswith("cellgen_driver")]
    assert cells == [own.build().path.parent.name]


def test_a_kernel_is_handed_to_a_spawned_process(own: Kernel, without_kernels: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found = pool.apply(forward, (own.sequence_forward,))
    np.testing.assert_array_equal(found, forward(own.sequence_forward))


def test_joblib_hands_a_kernel_to_its_workers(own: Kernel) -> None:
    joblib = pytest.importorskip("joblib")
    found = joblib.Parallel(n_jobs=2, backend="loky")(
        joblib.delayed(forward)(own.sequence_forward) for _ in range(3)
    )
    for one in found:
        np.testing.assert_array_equal(one, forward(own.sequence_forward))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_carries_a_kernel_and_its_functions(own: Kernel, protocol: int) -> None:
    again, function = pickle.loads(pickle.dumps((own, own.forward), protocol))
    assert again.interface == own.interface
    assert again.forward is function
    assert again.build().cached
    np.testing.assert_array_equal(forward(again.sequence_forward), forward(own.sequence_forward))


def test_a_kernel_that_comes_again_is_the_one_that_came(own: Kernel) -> None:
    sent = pickle.dumps(own)
    assert pickle.loads(sent) is pickle.loads(sent)


def test_a_copy_of_a_kernel_or_function_is_itself(own: Kernel) -> None:
    for item in (own, own.forward, own.sequence_backward):
        assert copy.copy(item) is item
        assert copy.deepcopy(item) is item


def test_a_shipped_kernel_travels_by_name() -> None:
    elman = cellgen.load("elman")
    sent = pickle.dumps(elman)
    assert len(sent) < 10_000 + len(pickle.dumps(elman.interface))
    assert b"#include" not in sent
    again = pickle.loads(sent)
    assert again.interface == elman.interface
    assert again.sources() == elman.sources()


def test_a_kernel_compiled_from_a_shipped_class_travels_by_name_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cellgen.cells import SHIPPED

    monkeypatch.setattr(Kernel, "build", lambda self: None)  # sources alone count here
    elman = next(cell for cell in SHIPPED if cell.definition.name == "elman")
    assert b"#include" not in pickle.dumps(cellgen.compile(elman))


def test_a_shipped_kernel_whose_sources_differ_there_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget_arrivals()
    sent = pickle.dumps(cellgen.load("elman"))
    monkeypatch.setattr(kernel, "shipped_digest", lambda name: "0" * cache.KEY_DIGITS)
    with pytest.raises(BuildError, match=r"elman: .*digest 0+, expected \w+.*same version"):
        pickle.loads(sent)


def test_sources_that_were_changed_on_the_way_are_refused(own: Kernel) -> None:
    sent = pickle.dumps(own).replace(b"tanh", b"sinh")
    with pytest.raises(BuildError, match=r"travelling: the sources in the pickle"):
        pickle.loads(sent)


def test_a_kernel_of_another_abi_is_refused(own: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(own)
    monkeypatch.setattr(kernel, "ABI_VERSION", ABI_VERSION + 1)
    forget_arrivals()
    with pytest.raises(BuildError, match=rf"ABI {ABI_VERSION}, expected {ABI_VERSION + 1}"):
        pickle.loads(sent)


def test_what_runs_is_what_travels_when_the_folder_changes(tmp_path: Path) -> None:
    shutil.copytree(TOY.parent, tmp_path / "toy")
    toy = load_folder(tmp_path / "toy" / "toy_cell")
    toy.build()
    sources = toy.sources()
    with (tmp_path / "toy" / "toy_cell" / "toy_cell.c").open("a") as file:
        file.write("/* changed */\n")
    assert pickle.loads(pickle.dumps(toy)).sources() == sources
    shutil.rmtree(tmp_path / "toy")
    assert pickle.loads(pickle.dumps(toy)).sources() == sources


# --- what kernels make ------------------------------------------------------------------------


def test_layers_travel_with_their_weights(own: Kernel, without_kernels: Path) -> None:
    second = {**WEIGHTS, "w": RNG.normal(size=(5, 5))}
    layers = Layers(own, [[WEIGHTS], [second]])
    run = layers.forward(X, save=True)
    found = elsewhere(layers.forward, x=X)
    np.testing.assert_array_equal(found.output, run.output)
    again, its_run = pickle.loads(pickle.dumps((layers, run)))
    d = np.ones_like(run.output)
    np.testing.assert_array_equal(
        again.backward(its_run, d).d_input, layers.backward(run, d).d_input
    )


def test_a_deep_copy_of_layers_has_weights_of_its_own(own: Kernel) -> None:
    weights = {name: array.copy() for name, array in WEIGHTS.items()}
    layers = Layers(own, [[weights]])
    apart, beside = copy.deepcopy(layers), copy.copy(layers)
    before = layers.forward(X).output
    weights["w"][...] = 0
    np.testing.assert_array_equal(apart.forward(X).output, before)
    np.testing.assert_array_equal(beside.forward(X).output, layers.forward(X).output)
    assert apart.kernel is own


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_packed_weights_are_packed_again(own: Kernel, protocol: int) -> None:
    packed = own.pack(**WEIGHTS)
    again = pickle.loads(pickle.dumps(packed, protocol))
    assert again.arguments["w"] is not packed.arguments["w"]
    expected = own.sequence_forward(x=X, **START, packed=packed).h
    np.testing.assert_array_equal(own.sequence_forward(x=X, **START, packed=again).h, expected)


def test_packed_weights_travel_to_another_process(own: Kernel, without_kernels: Path) -> None:
    packed = own.pack(**WEIGHTS)
    expected = own.sequence_forward(x=X, **START, packed=packed).h
    found = elsewhere(own.sequence_forward, x=X, **START, packed=packed)
    np.testing.assert_array_equal(found.h, expected)


def test_a_deep_copy_of_packed_weights_does_not_follow_the_first(own: Kernel) -> None:
    weights = {name: array.copy() for name, array in WEIGHTS.items()}
    packed = own.pack(**weights)
    apart = copy.deepcopy(packed)
    weights["w"][...] = 0
    found = own.sequence_forward(x=X, **START, packed=apart).h
    np.testing.assert_array_equal(found, forward(own.sequence_forward))


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_bound_call_says_that_it_cannot_travel(own: Kernel, act: Callable[..., object]) -> None:
    for function in (own.sequence_forward, own.forward):
        x = X if function is own.sequence_forward else X[0]
        bound = function.bind(x=x, **START, **WEIGHTS)
        with pytest.raises(CellgenError, match="neither pickled nor copied; send the kernel"):
            act(bound)


def test_a_cuda_kernel_travels_as_its_sources() -> None:
    made = cellgen.load_cuda("elman", emulated=True)
    again = pickle.loads(pickle.dumps(made.forward))
    assert (kernel_behind(again).interface, kernel_behind(again).emulated) == (made.interface, True)
    assert kernel_behind(again).sources == made.sources
    assert copy.deepcopy(made) is made
    assert copy.copy(made.forward) is made.forward


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_array_on_a_device_says_that_it_cannot_travel(act: Callable[..., object]) -> None:
    array = DeviceArray.__new__(DeviceArray)
    array.shape, array.dtype, array.device = (2, 3), "float32", 0
    with pytest.raises(DeviceError, match=r"\(2, 3\).*neither pickled nor copied.*numpy\(\)"):
        act(array)
