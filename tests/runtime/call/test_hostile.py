"""Whatever is handed in, at any argument of any public function: a result, or cellgen's own error.

Every function that people call stands below with arguments that are right. Each argument is
replaced by every value of a pool, and by what hypothesis draws, two at a time. What must be
refused, because it would be taken for something else, stands in lists of its own.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cellgen
from cellgen import Layers, accept, api
from cellgen.cells import GRU
from cellgen.compat import epynn, keras, mygrad, tf, torch
from cellgen.errors import ArgumentError, BuildError, CellgenError
from cellgen.masks import draw_masks
from cellgen.regularise import (
    dropconnect,
    masks_of,
    recurrent_dropout,
    variational_dropout,
    zoneout,
)
from cellgen.runtime.call import door
from cellgen.runtime.call.compiled import Extension
from cellgen.runtime.host.plans import Constants, SequencePlan
from cellgen.runtime.kernel import load_folder

ROOT = Path(__file__).parents[3]
T, B, I, H = 4, 3, 2, 5


# --- values that are meant to break something ----------------------------------------------------


class Liar:
    """Says that it is a number, a sequence and an array, and is none."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("no repr")

    __str__ = __repr__

    def __index__(self) -> Any:
        raise OverflowError("no index")

    __int__ = __float__ = __index__

    def __len__(self) -> int:
        return 2**62

    def __getitem__(self, index: object) -> Any:
        raise KeyError("no item")

    def __iter__(self) -> Any:
        raise RuntimeError("no iteration")

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def __bool__(self) -> bool:
        raise ValueError("the truth value is ambiguous")

    def __eq__(self, other: object) -> Any:
        raise ValueError("not comparable")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = object.__hash__


class Tensor:
    """What a tensor of another library looks like: it has a dtype and a shape, and raises."""

    dtype, shape, ndim, strides = np.dtype(np.float64), (B, I), 2, (16, 8)

    @property
    def flags(self) -> Any:
        raise RuntimeError("no flags on this device")

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


class Number(int):
    """An integer whose comparisons and conversions lie."""

    def __index__(self) -> Any:
        return "no"

    def __int__(self) -> Any:
        return 10**30

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__


class Names(dict):  # type: ignore[type-arg]
    """A dict that cannot be gone through."""

    def items(self) -> Any:
        raise RuntimeError("no items")

    __iter__ = keys = values = items


class Matrix(np.ndarray):
    """An array that says it has another shape."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (2**40, 3)


def arrays() -> list[np.ndarray]:
    """Arrays of every kind of dtype, rank and layout."""
    dtypes = ["?", "i1", "u8", "f2", "f4", "f8", "g", "c16", "O", "S3", "U2", "M8[s]", "m8[s]"]
    dtypes += [">f4", ">f8", "V4", [("a", "f4"), ("b", "i4")]]
    found = [np.zeros((B, I), dtype) for dtype in dtypes]
    found += [np.ones(shape) for shape in ((), (0,), (1,), (B,), (H,), (T, B, I), (T, B, H))]
    found += [np.ones((1,) * 33), np.zeros((0, B, I)), np.zeros((T, 0, I)), np.full((B, I), np.nan)]
    wide = np.ones((2 * B, 3 * I))
    found += [wide[::-2, ::3], wide.T, np.broadcast_to(1.0, (B, I)), np.frombuffer(bytes(48))]
    found += [np.ma.masked_all((B, I)), np.ones((B, I)).view(Matrix)]
    read_only = np.ones((B, I))
    read_only.flags.writeable = False
    return [*found, read_only, np.frombuffer(bytes(49), np.uint8)[1:].view("f8").reshape(B, I)]


NUMBERS = [0, 1, 2, 3, -1, -(2**63), 2**63 - 1, 2**63, 2**64, 2**70, -(2**70), 10**5000, Number(2)]
NUMBERS += [0.0, -0.0, 0.5, 2.5, -1.5, 1e308, float("inf"), float("-inf"), float("nan"), 1j]
NUMBERS += [Fraction(1, 3), Fraction(10**400), Decimal("0.5"), Decimal("sNaN"), True, False]
SCALARS = [
    np.int64(2),
    np.uint64(2**63),
    np.float16(0.5),
    np.float32(2),
    np.longdouble(1),
    np.True_,
]
SCALARS += [np.complex64(1), np.str_("gru"), np.bytes_(b"x"), np.datetime64("NaT"), np.void(b"ab")]
SCALARS += [np.timedelta64(3), np.array(2), np.array(True), np.array("x"), np.array(None)]
TEXTS = [
    "",
    "gru",
    "3",
    "²",
    "\ud800",
    "\0",
    "a'b\"c",
    "x" * 5000,
    b"gru",
    bytearray(b"x"),
    "~no/x",
]
NESTED = [[], (), {}, set(), [None], [[1], [2, 3]], [[]], [{}], [[{}]], [[None]], [[3]], [3], ["a"]]
NESTED += [{"h": None}, {3: 4}, {None: 1}, {"x": np.ones(3)}, [[{"w": 3}]], ({},), range(3), (1, 2)]
NESTED += [[np.ones(H)], [np.ones((B, H))] * 3, [True, False], [[True], [False, True]], [0.5] * B]
OBJECTS: list[Any] = [Liar(), [Liar()], {"h": Liar()}, Tensor(), Names(h=3), [[Names()]], object()]
OBJECTS += [int, len, lambda: 1, Ellipsis, NotImplemented, slice(3), memoryview(b"abcd"), GRU]
POOL: list[Any] = [None, *NUMBERS, *SCALARS, *TEXTS, *NESTED, *OBJECTS, *arrays(), Path("/nowhere")]


# --- calls that are right ------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A public function and arguments that it takes, by name; ``options`` may be left out."""

    function: Callable[..., object]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]


