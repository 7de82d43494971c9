"""Arrays as calls see them: NumPy's, and those of other libraries, are checked by the same code."""

from __future__ import annotations

import numpy as np
import pytest

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Argument, Function
from cellgen.runtime.call.arguments import check_call
from cellgen.runtime.call.views import ArrayView, advice, view_of

FUNCTION = Function(
    "run",
    ("T", "B", "H"),
    (Argument("x", ("T", "B", "H")), Argument("w", ("H", "H"))),
    (Argument("y", ("T", "B", "H")),),
    workspace=False,
)
SHAPES = {"x": (3, 2, 4), "w": (4, 4), "out y": (3, 2, 4)}


def dense(label: str, **changes: object) -> ArrayView:
    """A view of an array without gaps, on a device."""
    fields = {"pointer": 64, "shape": SHAPES[label], "dtype": "float64", "itemsize": 8, "device": 0}
    return ArrayView(**{**fields, **changes})  # type: ignore[arg-type]


WRONG = {
    "element": ({"dtype": "float32", "itemsize": 4}, "w is float32, but x is float64"),
    "axes": ({"shape": (4, 4, 1)}, r"w has 3 axes, shape \(4, 4, 1\), expected 2: \(H, H\)"),
    "shape": ({"shape": (4, 5)}, r"w has shape \(4, 5\), expected \(H, H\) = \(4, 4\) with H = 4"),
    "gaps": ({"strides": (64, 8)}, r"w is not C-contiguous \(shape \(4, 4\), strides \(64, 8\)\)"),
    "place": ({"pointer": 68}, r"w is misaligned \(address 0x44\), expected a multiple of 8 bytes"),
}


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_the_words_are_the_same_whoever_made_the_array(change, message, library) -> None:
    views = {"x": dense("x"), "w": dense("w", library=library, **change)}
    with pytest.raises(ArgumentError, match=f"cell.run: {message}"):
        check_call("cell.run", FUNCTION, views, {}, lambda _, __, label, ___: views[label])


def test_advice_is_in_the_words_of_the_library() -> None:
    said = {
        library: advice(dense("w", library=library), "convert", "w", "float32")
        for library in ("numpy", "torch", "cupy")
    }
    assert said == {
        "numpy": "pass w.astype(np.float32)",
        "torch": "pass w.to(torch.float32)",
        "cupy": "convert it to float32",
    }


def test_numpys_arrays_are_seen_with_their_gaps() -> None:
    array = np.zeros((4, 6), np.float32)[:, ::2]
    view = view_of(array)
    assert view == ArrayView(
        array.__array_interface__["data"][0], (4, 3), "float32", 4, strides=(24, 8)
    )
    assert view.apart == (6, 2)
    assert view.swapped().apart == (2, 6)
    assert view_of(np.zeros((1, 3))).swapped().contiguous  # an axis of one has no gaps
    whole = view_of(np.zeros((2, 3)))
    assert whole.swapped().swapped() == whole
    assert view_of(np.zeros(3, ">f8")).dtype == ">f8"


def test_arrays_of_a_call_lie_on_one_device() -> None:
    views = {"x": dense("x"), "w": dense("w", device=1)}
    with pytest.raises(ArgumentError, match="w is on device 1 and x on device 0; move all arrays"):
        check_call("cell.run", FUNCTION, views, {}, lambda _, __, label, ___: views[label])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writable": False}, "out y is read-only"),
        ({"strides": (64, 16, 8)}, "out y has rows that share memory"),
        (
            {"strides": (64, 36, 8)},
            "out y has strides .*, expected multiples of its items' 8 bytes",
        ),
    ],
    ids=str,
)
def test_results_are_written_where_nothing_else_is(change, message) -> None:
    views = {"x": dense("x"), "w": dense("w"), "out y": dense("out y", **change)}
    given = dict.fromkeys(("x", "w"), views)
    with pytest.raises(ArgumentError, match=message):
        check_call(
            "cell.run", FUNCTION, given, {"y": views}, lambda _, __, label, ___: views[label]
        )
