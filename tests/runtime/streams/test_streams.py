"""Streams: the sequence's bits step by step, rows that come and go, nothing allocated or locked."""

from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import cellgen
from cellgen.errors import ArgumentError, CellgenError
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.paths import generated_folder, include_folder
from cellgen.runtime.streams.part import StreamedLayer
from cellgen.runtime.streams.stream import Stream
from tests.conftest import SIZES
from tests.cover import each_name_of, of_call
from tests.runtime.call.test_parameters import FIXED
from tests.within import turn_of

HERE = Path(__file__).parent
Arrays = dict[str, np.ndarray]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def gru(**options: object) -> tuple[Kernel, Arrays, Stream]:
    kernel = cellgen.load("gru")
    weights = kernel.init(rng(), I=3, H=4)
    return kernel, weights, kernel.stream(weights, **options)


def sequence(kernel: Kernel, weights: Arrays, x: np.ndarray) -> np.ndarray:
    h_prev = np.zeros((x.shape[1], 4), x.dtype)
    return kernel.sequence_forward(x=x, h_prev=h_prev, **weights).h


def some(*shape: int) -> np.ndarray:
    return rng(1).standard_normal(shape, np.float32)


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_every_cell_has_the_bits_of_its_sequence(name: str) -> None:
    kernel = cellgen.load(name)
    function = kernel.sequence_forward.function
    sizes = {dim: SIZES[dim] for dim in function.dims} | {"T": 7, "B": 5}
    start = kernel.init(rng(), initial=FIXED.get(name), **sizes)
    weights = {n: a for n, a in start.items() if n not in function.states}
    shapes = kernel.shapes(**sizes)
    x = {n: abs(some(*shape)) for n, shape in shapes.items() if n not in start}
    timed = {item.name for item in function.arguments if item.over_time}
    whole = kernel.sequence_forward(**x, **start)
    first = next(item.name for item in function.results if item.over_time)
    expected = getattr(whole, first)
    stream = kernel.stream(weights, rows=5, room=9, block=4)

    def at(steps: object, rows: object = slice(None)) -> Arrays:
        return {n: cut(a, n in timed, steps, rows) for n, a in x.items()}

    stepped = [stream.step(at(t)).copy() for t in range(7)]
    np.testing.assert_array_equal(np.array(stepped), expected)
    for state, value in stream.states(2)[0].items():
        last = getattr(whole, f"{function.states[state]}_last")
        np.testing.assert_array_equal(value, last[2])
    stream.reset()
    blocks = [stream.run(at(slice(t, t + 4))).copy() for t in (0, 4)]
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    stream.reset()
    alone = [stream.step(at(t, [3, 0]), rows=[3, 0]).copy() for t in range(7)]
    np.testing.assert_array_equal(np.array(alone), expected[:, [3, 0]])


def cut(array: np.ndarray, over_time: bool, steps: object, rows: object) -> np.ndarray:
    """Some steps and rows of an input, or some rows of a static."""
    if not over_time:
        return array[rows]
    return array[steps][:, rows] if isinstance(steps, slice) else array[steps][rows]


def test_float64_scalars_and_another_output() -> None:
    kernel = cellgen.load("lstm_block_cell")
    weights = kernel.init(rng(), I=3, H=4, dtype=np.float64)
    x = rng().normal(size=(5, 2, 3))
    zeros = {n: np.zeros((2, 4)) for n in kernel.sequence_forward.function.states}
    for scalars in ({}, {"forget_bias": 0.25}):
        known = {a.name for a in kernel.sequence_forward.function.arguments}
        scalars = {n: v for n, v in scalars.items() if n in known}
        whole = kernel.sequence_forward(x=x, **zeros, **weights, **scalars)
        for output in ("h", "cs"):
            stream = kernel.stream({**weights, **scalars}, rows=2, output=output)
            stepped = np.array([stream.step(one).copy() for one in x])
            np.testing.assert_array_equal(stepped, getattr(whole, output))


def test_products_are_those_of_packed_weights() -> None:
    kernel, weights, _ = gru()
    x = some(6, 2, 3)
    for products in ("bf16", "int8"):
        packed = kernel.pack(**weights, products=products)
        h_prev = np.zeros((2, 4), np.float32)
        whole = kernel.sequence_forward(x=x, h_prev=h_prev, packed=packed).h
        stream = kernel.stream(weights, rows=2, products=products)
        np.testing.assert_array_equal(np.array([stream.step(one).copy() for one in x]), whole)