def real(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape)


def in_order(function: Callable[..., object]) -> Callable[..., object]:
    """Call by position, as PyTorch's functions are."""
    return lambda **given: function(*given.values())


def with_backward(function: Callable[..., Any], *names: str) -> Callable[..., object]:
    """Call the twin of a function, and then its ``backward`` with the arguments of these names."""

    def call(**given: Any) -> object:
        upstream = {name: given.pop(name) for name in names if name in given}
        return function(**given)[1](**upstream)

    return call


OVER_TIME = {
    "lengths": [T, 1, 0],
    "mask": np.ones((T, B), bool),
    "reset": np.zeros((T, B), bool),
    "reverse": False,
    "batch_first": False,
    "zero_output_for_mask": False,
    "threads": 1,
    "flush_denormals": False,
    "plan": None,
    "packed": None,
    "out": None,
}


def kernels() -> dict[str, Call]:
    """Functions of a kernel, of one step and over time."""
    gru = cellgen.load("gru")
    weights = {n: real(I, H) for n in ("w_r", "w_z", "w_n")}
    weights |= {n: real(H, H) for n in ("u_r", "u_z", "u_n")}
    weights |= {n: real(H) for n in ("b_r", "b_z", "b_n", "c_n")}
    step = {"x": real(B, I), "h_prev": real(B, H), **weights}
    long = {"x": real(T, B, I), "h_prev": real(B, H), **weights}
    done = gru.sequence_forward(**long, save=True)
    after = {"h": done.h, "saved": done.saved, "d_h": real(T, B, H), "d_h_last": real(B, H)}
    forward = {**OVER_TIME, "save": True, "last_only": False}
    backward = {**OVER_TIME, "window": 0, "bp_lim": None}
    dims = {"T": T, "B": B, "I": I, "H": H}
    plan = gru.sequence_forward.plan(**dims, threads=1)
    planned = {name: getattr(plan, name) for name in SequencePlan.__dataclass_fields__}
    own = cellgen.load("lstm_block_cell")
    scalars = own.functions["forward"].function.arguments
    peep = {
        a.name: real(*({"B": B, "I": I, "H": H}[n] for n in a.shape))
        for a in scalars
        if a.shape and all(n in "BIH" for n in a.shape)
    }
    peep["w"], peep["b"] = real(I + H, 4 * H), real(4 * H)
    return {
        "forward": Call(gru.forward, step, {"out": None}),
        "forward.scalars": Call(own.forward, peep, {"forget_bias": 1.0, "cell_clip": 3}),
        "forward.out": Call(
            lambda **given: gru.forward(**step, out=given), {}, {"h": np.empty((B, H))}
        ),
        "forward.bind": Call(gru.forward.bind, step, {"out": None}),
        "backward": Call(gru.backward, {**step, "d_h": real(B, H)}, {"out": None}),
        "sequence_forward": Call(gru.sequence_forward, long, forward),
        "sequence_forward.bind": Call(gru.sequence_forward.bind, long, forward),
        "measure": Call(
            gru.sequence_forward.measure, long, {n: forward[n] for n in ("mask", "reverse", "out")}
        ),
        "measure.backward": Call(
            gru.sequence_backward.measure, {**long, **after}, {"threads": 1, "window": 0}
        ),
        "sequence_backward": Call(gru.sequence_backward, {**long, **after}, backward),
        "sequence_backward.bp_lim": Call(
            gru.sequence_backward, {**long, **after, "bp_lim": 2}, {**OVER_TIME, "window": 0}
        ),
        "pack": Call(gru.pack, weights, {}),
        "plan": Call(
            gru.sequence_forward.plan, dims, {"threads": 1, "dtype": "f4", "constants": None}
        ),
        "plan.constants": Call(
            lambda **given: gru.sequence_forward.plan(**dims, constants=Constants(**given)),
            {},
            dict.fromkeys(Constants.__dataclass_fields__, -1),
        ),
        "plan.members": Call(
            lambda **given: gru.sequence_forward(**long, plan=SequencePlan(**given), threads=1),
            planned,
            {},
        ),
    }


def stacks() -> dict[str, Call]:
    """Layers of a cell, of one with a step's elapsed time and states of its own."""
    gru = cellgen.load("gru")
    names = {a.name: a for a in gru.functions["sequence_forward"].function.arguments}
    own = {
        n: real(*({"I": I, "H": H}[d] for d in a.shape)) for n, a in names.items() if a.is_weight
    }
    weights, states = [[own, own]], [[{"h_prev": real(B, H)}] * 2]
    layers = Layers(gru, weights)
    run = layers.forward(real(T, B, I), save=True)
    options = {n: v for n, v in OVER_TIME.items() if n not in ("threads", "plan", "packed", "out")}
    given = {"states": states, "inputs": [[{}, {}]], "shared": {}, "save": False, **options}
    return {
        "Layers": Call(Layers, {"kernel": gru, "weights": weights}, {"threads": 1, "reads": "x"}),
        "Layers.weights": Call(lambda **g: Layers(gru, [[g]]), own, {}),
        "Layers.forward": Call(layers.forward, {"x": real(T, B, I)}, {**given, "last_only": False}),
        "Layers.states": Call(
            lambda **g: layers.forward(real(T, B, I), [[g, g]]), {}, {"h_prev": real(B, H)}
        ),
        "Layers.backward": Call(
            layers.backward,
            {"run": run, "d_output": real(T, B, 2 * H)},
            {"d_last": [[{"h": real(B, H)}] * 2], "window": 0, "bp_lim": None},
        ),
    }


