"""What one call hands to another knows where it comes from: packed weights, and saved arrays."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cache

import numpy as np
import pytest

import cellgen
from cellgen import Cell, H, I, Input, State, Weight, sigmoid, tanh
from cellgen.errors import ArgumentError, CellgenError
from tests.drawing import draw_arrays

SIZES = {"T": 6, "B": 3, "I": 4, "H": 8}
LENGTHS = [6, 2, 0]


def declared(change=1.0, swapped=False):
    """A cell of one name: what it computes and how its weights are laid out may change."""

    class Recast(Cell):
        x, h_prev = Input(I), State(H)
        w_a, w_b, u = Weight(I, H), Weight(I, H), Weight(H, H)
        gate = sigmoid(x @ (w_b if swapped else w_a) + h_prev @ u)
        h = gate * tanh(change * (x @ (w_a if swapped else w_b))) + (1 - gate) * h_prev

    return Recast


@cache
def kernel_of(change=1.0, swapped=False):
    return cellgen.compile(declared(change, swapped))


def parted(arguments):
    """Weights, and the rest."""
    names = [name for name in arguments if name[0] in "wub"]
    return {n: arguments[n] for n in names}, {n: a for n, a in arguments.items() if n not in names}


def table(seed=1, share=0.6):
    return np.random.default_rng(seed).random((SIZES["T"], SIZES["B"])) < share


# --- packed weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"change": 2.0}, {"swapped": True}])
def test_weights_packed_for_another_cell_of_the_name_are_refused(other):
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed = kernel_of(**other).pack(**weights)
    assert packed.cell == kernel_of().name == "recast"
    for kernel in (kernel_of(), kernel_of()):
        with pytest.raises(ArgumentError, match="of another version of this cell, expected what"):
            kernel.sequence_forward(**rest, packed=packed)


def test_a_cell_without_weights_has_nothing_to_pack():
    class Decaying(Cell):
        x, h_prev = Input(H), State(H)
        h = tanh(x) + h_prev / 2

    with pytest.raises(ArgumentError, match=r"decaying\.pack: this cell has no weights; call it"):
        cellgen.compile(Decaying).pack()


def test_another_kernel_of_the_same_sources_takes_packed_weights():
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed, twin = kernel_of().pack(**weights), cellgen.compile(declared())
    assert twin is not kernel_of()
    expected = kernel_of().sequence_forward(**rest, **weights).h
    assert np.array_equal(twin.sequence_forward(**rest, packed=packed).h, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"dims": (("I", 4), ("H", 7))},
        {"dims": (("I", 4), ("H", 80))},
        {"dtype": "float32"},
        {"arguments": ()},
    ],
)
@pytest.mark.parametrize("forgetful", [False, True])
def test_packed_weights_that_were_changed_are_refused(change, forgetful):
    """Also where the layout that does not fit was left out."""
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed = kernel_of().pack(**weights)
    other = dataclasses.replace(packed, weights=packed.weights._replace(**change))
    if forgetful:
        other = dataclasses.replace(other, layouts={})
    with pytest.raises(ArgumentError, match=r"pack again|is missing"):
        kernel_of().sequence_forward(**rest, packed=other)


def test_packed_weights_given_other_arrays_of_their_shapes_are_refused():
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed = kernel_of().pack(**weights)
    others = tuple((name, array.copy()) for name, array in packed.weights.arguments)
    changed = dataclasses.replace(packed, weights=packed.weights._replace(arguments=others))
    with pytest.raises(ArgumentError, match=r"changed since recast\.pack made it .* pack again"):
        kernel_of().sequence_forward(**rest, packed=changed)


def test_packed_weights_cannot_be_changed_in_place():
    weights, _ = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed = kernel_of().pack(**weights)
    with pytest.raises(dataclasses.FrozenInstanceError):
        packed.weights = packed.weights
    with pytest.raises(AttributeError):
        packed.weights.dims = ()
    packed.arguments["u"] = packed.dims["H"] = None
    assert packed.arguments["u"] is not None
    assert packed.dims["H"] == SIZES["H"]


def test_the_memory_of_packed_weights_stays():
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    packed = kernel_of().pack(**weights)
    with pytest.raises(ValueError, match="cannot resize"):
        weights["u"].resize((80, 80), refcheck=False)
    assert np.isfinite(kernel_of().sequence_forward(**rest, packed=packed).h).all()


class Spelled(Cell):
    """Names that a member of the C struct has already, or that C cannot spell."""

    x, h_prev = Input(I), State(H)
    workspace, λ = Weight(I, H), Weight(H, H)
    h = tanh(x @ workspace + h_prev @ λ)


def test_weights_that_c_calls_otherwise_are_packed():
    kernel = cellgen.compile(Spelled)
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    weights = {n: arguments.pop(n) for n in ("workspace", "λ")}
    found = kernel.sequence_forward(**arguments, packed=kernel.pack(**weights)).h
    assert np.array_equal(found, kernel.sequence_forward(**arguments, **weights).h)


def test_too_few_packed_bytes_are_refused_in_c():
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    kernel = kernel_of()
    packed, function = kernel.pack(**weights), kernel.sequence_forward
    kernel.sequence_forward(**rest, packed=packed)
    key, layout = next(iter(packed.layouts.items()))
    short = layout.memory.bytes - 1
    memory = dataclasses.replace(layout.memory, bytes=short)
    packed.layouts[key] = layout._replace(memory=memory)
    packed.doors.clear()
    with pytest.raises(CellgenError, match="returned 7: packed weights are of fewer bytes"):
        kernel.sequence_forward(**rest, packed=packed)
    library, sizes = kernel.library(), (0, 0, SIZES["I"], SIZES["H"])
    symbols = kernel.interface.symbols(function.function, "f64")
    given = {
        n: library.ffi.from_buffer(library.ffi.typeof("double[]"), a) for n, a in weights.items()
    }
    struct = library.ffi.new(f"{symbols.struct} *", given)
    pack = getattr(library.lib, symbols.pack)
    assert pack(*sizes, struct, layout.memory.pointer, short) == 7
    assert pack(*sizes, struct, layout.memory.pointer, short + 1) == 0


# --- what a forward pass saves ----------------------------------------------------------------


def saving(kernel, **options):
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    y = kernel.sequence_forward(**arguments, **options, save=True)
    return y, {**arguments, "h": y.h, "saved": y.saved, "d_h": np.ones_like(y.h)}


@pytest.mark.parametrize("how", [{}, {"bp_lim": 2}])
def test_what_another_cell_of_the_name_saved_is_refused(how):
    y, call = saving(kernel_of())
    other, _ = saving(kernel_of(change=2.0))
    assert y.saved._fields == other.saved._fields
    with pytest.raises(ArgumentError, match="saved is of another version of recast, expected"):
        kernel_of().sequence_backward(**{**call, "saved": other.saved}, **how)
    with pytest.raises(ArgumentError, match="saved is of another version of recast, expected"):
        kernel_of().sequence_backward.bind(**{**call, "saved": other.saved})


OPTIONS = {
    "reverse": {"reverse": True},
    "mask": {"mask": table()},
    "mask, zeros": {"mask": table(), "zero_output_for_mask": True},
    "reset": {"reset": table(2, 0.3)},
    "lengths": {"lengths": LENGTHS},
    "all": {"mask": table(), "reset": table(2, 0.3), "lengths": LENGTHS, "reverse": True},
}
LIMITS = [{}, {"window": 2}, {"bp_lim": 2}]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("limit", LIMITS, ids=["", "window", "bp_lim"])
def test_saved_brings_the_options_of_its_run(options, limit):
    y, call = saving(kernel_of(), **options)
    expected = kernel_of().sequence_backward(**call, **options, **limit)
    by_name = {**call, "saved": y.saved._asdict()}
    vouched = kernel_of().sequence_backward(**by_name, **options, **limit)
    found = kernel_of().sequence_backward(**call, **limit)
    travelled = {**call, "saved": pickle.loads(pickle.dumps(y.saved))}
    for other in (found, vouched, kernel_of().sequence_backward(**travelled, **limit)):
        assert all(np.array_equal(a, b) for a, b in zip(other, expected, strict=True))
    plain = kernel_of().sequence_backward(**by_name, **limit)
    assert not all(np.array_equal(a, b) for a, b in zip(plain, expected, strict=True))


@pytest.mark.parametrize("limit", LIMITS, ids=["", "window", "bp_lim"])
@pytest.mark.parametrize("with_layout", [False, True])
def test_saved_brings_the_layout_of_its_run(limit, with_layout):
    """Flags of the run are transposed where a call is laid out another way."""
    mask, arguments = table(), draw_arrays(kernel_of().sequence_forward.function, SIZES)
    transposed = {**arguments, "x": np.ascontiguousarray(arguments["x"].swapaxes(0, 1))}
    given = {"mask": np.ascontiguousarray(mask.T), "batch_first": True, "save": True}
    y = kernel_of().sequence_forward(**transposed, **given)
    upstream = {"h": y.h, "d_h": np.ones_like(y.h), "saved": y.saved}
    stated = {"batch_first": True} if with_layout else {}
    found = kernel_of().sequence_backward(**transposed, **upstream, **limit, **stated)
    upstream |= {n: np.ascontiguousarray(upstream[n].swapaxes(0, 1)) for n in ("h", "d_h")}
    first = kernel_of().sequence_backward(**arguments, **upstream, batch_first=False, **limit)
    for name, array in first._asdict().items():
        same = getattr(found, name)
        assert np.array_equal(array, same.swapaxes(0, 1) if name == "d_x" else same), name


@pytest.mark.parametrize(
    ("run", "call", "message"),
    [
        ({}, {"reverse": True}, "reverse is True, but the run that saved had False"),
        ({"reverse": True}, {"reverse": False}, "reverse is False, but the run that saved had Tr"),
        ({}, {"mask": table()}, "mask is given, but the run that saved had none"),
        ({"mask": table()}, {"mask": table(3)}, "mask has other contents, but the run that saved"),
        ({}, {"reset": table()}, "reset is given, but"),
        ({"reset": table()}, {"reset": table(3)}, "reset has other contents, but"),
        ({}, {"lengths": LENGTHS}, "lengths is given, but"),
        ({"lengths": LENGTHS}, {"lengths": [6, 2, 1]}, "lengths has other contents, but"),
        (
            {"mask": table(), "zero_output_for_mask": True},
            {"zero_output_for_mask": False},
            "zero_output_for_mask is False, but the run that saved had True",
        ),
    ],
)
@pytest.mark.parametrize("limit", LIMITS, ids=["", "window", "bp_lim"])
def test_options_that_contradict_the_run_are_refused(run, call, message, limit):
    _, given = saving(kernel_of(), **run)
    with pytest.raises(ArgumentError, match=f"recast.sequence_backward: {message}"):
        kernel_of().sequence_backward(**given, **call, **limit)
    if "bp_lim" not in limit:
        with pytest.raises(ArgumentError, match=f"recast.sequence_backward: {message}"):
            kernel_of().sequence_backward.bind(**given, **call, **limit)


@pytest.mark.parametrize("name", ["mask", "reset", "lengths"])
def test_the_run_keeps_what_its_options_were(name):
    given = np.array(LENGTHS) if name == "lengths" else table()
    _, call = saving(kernel_of(), **{name: given})
    expected = kernel_of().sequence_backward(**call)
    given[:] = 1
    found = kernel_of().sequence_backward(**call)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(ArgumentError, match=f"{name} has other contents"):
        kernel_of().sequence_backward(**call, **{name: given})


def test_bound_calls_follow_the_flags_that_they_were_given():
    """What a bound forward pass saves knows the array itself, as the forward pass does."""
    kernel, mask = kernel_of(), table()
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    forward = kernel.sequence_forward.bind(**arguments, mask=mask, save=True)
    y = forward.results
    call = {**arguments, "h": y.h, "d_h": np.ones_like(y.h)}
    backward = kernel.sequence_backward.bind(**call, saved=y.saved)
    for seed in (1, 5):
        mask[:] = table(seed)
        forward()
        found = [a.copy() for a in backward()]
        once = kernel.sequence_forward(**arguments, mask=mask, save=True)
        expected = kernel.sequence_backward(**{**call, "h": once.h}, saved=once.saved)
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("limit", [{}, {"bp_lim": 2}])
@pytest.mark.parametrize("dim", ["I", "B", "T", "H"])
def test_arguments_of_other_dimensions_than_the_run_are_refused(dim, limit):
    """Where saved arrays have that dimension, they are the ones that do not fit."""
    kernel = kernel_of()
    y, call = saving(kernel)
    wider = draw_arrays(kernel.sequence_forward.function, {**SIZES, dim: 5 + SIZES[dim]})
    fits = {n: wider.get(n, np.zeros((1,))) for n in call} | {"saved": y.saved}
    again = kernel.sequence_forward(**wider).h
    fits |= {"h": again, "d_h": np.ones_like(again)}
    message = "arguments have I = 9, but saved is of a run with I = 4" if dim == "I" else "shape"
    with pytest.raises(ArgumentError, match=message):
        kernel.sequence_backward(**fits, **limit)


@pytest.mark.parametrize("limit", [{}, {"bp_lim": 2}])
def test_the_previous_outputs_of_another_shape_are_refused(limit):
    _, call = saving(kernel_of())
    with pytest.raises(ArgumentError, match=r"h has shape \(6, 3, 4\), expected \(T, B, H\)"):
        kernel_of().sequence_backward(**{**call, "h": call["h"][..., :4].copy()}, **limit)


def test_scalars_are_those_of_the_run():
    kernel = cellgen.load("sru")
    arguments = draw_arrays(kernel.sequence_forward.function, SIZES)
    y = kernel.sequence_forward(**arguments, alpha=1.5, save=True)
    takes = {a.name for a in kernel.sequence_backward.function.arguments}
    call = {n: a for n, a in {**arguments, **y._asdict()}.items() if n in takes}
    call |= {"saved": y.saved, "d_h": np.ones_like(y.h)}
    expected = kernel.sequence_backward(**call, alpha=1.5)
    found = kernel.sequence_backward(**call)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(ArgumentError, match=r"alpha is 2\.0, but the run that saved had 1\.5"):
        kernel.sequence_backward(**call, alpha=2)


def test_saved_cannot_be_changed_and_copies_of_it_belong_to_its_run():
    y, call = saving(kernel_of(), reverse=True)
    with pytest.raises(AttributeError, match="saved cannot be changed"):
        y.saved.run = None
    with pytest.raises(AttributeError):
        setattr(y.saved, y.saved._fields[0], y.h)
    for saved in (copy.copy(y.saved), copy.deepcopy(y.saved)):
        again = kernel_of().sequence_backward(**{**call, "saved": saved})
        assert np.array_equal(again.d_x, kernel_of().sequence_backward(**call).d_x)
    other = y.saved._replace(**{y.saved._fields[0]: np.zeros_like(y.saved[0])})
    with pytest.raises(ArgumentError, match="saved is a copy with other arrays, expected what"):
        kernel_of().sequence_backward(**{**call, "saved": other})


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (lambda s: tuple(s), "saved is tuple, expected what"),
        (lambda s: {}, "saved is dict of nothing, expected what"),
        (lambda s: {**s._asdict(), "z": s[0]}, "saved is dict of .*z, expected what"),
        (lambda s: 3, "pass that, or a dict of arrays by these names"),
    ],
)
def test_what_is_no_saved_is_refused(saved, message):
    y, call = saving(kernel_of())
    with pytest.raises(ArgumentError, match=message):
        kernel_of().sequence_backward(**{**call, "saved": saved(y.saved)})


# --- runs of layers ---------------------------------------------------------------------------


def test_runs_of_other_layers_are_refused():
    weights, rest = parted(draw_arrays(kernel_of().sequence_forward.function, SIZES))
    two = {**weights, "w_a": np.ones((8, 8)), "w_b": np.ones((8, 8))}
    layers = cellgen.Layers(kernel_of(), [[weights]])
    run = layers.forward(rest["x"], save=True)
    upstream = np.ones_like(run.output)
    others = {
        r"of layers with \[1\] directions, .* with \[1, 1\]": ([[weights], [two]], {}),
        r"of layers with \[1\] directions, .* with \[2\]": ([[weights, weights]], {}),
        "saved is of another version of recast": ([[weights]], {"change": 2.0}),
    }
    for message, (given, change) in others.items():
        with pytest.raises(ArgumentError, match=message):
            cellgen.Layers(kernel_of(**change), given).backward(run, upstream)
    with pytest.raises(ArgumentError, match=r"run is numpy\.ndarray, expected what forward"):
        layers.backward(run.output, upstream)
    same = cellgen.Layers(cellgen.compile(declared()), [[weights]]).backward(run, upstream)
    assert np.array_equal(same.d_input, layers.backward(run, upstream).d_input)