def test_layers_go_on_step_by_step() -> None:
    kernel = cellgen.load("lstm")
    weights = [[kernel.init(rng(n), I=wide, H=4)] for n, wide in enumerate((3, 4, 4))]
    layers = cellgen.Layers(kernel, weights)
    x = some(9, 2, 3)
    whole = layers.forward(x)
    stream = layers.stream(rows=2, block=3)
    np.testing.assert_array_equal(np.array([stream.step(one).copy() for one in x]), whole.output)
    stream.reset()
    pieces = [stream.run(x[t : t + 3]).copy() for t in (0, 3, 6)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole.output)
    for layer, states in enumerate(stream.states(1)):
        for name, array in states.items():
            last = whole.last[layer][0][name.removesuffix("_prev")]
            np.testing.assert_array_equal(array, last[1])


def test_layers_share_what_else_the_cell_reads() -> None:
    kernel = cellgen.load("gru_d")
    fixed = {"x_mean": np.zeros(4)}
    weights = [[kernel.init(rng(n), I=4, H=4, initial=fixed)] for n in range(2)]
    layers = cellgen.Layers(kernel, weights)
    shared = {"m": abs(some(5, 2, 4)), "delta": abs(some(5, 2, 4))}
    x = some(5, 2, 4)
    whole = layers.forward(x, shared=shared).output
    stream = layers.stream(rows=2)
    given = ({"x": x[t], **{n: a[t] for n, a in shared.items()}} for t in range(5))
    np.testing.assert_array_equal(np.array([stream.step(one).copy() for one in given]), whole)


def test_where_a_run_ended_another_goes_on() -> None:
    kernel = cellgen.load("lstm")
    for directions in (1, 2):
        wide = [3, 4 * directions]
        weights = [[kernel.init(rng(n), I=w, H=4) for n in range(directions)] for w in wide]
        layers = cellgen.Layers(kernel, weights)
        x = some(8, 2, 3)
        first = layers.forward(x[:5])
        by_last = layers.forward(x[5:], states=first.last).output
        named = [[{f"{n}_prev": a for n, a in own.items()} for own in one] for one in first.last]
        np.testing.assert_array_equal(by_last, layers.forward(x[5:], states=named).output)
        if directions == 1:
            np.testing.assert_array_equal(by_last, layers.forward(x).output[5:])
    twice = [[{"h": x[0, :, :2], "h_prev": x[0, :, :2]}], [{}]]
    layers = cellgen.Layers(kernel, [[kernel.init(rng(), I=w, H=4)] for w in (3, 4)])
    with pytest.raises(ArgumentError, match="states has h and h_prev, expected one of them"):
        layers.forward(x, states=twice)