def drop_ins() -> dict[str, Call]:
    """The functions of other libraries."""
    return {**torch_calls(), **keras_calls(), **tf_calls(), **mygrad_calls(), **epynn_calls()}


def torch_calls() -> dict[str, Call]:
    found = {}
    for name, gates in (("gru", 3), ("lstm", 4), ("rnn_tanh", 1)):
        params = [real(gates * H, I), real(gates * H, H), real(gates * H), real(gates * H)]
        start = real(1, B, H)
        hx = (start, start) if name == "lstm" else start
        plain = {"input": real(T, B, I), "hx": hx, "params": params, "has_biases": True}
        plain |= {"num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False}
        plain |= {"batch_first": False}
        found[f"torch.{name}"] = Call(getattr(torch, name), plain, {"lengths": [T, 1, 0]})
        twin = with_backward(getattr(torch, f"{name}_vjp"), "d_output", "d_h_n", "d_c_n")
        upstream = {"d_output": real(T, B, H), "d_h_n": start, "d_c_n": None}
        found[f"torch.{name}_vjp"] = Call(twin, plain, upstream)
        one = {f"params[{k}]": array for k, array in enumerate(params)}
        found[f"torch.{name} params"] = Call(
            lambda _n=name, _p=plain, **g: getattr(torch, _n)(**{**_p, "params": [*g.values()]}),
            one,
            {},
        )
    return found


def keras_calls() -> dict[str, Call]:
    found = {}
    options = {"return_sequences": False, "return_state": False, "go_backwards": False}
    options |= {"zero_output_for_mask": False, "activation": "tanh"}
    for name, gates, states in (("gru", 3, 1), ("lstm", 4, 2), ("simple_rnn", 1, 1)):
        bias = real(2, 3 * H) if name == "gru" else real(gates * H)
        plain = {"sequence": real(B, T, I), "kernel": real(I, gates * H)}
        plain |= {"recurrent_kernel": real(H, gates * H)}
        given = {"initial_state": [real(B, H)] * states, "mask": np.ones((B, T), bool)}
        given |= {"bias": bias, **options}
        given |= {} if name == "simple_rnn" else {"recurrent_activation": "sigmoid"}
        given |= {"reset_after": True} if name == "gru" else {}
        found[f"keras.{name}"] = Call(getattr(keras, name), plain, given)
        upstream = {"d_output": real(B, H), "d_states": [real(B, H)] * states}
        twin = with_backward(getattr(keras, f"{name}_vjp"), *upstream)
        found[f"keras.{name}_vjp"] = Call(twin, plain, upstream)
    return found


def tf_calls() -> dict[str, Call]:
    gru = {"x": real(B, I), "h_prev": real(B, H), "w_ru": real(I + H, 2 * H)}
    gru |= {"w_c": real(I + H, H), "b_ru": real(2 * H), "b_c": real(H)}
    made = tf.gru_block_cell(**gru)
    after = {"r": made.r, "u": made.u, "c": made.c, "d_h": real(B, H)}
    lstm = {"cs_prev": real(B, H), "h_prev": real(B, H), "w": real(I + H, 4 * H)}
    lstm |= {"wci": real(H), "wcf": real(H), "wco": real(H), "b": real(4 * H)}
    one, many = {"x": real(B, I), **lstm}, {"seq_len_max": T, "x": real(T, B, I), **lstm}
    clip = {"cell_clip": 3.0, "use_peephole": False, "name": None}
    bias = {"forget_bias": 1.0, **clip}
    exact = {"clip_gradient": "exact", "cell_clip": 3.0}
    step = tf.lstm_block_cell(**one)._asdict()
    whole = tf.block_lstm(**many)._asdict()
    second = tf.block_lstm_v2(**many)._asdict()
    step.pop("h")
    of_step = {"cs_grad": real(B, H), "h_grad": real(B, H), "use_peephole": False}
    of_all = {"cs_grad": real(T, B, H), "h_grad": real(T, B, H), "use_peephole": False}
    return {
        "tf.gru_block_cell": Call(tf.gru_block_cell, gru, {"name": None}),
        "tf.gru_block_cell_grad": Call(tf.gru_block_cell_grad, {**gru, **after}, {}),
        "tf.lstm_block_cell": Call(tf.lstm_block_cell, one, bias),
        "tf.lstm_block_cell_grad": Call(tf.lstm_block_cell_grad, {**one, **step, **of_step}, exact),
        "tf.block_lstm": Call(tf.block_lstm, many, bias),
        "tf.block_lstm_grad": Call(tf.block_lstm_grad, {**many, **whole, **of_all}, exact),
        "tf.block_lstm_v2": Call(tf.block_lstm_v2, many, clip),
        "tf.block_lstm_grad_v2": Call(tf.block_lstm_grad_v2, {**many, **second, **of_all}, exact),
    }


def mygrad_calls() -> dict[str, Call]:
    plain = {"X": real(T, B, I)}
    for gate in "zrh":
        plain |= {f"U{gate}": real(I, H), f"W{gate}": real(H, H), f"b{gate}": real(H)}
    options = {"s0": real(B, H), "bp_lim": None, "dropout": 0.0, "constant": None}
    masks = {n: np.ones((B, H) if n[0] == "U" else (H, H)) for n in mygrad.MASKS}
    twin = with_backward(mygrad.gru_vjp, "G")
    return {
        "mygrad.gru": Call(mygrad.gru, plain, options),
        "mygrad.gru_vjp": Call(twin, {**plain, "G": real(T + 1, B, H)}, {"bp_lim": 2}),
        "mygrad.masks": Call(lambda **g: mygrad.gru_vjp(**plain, masks=g), masks, {}),
        "mygrad.draw_masks": Call(mygrad.draw_masks, {"dropout": 0.5, "N": B, "D": H}, {}),
    }


def epynn_calls() -> dict[str, Call]:
    parameters = {"U": real(I, H), "V": real(H, H), "b": real(1, H)}
    plain = {"X": real(B, T, I), "parameters": parameters}
    options = {"sequences": True, "activate": "tanh", "LRELU_alpha": 0.3, "ELU_alpha": 1.0}
    options |= {"dtype": np.float64}
    _, fc = epynn.rnn(**plain)
    backward = {**plain, "fc": fc, "dA": real(B, T, H)}
    return {
        "epynn.rnn": Call(epynn.rnn, plain, options),
        "epynn.rnn parameters": Call(lambda **g: epynn.rnn(plain["X"], g), parameters, {}),
        "epynn.rnn_backward": Call(epynn.rnn_backward, backward, {"clip_gradients": True}),
        "epynn.rnn_backward fc": Call(
            lambda **g: epynn.rnn_backward(**plain, fc=g, dA=real(B, T, H)), fc, {}
        ),
    }


def makers() -> dict[str, Call]:
    """What makes kernels, cells and masks."""
    masks = masks_of(zoneout(GRU))
    drawing = {"masks": masks, "sizes": {"B": B, "H": H}, "rate": 0.5, "seed": 3}
    times = {"step": 0, "steps": 2, "first": 0, "training": True, "dtype": np.float32}
    return {
        "load": Call(cellgen.load, {"name": "gru"}, {"target": "c", "emulated": False}),
        "load_cuda": Call(cellgen.load_cuda, {"name": "gru"}, {"emulated": True}),
        "load_folder": Call(load_folder, {"path": Path("/nowhere")}, {}),
        "compile": Call(
            lambda cell, **g: cellgen.compile(not_a_cell(cell), **g),
            {"cell": 3},
            {"target": "c", "emulated": False},
        ),
        "compile_cuda": Call(lambda cell: cellgen.compile_cuda(not_a_cell(cell)), {"cell": 3}, {}),
        "write": Call(lambda cell: api.write(not_a_cell(cell), Path("x")), {"cell": 3}, {}),
        "draw_masks": Call(draw_masks, drawing, times),
        "draw_masks.sizes": Call(
            lambda **g: draw_masks(masks, g, 0.5, seed=3), {"B": B, "H": H}, {}
        ),
        "masks_of": Call(masks_of, {"cell": GRU}, {}),
        "variational_dropout": Call(
            variational_dropout, {"cell": GRU}, {"inputs": ("x",), "states": ("h",), "name": "v"}
        ),
        "recurrent_dropout": Call(
            lambda cell, value, **g: recurrent_dropout(cell, value, **g),
            {"cell": GRU, "value": "n"},
            {"per_sequence": True, "name": "v"},
        ),
        "dropconnect": Call(
            lambda cell, value, **g: dropconnect(cell, value, **g),
            {"cell": GRU, "value": "u_n"},
            {"name": "v"},
        ),
        "zoneout": Call(
            lambda cell, value, **g: zoneout(cell, value, **g),
            {"cell": GRU, "value": "h"},
            {"per_sequence": True, "name": "v"},
        ),
        "Scalar": Call(cellgen.Scalar, {"default": 1.0}, {"gradient": True}),
        "State": Call(lambda **g: cellgen.State(cellgen.H, **g), {}, {"initial": 0.0}),
        "Input": Call(cellgen.Input, {}, {"gradient": True}),
        "Dim": Call(cellgen.Dim, {"name": "K"}, {}),
        "axes": Call(lambda **g: cellgen.Weight(*g.values()), {"one": cellgen.I, "two": 3}, {}),
        "class": Call(named_class, {}, {"name": "own", "partial": True, "renamed": ("h", "g")}),
        "replaced": Call(GRU.replaced, {"old": "h", "new": "h_raw"}, {}),
    }


def not_a_cell(value: object) -> Any:
    """A right cell would be compiled for every call; 3 stands for it."""
    return 3 if value is GRU else value


def named_class(**options: Any) -> object:
    class Named(cellgen.Cell, **options):
        x, h_prev = cellgen.Input(cellgen.I), cellgen.State(cellgen.I)
        h = cellgen.tanh(x + h_prev)

    return Named


GROUPS = {"kernels": kernels, "stacks": stacks, "drop-ins": drop_ins, "makers": makers}
SLOW = {"draw_masks", "draw_masks.sizes", "mygrad.draw_masks"}
"""What allocates as much as it is asked to."""


@cache
def calls(group: str) -> dict[str, Call]:
    return GROUPS[group]()


def is_bearable(name: str, value: object) -> bool:
    """Whether a call with this value ends soon: not a mask of 2**31 numbers, nor 1000 threads."""
    return not (name in SLOW and isinstance(value, int | np.integer) and 10**5 < abs(value) < 2**62)


def refusal(call: Call, given: Mapping[str, Any]) -> BaseException | None:
    """Make a call; return its error if it is one of cellgen's, or memory that is not there.

    Everything else is raised.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            call.function(**given)
        except (CellgenError, MemoryError) as error:
            str(error).encode("utf-8", "surrogatepass")
            return error
    return None


@pytest.mark.parametrize("group", GROUPS)
def test_the_calls_that_are_changed_are_right(group: str) -> None:
    for name, call in calls(group).items():
        error = refusal(call, {**call.arguments})
        expected = name in ("compile", "compile_cuda", "write", "load_folder", "Input")
        assert (error is not None) == expected, (name, error)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("parts", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_value_at_every_argument_gives_a_result_or_an_error_of_cellgen(
    group: str, parts: int
) -> None:
    """Of ``parts`` of the pool each argument meets one, and the next argument the next one."""
    faults, number = [], 0
    for name, call in calls(group).items():
        for argument in (*call.arguments, *call.options):
            number += 1
            for place, value in enumerate(POOL):
                if (place + number) % parts or not is_bearable(name, value):
                    continue
                try:
                    refusal(call, {**call.arguments, argument: value})
                except Exception as error:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    found = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
                    faults.append(f"{name}({argument}=POOL[{place}]): {found}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults[:60]])


UNREAD = {"measure(mask)", *(f"epynn.rnn_backward fc({name})" for name in ("X", "hp", "A"))}
"""Arguments whose entries the call does not read."""


@pytest.mark.parametrize("group", GROUPS)
def test_a_mask_of_an_array_s_own_is_not_dropped(group: str) -> None:
    dropped = set()
    for name, call in calls(group).items():
        for argument, value in {**call.options, **call.arguments}.items():
            if isinstance(value, np.ndarray) and value.ndim:
                masked = np.ma.masked_array(value, True)
                if refusal(call, {**call.arguments, argument: masked}) is None:
                    dropped.add(f"{name}({argument})")
    assert dropped <= UNREAD


@dataclass(frozen=True)
class Pooled:
    """Stands for a value of the pool, which may have no ``repr``."""

    place: int


def built(drawn: Any) -> Any:
    """Put the values of the pool in their places."""
    if isinstance(drawn, Pooled):
        return POOL[drawn.place]
    if isinstance(drawn, list):
        return [built(item) for item in drawn]
    return {n: built(i) for n, i in drawn.items()} if isinstance(drawn, dict) else drawn


def values() -> st.SearchStrategy[Any]:
    """Values of the pool, numbers and texts of every kind, and lists and dicts of them."""
    flat = st.one_of(
        st.integers(0, len(POOL) - 1).map(Pooled),
        st.integers(-(2**70), 2**70).filter(lambda n: not 7 < abs(n) < 2**62),
        st.floats(),
        st.text(max_size=4),
    )
    names = st.sampled_from(["h", "h_prev", "x", "w_n", "d_h", ""])
    return st.recursive(
        flat,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
        max_leaves=4,
    )


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("examples", [20, pytest.param(3000, marks=pytest.mark.slow)])
def test_what_is_drawn_at_two_arguments_gives_a_result_or_an_error_of_cellgen(
    group: str, examples: int
) -> None:
    known = calls(group)

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(known)))
        call = known[name]
        names = sorted({*call.arguments, *call.options})
        chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        changed = {argument: built(data.draw(values())) for argument in chosen}
        if all(is_bearable(name, value) for value in changed.values()):
            refusal(call, {**call.arguments, **changed})

    holds()


# --- what must be refused ------------------------------------------------------------------------


class Parameter:
    """What torch's Parameter does where NumPy asks for its numbers."""

    requires_grad = True

    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach()")


def without(name: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {key: array for key, array in arrays.items() if key != name}


def weights_of() -> dict[str, Any]:
    return dict(calls("stacks")["Layers.weights"].arguments)


def torch_params(**changed: Any) -> list[Any]:
    params = list(calls("drop-ins")["torch.gru"].arguments["params"])
    for place, array in changed.items():
        params[int(place[1:])] = array
    return params


REFUSED: list[tuple[str, str, Callable[[], dict[str, Any]], str]] = [
    (
        "kernels",
        "sequence_forward",
        lambda: {"lengths": [[1], [2, 3]]},
        "lengths is a list that Nu",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"lengths": np.ma.ones(B, int)},
        "lengths is a masked array",
    ),
    ("kernels", "sequence_forward", lambda: {"lengths": [1.0] * B}, "lengths has shape .* float64"),
    (
        "kernels",
        "sequence_forward",
        lambda: {"mask": np.ma.ones((T, B), bool)},
        "mask is a masked array",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"reverse": np.array([True, False])},
        "reverse is an arr",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"reverse": ""},
        "reverse is '', expected True or False",
    ),
    ("kernels", "sequence_forward", lambda: {"x": np.ma.ones((T, B, I))}, r"pass x\.filled"),
    ("kernels", "sequence_forward", lambda: {"save": 1}, "save is 1, expected True or False"),
    (
        "kernels",
        "sequence_forward",
        lambda: {"last_only": None},
        "last_only is None, expected True",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"zero_output_for_mask": "no"},
        "zero_output_for_mask is",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"flush_denormals": 0},
        "flush_denormals is 0, expected",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"threads": "2"},
        "threads is '2', expected a number fr",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"threads": True},
        "threads is True, expected a number",
    ),
    (
        "kernels",
        "sequence_forward",
        lambda: {"threads": 10**5000},
        "threads is an integer of 16610",
    ),
    ("kernels", "sequence_backward", lambda: {"window": 2**70}, r"window is .*at most 2\*\*63 - 1"),
    (
        "kernels",
        "sequence_backward",
        lambda: {"window": False},
        "window is False, expected a number",
    ),
    ("kernels", "sequence_backward.bp_lim", lambda: {"bp_lim": 2**70}, r"bp_lim is .*2\*\*63 - 1"),
    (
        "kernels",
        "sequence_backward.bp_lim",
        lambda: {"bp_lim": True},
        "bp_lim is True, expected a n",
    ),
    ("kernels", "sequence_backward.bp_lim", lambda: {"reverse": 2}, "reverse is 2, expected True"),
    ("kernels", "plan", lambda: {"T": 1.5}, "a plan needs the dimensions .* found T=1.5, B=3"),
    ("kernels", "plan", lambda: {"T": 2**64}, "a plan needs the dimensions"),
    ("kernels", "plan", lambda: {"B": True}, "a plan needs the dimensions .*B=True"),
    (
        "kernels",
        "plan",
        lambda: {"dtype": int},
        "dtype is <class 'int'>, expected np.float32 or np",
    ),
    ("kernels", "plan", lambda: {"constants": {}}, "constants are {}, expected Constants"),
    (
        "kernels",
        "plan.members",
        lambda: {"by_units": 1},
        "plan.by_units is 1, expected True or Fals",
    ),
    (
        "kernels",
        "plan.members",
        lambda: {"chunk_rows": 1.0},
        "plan.chunk_rows is 1.0, expected an i",
    ),
    (
        "stacks",
        "Layers",
        lambda: {"kernel": None},
        "kernel is None, expected a kernel; pass cellgen",
    ),
    (
        "stacks",
        "Layers",
        lambda: {"weights": None},
        r"weights is None, expected a list: weights\[la",
    ),
    ("stacks", "Layers", lambda: {"weights": 3}, "weights is 3, expected a list"),
    ("stacks", "Layers", lambda: {"weights": [3]}, r"weights\[0\] is 3, expected a dict for each"),
    ("stacks", "Layers", lambda: {"weights": [[None]]}, r"weights\[0\]\[0\] is None, expected a d"),
    ("stacks", "Layers", lambda: {"threads": "two"}, "threads is 'two', expected a number"),
    (
        "stacks",
        "Layers.weights",
        lambda: {"w_n": None},
        r"layer 0: w_n is None, expected a numpy.nd",
    ),
    ("stacks", "Layers.weights", lambda: {"w_m": np.ones(3)}, "unknown 'w_m' in weights; did you"),
    (
        "stacks",
        "Layers.weights",
        lambda: {"h_prev": real(B, H)},
        "h_prev is in weights, expected w",
    ),
    ("stacks", "Layers.forward", lambda: {"states": 3}, "states is 3, expected a list"),
    ("stacks", "Layers.forward", lambda: {"inputs": 3}, "inputs is 3, expected a list"),
    ("stacks", "Layers.forward", lambda: {"shared": 3}, "shared is 3, expected a dict"),
    ("stacks", "Layers.forward", lambda: {"x": 3}, "x is an int, expected a numpy.ndarray"),
    ("stacks", "Layers.forward", lambda: {"save": "no"}, "save is 'no', expected True or False"),
    ("stacks", "Layers.backward", lambda: {"run": None}, "run is NoneType, expected what forward"),
    (
        "stacks",
        "Layers.backward",
        lambda: {"d_output": [[1], [2, 3]]},
        "d_output is a list that Nu",
    ),
    (
        "drop-ins",
        "torch.gru",
        lambda: {"params": torch_params(_2=np.ones(1))},
        "bias_ih_l0 has shap",
    ),
    (
        "drop-ins",
        "torch.gru",
        lambda: {"params": torch_params(_3=np.ones(()))},
        "bias_hh_l0 has sha",
    ),
    ("drop-ins", "torch.gru", lambda: {"params": torch_params(_1=Parameter())}, "requires grad"),
    ("drop-ins", "torch.gru", lambda: {"input": Parameter()}, "input is a .*requires grad"),
    (
        "drop-ins",
        "torch.gru",
        lambda: {"num_layers": 1.0},
        "num_layers is 1.0, expected an integer",
    ),
    ("drop-ins", "torch.gru", lambda: {"has_biases": 1}, "has_biases is 1, expected True or False"),
    ("drop-ins", "torch.lstm", lambda: {"hx": None}, "hx is None, expected a pair: h_0, c_0"),
    (
        "drop-ins",
        "torch.gru_vjp",
        lambda: {"d_output": real(H)},
        "d_output has shape .*that of outp",
    ),
    (
        "drop-ins",
        "torch.gru_vjp",
        lambda: {"d_h_n": real(2, B, H)},
        "d_h_n has shape .*that of h_n",
    ),
    (
        "drop-ins",
        "torch.gru_vjp",
        lambda: {"d_c_n": real(1, B, H)},
        "d_c_n is given, expected none",
    ),
    ("drop-ins", "keras.gru", lambda: {"sequence": real(B, 0, I)}, "expected a step at least"),
    ("drop-ins", "keras.gru", lambda: {"initial_state": 3}, "initial_state is 3, expected a list"),
    (
        "drop-ins",
        "keras.gru",
        lambda: {"initial_state": [real(1, H)]},
        r"initial_state\[0\] has sh",
    ),
    ("drop-ins", "keras.gru", lambda: {"mask": np.full((B, T), "x")}, "mask is .*real numbers"),
    (
        "drop-ins",
        "keras.gru",
        lambda: {"reset_after": 1},
        "reset_after is 1, expected True or Fals",
    ),
    (
        "drop-ins",
        "keras.gru_vjp",
        lambda: {"d_output": real(H)},
        "d_output has shape .*that of the",
    ),
    (
        "drop-ins",
        "keras.gru_vjp",
        lambda: {"d_states": [None] * 2},
        "d_states holds 2 arrays, expec",
    ),
    ("drop-ins", "keras.gru_vjp", lambda: {"d_states": [real(H)]}, r"d_states\[0\] has shape \(5,"),
    ("drop-ins", "tf.block_lstm", lambda: {"seq_len_max": 2.5}, "seq_len_max is 2.5 .* an integer"),
    ("drop-ins", "tf.block_lstm", lambda: {"seq_len_max": True}, "seq_len_max is True"),
    ("drop-ins", "tf.block_lstm", lambda: {"seq_len_max": "3"}, "seq_len_max is '3'"),
    ("drop-ins", "tf.block_lstm", lambda: {"seq_len_max": [3]}, r"seq_len_max is \[3\]"),
    (
        "drop-ins",
        "tf.block_lstm",
        lambda: {"use_peephole": "no"},
        "use_peephole is 'no', expected T",
    ),
    (
        "drop-ins",
        "tf.block_lstm_grad",
        lambda: {"cs_grad": real(9, B, H)},
        "cs_grad has shape .*T =",
    ),
    (
        "drop-ins",
        "tf.block_lstm_grad",
        lambda: {"h_grad": real(1, B, H)},
        "h_grad has shape .*T = 4",
    ),
    (
        "drop-ins",
        "mygrad.gru",
        lambda: {"bp_lim": True},
        "bp_lim is True, expected None or an integ",
    ),
    ("drop-ins", "mygrad.gru", lambda: {"dropout": "0"}, "dropout is '0', expected a number in"),
    (
        "drop-ins",
        "mygrad.gru",
        lambda: {"constant": "yes"},
        "constant is 'yes', expected True or Fa",
    ),
    (
        "drop-ins",
        "epynn.rnn",
        lambda: {"dtype": int},
        "dtype is <class 'int'>, expected np.float32",
    ),
    ("drop-ins", "epynn.rnn", lambda: {"X": real(B, 0, I), "sequences": False}, "a step at least"),
    (
        "drop-ins",
        "epynn.rnn parameters",
        lambda: {"Uz": real(I, H)},
        "parameters hold Uz, expected",
    ),
    ("makers", "load", lambda: {"name": None}, "load: name is None, expected that of a cell"),
    ("makers", "compile", lambda: {"cell": []}, r"expected a subclass of cellgen.Cell, found \[\]"),
    (
        "makers",
        "masks_of",
        lambda: {"cell": None},
        "expected a subclass of cellgen.Cell, found None",
    ),
    ("makers", "zoneout", lambda: {"value": 3}, "a state is 3, expected its name"),
    ("makers", "zoneout", lambda: {"per_sequence": "no"}, "per_sequence is 'no', expected True or"),
    ("makers", "variational_dropout", lambda: {"inputs": 3}, "inputs is 3, expected names"),
    (
        "makers",
        "draw_masks",
        lambda: {"training": "no"},
        "training is 'no', expected True or False",
    ),
    (
        "makers",
        "draw_masks",
        lambda: {"dtype": int},
        "dtype is <class 'int'>, expected one of floa",
    ),
    (
        "makers",
        "draw_masks",
        lambda: {"seed": np.timedelta64(3)},
        "seed is .*expected an integer fr",
    ),
    ("makers", "class", lambda: {"name": 3}, "name is 3, expected a text, such as name='named'"),
    (
        "makers",
        "class",
        lambda: {"nmae": "x"},
        "unknown nmae in the class statement, expected name",
    ),
    ("makers", "Scalar", lambda: {"default": 10**400}, "the default must be a finite number"),
    ("makers", "Scalar", lambda: {"default": True}, r"Scalar\(True\): the default must be a fin"),
    ("makers", "Dim", lambda: {"name": 3}, r"Dim\(3\): the name must be a text"),
    ("makers", "axes", lambda: {"one": True}, "True is no axis length"),
    ("makers", "axes", lambda: {"two": 2**31}, "2147483648 is no axis length"),
]


