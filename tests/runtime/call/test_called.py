"""Public functions of a kernel: a call of another form ends in cellgen's own error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import cellgen
from cellgen.errors import ArgumentError

NOT_CALLED = {"look", "result", "again"}
"""Of a function's own: how arrays are told apart, the class of results, and another pass's call."""
CALLS = {
    "too many arguments": ((object(),) * 7, {}),
    "no arguments": ((), {}),
    "an unknown keyword": ((), {"nonsense": object()}),
}
NEEDS_NOTHING = {"build", "digest", "library", "sources"}


def public() -> Iterator[tuple[str, Callable[..., object]]]:
    """The kernel, its functions, and what both are asked, by the names that errors have."""
    kernel = cellgen.load("lstm")
    yield kernel.name, kernel
    for owner, label in ((kernel, kernel.name), *((f, n) for n, f in kernel.functions.items())):
        for name in dir(owner):
            if name.startswith("_") or name in NOT_CALLED:
                continue
            method = getattr(owner, name)
            if callable(method):
                yield f"{label}.{name}", method
    yield from ((f"{kernel.name}.{name}", f) for name, f in kernel.functions.items())


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_of_another_form_ends_in_our_error(kind: str) -> None:
    unnamed, named = CALLS[kind]
    names = []
    for label, function in public():
        name = label.rpartition(".")[2]
        if name in NEEDS_NOTHING and not (unnamed or named):
            continue
        with pytest.raises(ArgumentError, match=r"lstm.*(write|pass|expected|did you mean)"):
            function(*unnamed, **named)
        names.append(name)
    assert {"plan", "measure", "bind", "pack", "shapes", "init", "stream", "forward"} <= set(names)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda k: k.sequence_forward.plan(5),
            r"lstm.sequence_forward.plan: called as plan\(5\), too many positional arguments; "
            r"write kernel.sequence_forward.plan\(T=..., B=..., I=..., H=...\)",
        ),
        (
            lambda k: k.sequence_backward.measure(5, threads=2),
            r"measure\(5, threads=...\), too many .*; write kernel.sequence_backward.measure\(x=",
        ),
        (lambda k: k.shapes(5), r"lstm.shapes: called as shapes\(5\), .* kernel.shapes\(T=..., B"),
        (
            lambda k: k.init(),
            r"lstm.init: called as init\(\), missing .*'rng'; "
            r"write kernel.init\(np.random.default_rng\(0\), I=..., H=...\)",
        ),
    ],
)
def test_it_says_what_to_write(call: Callable[[object], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(cellgen.load("lstm"))


def test_an_error_of_what_is_called_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TypeError from within a method, which took the call, is none of its form."""
    kernel = cellgen.load("lstm")

    def failing(*_: object) -> None:
        raise TypeError("of another kind")

    monkeypatch.setattr("cellgen.runtime.kernel.shapes_of", failing)
    with pytest.raises(TypeError, match="of another kind"):
        kernel.shapes(I=1, H=1)


def test_steps_without_gradients_on_request_say_what_gradients_are() -> None:
    backward = cellgen.load("rwkv4").backward
    with pytest.raises(ArgumentError, match=r"always forms all of d_x, .*leave gradients out"):
        backward(gradients=("d_x",))
    with pytest.raises(ArgumentError, match="unknown argument 'gradients'"):
        cellgen.load("elman").forward(gradients=("h",))