def test_rows_join_leave_and_begin_anew() -> None:
    kernel, weights, stream = gru(rows=(), room=40)
    random, histories, alone = rng(3), {}, {}
    for tick in range(120):
        action = random.integers(4)
        if action == 0 and len(stream) < 40:
            stream.join(f"client {tick}")
            histories[f"client {tick}"] = []
        elif action == 1 and len(stream):
            gone = stream.ids[random.integers(len(stream))]
            stream.leave(gone)
            alone[gone] = histories.pop(gone)
        elif action == 2 and len(stream):
            anew = stream.ids[random.integers(len(stream))]
            stream.reset(anew)
            histories[anew] = []
        x = random.standard_normal((len(stream), 3), np.float32)
        names = list(stream.ids)
        if tick % 3 == 0 and names:
            chosen = [int(n) for n in random.permutation(len(names))[: 1 + len(names) // 2]]
            y = stream.step(x[chosen], rows=[names[n] for n in chosen])
            pairs = list(zip(chosen, y, strict=True))
        else:
            pairs = list(enumerate(stream.step(x)))
        for row, output in pairs:
            histories[names[row]].append((x[row], output.copy()))
    assert len(alone) > 10
    for history in [*alone.values(), *histories.values()]:
        if history:
            xs, ys = (np.array(each) for each in zip(*history, strict=True))
            np.testing.assert_array_equal(sequence(kernel, weights, xs[:, None])[:, 0], ys)


def test_thousands_of_clients_are_one_call() -> None:
    kernel, weights, stream = gru(rows=5000)
    x = some(2, 5000, 3)
    stepped = np.array([stream.step(one).copy() for one in x])
    np.testing.assert_array_equal(stepped, sequence(kernel, weights, x))


def test_states_are_saved_and_restored(tmp_path: Path) -> None:
    kernel, weights, stream = gru(rows=["a", "b", 7], room=5)
    x = some(9, 3, 3)
    for one in x[:4]:
        stream.step(one)
    path, memory = tmp_path / "stream.npz", io.BytesIO()
    stream.save(path)
    stream.save(memory)
    content = stream.to_bytes()
    rest = np.array([stream.step(one).copy() for one in x[4:]])
    for source in (path, str(path), io.BytesIO(memory.getvalue()), content):
        other = kernel.stream(weights, rows=["gone"], room=4)
        other.restore(source)
        assert other.ids == ("a", "b", 7)
        np.testing.assert_array_equal(np.array([other.step(one).copy() for one in x[4:]]), rest)
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    _, _, stream = gru()
    (tmp_path / "file").write_text("text")
    said = "gru.stream.save: file is .*, a folder, expected the path of a file; name one in it"
    with pytest.raises(ArgumentError, match=said):
        stream.save(str(tmp_path))
    for path, kind in ("gone/x.npz", FileNotFoundError), ("file/x.npz", NotADirectoryError):
        with pytest.raises(kind) as raised:
            stream.save(tmp_path / path)
        assert (raised.value.filename, raised.value.filename2) == (str(tmp_path / path), None)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def saved(name: str = "gru", rows: int = 1, **sizes: int) -> bytes:
    kernel = cellgen.load(name)
    return kernel.stream(kernel.init(rng(), **({"I": 3, "H": 4} | sizes)), rows=rows).to_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda: b"", "is no saved stream"),
        (lambda: b"abc", r"is no saved stream \(ValueError: 3 bytes of something else\), exp"),
        (lambda: saved()[:200], "is no saved stream"),
        (lambda: saved("lstm"), r"the states are of lstm, equations \w+, expected gru"),
        (lambda: saved(H=5), r"h_prev \(5,\) of float32, expected h_prev \(4,\) of float32"),
        (lambda: saved(rows=4), "4 rows were saved, expected at most 3; make the stream with mo"),
        (lambda: 3, "the source is 3, expected a path, a file or bytes"),
        (lambda: _npz(), "is no saved stream"),
    ],
)
def test_what_is_restored_is_checked(content: Callable[[], object], said: str) -> None:
    stream = gru(rows=["a"], room=3)[2]
    y = stream.step(some(1, 3)).copy()
    before = stream.states("a")[0]["h_prev"]
    with pytest.raises(ArgumentError, match=said):
        stream.restore(content())
    assert stream.ids == ("a",)
    assert np.array_equal(stream.states("a")[0]["h_prev"], before)
    assert np.array_equal(before, y[0])


def _npz() -> bytes:
    memory = io.BytesIO()
    np.savez(memory, a=np.ones(3))
    return memory.getvalue()