@pytest.mark.parametrize(
    ("group", "name", "changes", "message"),
    REFUSED,
    ids=[f"{name}-{place}" for place, (_, name, _, _) in enumerate(REFUSED)],
)
def test_what_would_be_taken_for_something_else_is_refused(
    group: str, name: str, changes: Callable[[], dict[str, Any]], message: str
) -> None:
    call = calls(group)[name]
    with pytest.raises(CellgenError, match=message):
        call.function(**{**call.arguments, **changes()})


def test_a_missing_weight_is_named_when_layers_are_made() -> None:
    gru, weights = cellgen.load("gru"), weights_of()
    with pytest.raises(
        ArgumentError, match=r"Layers\(gru\), layer 1: weights has no u_r, expected"
    ):
        Layers(gru, [[weights], [without("u_r", weights)]])
    with pytest.raises(ArgumentError, match="layer 0, direction 1: weights has no b_z"):
        Layers(gru, [[weights, without("b_z", weights)]])


def test_a_run_of_other_layers_is_refused() -> None:
    gru, weights = cellgen.load("gru"), weights_of()
    run = Layers(gru, [[weights]]).forward(real(T, B, I), save=True)
    with pytest.raises(ArgumentError, match=r"run is of layers with \[1\] directions"):
        Layers(gru, [[weights, weights]]).backward(run)