def of_layers(directions: int) -> object:
    kernel = cellgen.load("gru")
    return cellgen.Layers(kernel, [[kernel.init(rng(), I=3, H=4)] * directions]).stream()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.step(some(3, 3)), r"gru.stream.step: x is an array \(3, 3\) of float32, expe"),
        (
            lambda s: s.step(some(2, 3).astype("f8")),
            r"float64, expected a numpy.ndarray \(2, 3\) of float32, .*; pass x.astype\(np.float32",
        ),
        (lambda s: s.step([[1, 2, 3]] * 2), r"x is \[\[1, 2, 3\], .* expected a numpy.ndarray"),
        (lambda s: s.step(np.ma.zeros((2, 3), np.float32)), "x is a masked array"),
        (lambda s: s.step({"y": some(2, 3)}), "x has y, expected the inputs x; pass a dict"),
        (lambda s: s.step(some(1, 3), rows=["zoe"]), "'zoe' has no row, expected one of 'a', 'b'"),
        (lambda s: s.step(some(2, 3), rows=["a", "a"]), "rows has 'a' twice"),
        (lambda s: s.step(some(2, 3), rows=["a"]), r"expected a numpy.ndarray \(1, 3\)"),
        (lambda s: s.step(some(2, 3), rows=3), "rows is 3, expected ids of rows"),
        (lambda s: s.run(some(6, 2, 3)), r"x has 6 steps, expected \(T, 2, 3\) with T from 1 to 5"),
        (lambda s: s.run(some(0, 2, 3)), "x has 0 steps"),
        (lambda s: s.run(some(2, 3)), r"x is an array \(2, 3\) .*, expected .* \(2, 2, 3\)"),
        (lambda s: s.run(None), r"run: x is None, expected a numpy.ndarray \(5, 2, 3\) of float32"),
        (lambda s: s.join("a"), "'a' has a row already, expected a new id"),
        (lambda s: s.join(None), "the id is None, expected a text or an integer of"),
        (lambda s: (s.join("c"), s.join("d")), "all 3 rows are taken, expected a free one for 'd'"),
        (
            lambda s: s.join(1 << 2000),
            "expected a text or an integer of at most 1024",
        ),
        (lambda s: s.save(3), "gru.stream.save: file is 3, expected a path, or a file open for"),
        (lambda s: s.save("/"), "file is '/', expected a path"),
        (lambda _: gru(room=2**62), "rows has no size that 64 bits can hold; pass fewer rows"),
        (lambda _: gru(block=2**62), "no size that 64 bits can hold; .* or a smaller block"),
        (lambda s: s.leave("zoe"), "gru.stream.leave: 'zoe' has no row"),
        (lambda s: s.reset(2.5), "2.5 has no row, expected one of 'a', 'b'; let it join first"),
        (lambda s: s.states("zoe"), "'zoe' has no row"),
        (lambda _: gru(rows=-1), "rows is -1, expected an integer from 0"),
        (lambda _: gru(rows=["a", "a"]), "rows has 'a' twice, expected each id once"),
        (lambda _: gru(rows=[None]), "the id is None"),
        (lambda _: gru(rows=3, room=2), "room is 2, expected an integer from 3"),
        (lambda _: gru(block=0), "block is 0, expected an integer from 1"),
        (lambda _: gru(output="c"), "output is 'c', expected one of h"),
        (lambda _: gru(products="f8"), "products is 'f8', expected one of"),
        (lambda _: gru(H=5), "H is 5, but the weights have 4; leave it out"),
        (lambda _: gru(Q=5), "a dimension is 'Q', expected one of I, H"),
        (lambda _: cellgen.load("gru").stream({}), "argument w_z is missing"),
        (lambda _: cellgen.load("gru").stream(3), "weights is 3, expected a dict of arrays by na"),
        (lambda _: cellgen.load("gru").stream({"w": some(3, 4)}), "unknown 'w' in weights"),
        (lambda _: of_layers(2), "layers have two directions, expected one: the reverse one"),
    ],
)
def test_what_does_not_fit_is_one_clear_message(
    call: Callable[[Stream], object], said: str
) -> None:
    stream = gru(rows=["a", "b"], room=3, block=5)[2]
    with pytest.raises(ArgumentError, match=said):
        call(stream)
    assert stream.ids[:2] == ("a", "b")
    assert np.array_equal(stream.step(some(len(stream), 3))[:2], fresh_step())


def fresh_step() -> np.ndarray:
    return gru(rows=2)[2].step(some(3, 3)[:2])


def test_layers_must_fit_each_other() -> None:
    kernel = cellgen.load("gru")
    weights = [[kernel.init(rng(), I=3, H=4)], [kernel.init(rng(), I=5, H=4)]]
    with pytest.raises(ArgumentError, match=r"layer 1: x \(T, B, I\) is 5 wide, of float32, expec"):
        cellgen.Layers(kernel, weights).stream()
    weights[1] = [kernel.init(rng(), I=4, H=4, dtype=np.float64)]
    with pytest.raises(ArgumentError, match="is 4 wide, of float64, expected 4 of float32"):
        cellgen.Layers(kernel, weights).stream()


def test_a_closed_stream_says_so() -> None:
    with gru(rows=2)[2] as stream:
        assert stream.step(some(2, 3)).shape == (2, 4)
    assert "closed" in repr(stream)
    for call in (lambda: stream.step(some(2, 3)), lambda: stream.join("c"), stream.to_bytes):
        with pytest.raises(CellgenError, match="the stream is closed, expected an open one"):
            call()
    stream.close()
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(CellgenError, match="can be neither pickled nor copied; save its state"):
            move(stream)


def test_weights_that_change_afterwards_change_nothing() -> None:
    _, weights, stream = gru(rows=2)
    y = stream.step(some(2, 3)).copy()
    stream.reset()
    for array in weights.values():
        array[...] = np.nan
    np.testing.assert_array_equal(stream.step(some(2, 3)), y)


def test_a_stream_without_rows_steps() -> None:
    stream = gru(rows=0, room=2, block=2)[2]
    assert stream.step(some(0, 3)).shape == (0, 4)
    assert stream.run(some(2, 0, 3)).shape == (2, 0, 4)
    assert "late" not in stream
    stream.join("late")
    assert "late" in stream
    assert stream.step(some(1, 3)).shape == (1, 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_may_use_a_stream_that_its_parent_was_using() -> None:
    stream = gru(rows=2)[2]
    turn_of(stream).take("step")
    child = os.fork()
    if not child:
        os._exit(0 if stream.step(some(2, 3)).shape == (2, 4) else 1)
    turn_of(stream).give()
    assert os.waitpid(child, 0)[1] == 0


def test_the_interpreter_is_free_while_c_runs() -> None:
    kernel = cellgen.load("gru")
    stream = kernel.stream(kernel.init(rng(), I=64, H=64), rows=8, block=200)
    x, started, ran = some(200, 8, 64), threading.Event(), []

    def other() -> None:
        started.wait()
        ran.append(True)

    thread, interval = threading.Thread(target=other), sys.getswitchinterval()
    sys.setswitchinterval(100.0)  # a thread that runs is not asked to stop
    try:
        thread.start()
        started.set()
        for _ in range(50):
            stream.run(x)
            if ran:
                break
        assert ran
    finally:
        sys.setswitchinterval(interval)
        thread.join()


# --- what is allocated and locked ---------------------------------------------------------------

needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or bool(os.environ.get("LD_PRELOAD")), reason="needs glibc"
)


def compiled(folder: Path, *arguments: str) -> None:
    subprocess.run(["cc", "-O1", *arguments], check=True, cwd=folder, timeout=120)


@needs_glibc
def test_steps_allocate_nothing_and_lock_the_interpreter_alone(tmp_path: Path) -> None:
    compiled(tmp_path, "-shared", "-fPIC", str(HERE / "counted.c"), "-ldl", "-o", "counted.so")
    environment = {**os.environ, "LD_PRELOAD": str(tmp_path / "counted.so")}
    command = [sys.executable, "-m", "tests.runtime.streams.stepping"]
    made = subprocess.run(
        command, check=True, env=environment, capture_output=True, text=True, timeout=300
    )
    (_, *nothing), *lines = [line.split() for line in made.stdout.splitlines()]
    _, locks_of_a_call, _ = map(int, nothing)
    assert locks_of_a_call > 0  # Python's own, around every call of C: the counting sees locks
    assert len(lines) == 6
    for name, calls, allocations, locks, blocks in lines:
        assert int(allocations) == 0, name
        assert int(blocks) < 50, name  # of five hundred calls
        copies = 1  # NumPy lets the interpreter go while it copies a large x
        assert int(locks) <= locks_of_a_call * (int(calls) + copies), name


@needs_glibc
def test_steps_of_c_allocate_and_lock_nothing(tmp_path: Path) -> None:
    kernel = cellgen.load("gru")
    built = kernel.build().path
    folders = [f"-I{generated_folder() / 'gru'}", f"-I{include_folder()}"]
    sources = [str(HERE / "steps.c"), str(HERE / "counted.c")]
    run_path = f"-Wl,-rpath,{built.parent}"
    compiled(tmp_path, *sources, *folders, str(built), run_path, "-ldl", "-o", "steps")
    done = subprocess.run([tmp_path / "steps"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "code 0, equal 1, allocations 0, locks 0"


INTERRUPTED = {
    "step": ("scatter", lambda stream: stream.step(some(2, 3), rows=["c", "a"])),
    "join": ("begin", lambda stream: stream.join("d")),
    "leave": ("move", lambda stream: stream.leave("a")),
    "reset": ("begin", lambda stream: stream.reset("b")),
    "reset of all": ("begin", lambda stream: stream.reset()),
    "restore": ("put", lambda stream: stream.restore(saved_layers())),
}


def two_layers(ids: Sequence[str]) -> Stream:
    kernel = cellgen.load("gru")
    weights = [[kernel.init(rng(n), I=wide, H=4)] for n, wide in enumerate((3, 4))]
    return cellgen.Layers(kernel, weights).stream(rows=ids, room=4)


def saved_layers() -> bytes:
    stream = two_layers(["e", "f"])
    stream.step(some(2, 3))
    return stream.to_bytes()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("call", INTERRUPTED)
def test_after_ctrl_c_no_row_and_no_layer_is_ahead_of_the_others(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the first of two layers is done."""
    stream, twin = (two_layers(["a", "b", "c"]) for _ in range(2))
    part, run = INTERRUPTED[call]
    for one in (stream, twin):
        one.step(some(3, 3))
    run(twin)
    change = getattr(StreamedLayer, part)

    def interrupted(layer: StreamedLayer, *words: object) -> None:
        change(layer, *words)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StreamedLayer, part, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(stream)
    monkeypatch.undo()
    assert (stream.ids, stream.to_bytes()) == (twin.ids, twin.to_bytes())
    x = some(len(twin), 3)
    np.testing.assert_array_equal(stream.step(x), twin.step(x))