def test_a_plan_that_is_given_to_a_measurement_is_refused() -> None:
    call = calls("kernels")["sequence_forward"]
    with pytest.raises(ArgumentError, match="measure: plan is given, expected none: it finds one"):
        cellgen.load("gru").sequence_forward.measure(**call.arguments, plan=None)


@pytest.mark.parametrize("text", ["²", "٣", "two", "-1", "1.0", "9" * 5000, "0"])
def test_a_wrong_number_of_threads_in_the_environment_is_named(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = calls("kernels")["sequence_forward"]
    monkeypatch.setenv("CELLGEN_NUM_THREADS", text)
    with pytest.raises(
        ArgumentError, match=r"CELLGEN_NUM_THREADS is .*expected a number from 1 to"
    ):
        call.function(**call.arguments)


def test_a_wrong_word_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_CALLS", "rust")
    said = r"CELLGEN_CALLS is 'rust', expected python or c; correct or unset it"
    with pytest.raises(ArgumentError, match=said):
        Extension().get()
    with pytest.raises(ArgumentError, match=said):
        door.described()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CC", 'gcc "', "CC is .*which a shell could not split into words"),
        ("CELLGEN_CFLAGS", "-O1 '", "CELLGEN_CFLAGS is .*close its quotes, or unset it"),
        ("CELLGEN_CACHE_DIR", "~nobody_at_all/x", "CELLGEN_CACHE_DIR is .*which names no folder"),
        ("CELLGEN_CACHE_DIR", "/tmp/" + "x" * 300, "cannot write to the kernel cache .*too long"),
        (
            "CELLGEN_BUILD_TIMEOUT",
            "nan",
            "CELLGEN_BUILD_TIMEOUT is 'nan', expected a number of sec",
        ),
    ],
)
def test_a_wrong_environment_is_an_error_of_the_build(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CELLGEN_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("CELLGEN_CC", "CELLGEN_CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BuildError, match=message):
        load_folder(ROOT / "generated" / "elman").build()


# --- the gate itself -----------------------------------------------------------------------------


def test_numbers_pass_the_gate_as_plain_numbers_of_python() -> None:
    for value in (2, np.int8(2), np.uint64(2), np.array(2), Number(2)):
        found = accept.whole("here", "count", value)
        assert (found, type(found)) == (2, int)
    for value in (0.5, np.float16(0.5), np.longdouble(0.5), np.array(0.5), Fraction(1, 2)):
        found = accept.real("here", "rate", value)
        assert (found, type(found)) == (0.5, float)
    for value in (True, np.True_):
        assert accept.flag("here", "on", value) is True


@pytest.mark.parametrize(
    "value", [True, 2.0, "2", [2], None, np.array([2]), np.timedelta64(2), np.ma.array(2), Liar()]
)
def test_what_is_no_integer_does_not_pass(value: object) -> None:
    with pytest.raises(ArgumentError, match=r"here: count is .*, expected an integer from 0 to 2"):
        accept.whole("here", "count", value)


@pytest.mark.parametrize("value", [float("nan"), True, "0.5", 1j, Fraction(10**400), Decimal(1), 2])
def test_what_is_no_probability_does_not_pass(value: object) -> None:
    with pytest.raises(ArgumentError, match=r"here: rate is .*, expected 0 to 1"):
        accept.real("here", "rate", value, 0, 1)


def test_every_value_can_be_shown_in_a_line() -> None:
    for value in POOL:
        text = accept.quoted(value)
        assert "\n" not in text
        assert len(text) <= 2 * accept.MOST_CHARACTERS


def test_a_word_that_is_no_dtype_is_none() -> None:
    with pytest.raises(ArgumentError, match="dtype is 'junk', expected"):
        cellgen.load("gru").sequence_forward.plan(T=2, B=2, I=2, H=2, dtype="junk")
