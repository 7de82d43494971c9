"""Derivatives of first and second order from the kernel of a tangent, NumPy arrays in and out.

Input: the kernel of ``tangent(Cell)``, or of ``tangent(Cell, by=...)``, and arrays by the names of
``Cell``. With values t, directions v, upstream gradients u and g(t, u) the gradients of the cell:

    jvp               T.forward(t, dot = v) gives the derivatives of the outputs along v
    hvp               T.backward(d_dot_h = u, d_h = u') gives the derivative of g along (v, u')
    double_backward   the same with u' = 0: the gradients of <v, g> by t, and by u the outputs' dots

The kernel of a tangent's tangent gives the same of the tangent: third derivatives of the cell, and
so on. Not supported: truncated gradients (``window``, ``bp_lim``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.call.arguments import suggestion
from cellgen.runtime.call.segments import KEYWORDS
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.names import gradient_of, of_gradient
from cellgen.runtime.options import ALL_LAYERS, TABLE
from cellgen.runtime.results import Array, Results

Named: TypeAlias = Mapping[str, Array | float]
"""Arrays, and run-time scalars, by name."""

OPTIONS = (
    *(
        option.name
        for option in TABLE
        if option.layers == ALL_LAYERS and option.name not in {"every", *KEYWORDS}
    ),
    "threads",
)
"""Options of a call over time that mean the same for a cell and for its derivatives."""


@dataclass(frozen=True)
class First:
    """Outputs by name, and their derivatives along the directions by the same names.

    Over time both have final states too, as ``h_last``.
    """

    outputs: dict[str, Array]
    tangents: dict[str, Array]


@dataclass(frozen=True)
class Second(First):
    """What ``First`` holds, and derivatives of gradients.

    Gradients ``d_<name>`` of all that moves, and derivatives of gradients ``d_<name>``, of what
    does not move too.
    """

    gradients: dict[str, Array]
    derivatives: dict[str, Array]


def directions(kernel: Kernel) -> dict[str, str]:
    """Return the directions of a tangent by the names of what moves: ``{"x": "dot_x", ...}``.

    Outputs and final states are among them.

    Raises:
        ArgumentError: the kernel is of no tangent.
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"kernel is {accept.quoted(kernel)}, expected that of a tangent; pass "
            f"cellgen.compile(cellgen.tangent(Cell))"
        )
    functions = [f.function for n, f in kernel.functions.items() if n.endswith("forward")]
    names = [item.name for f in functions for item in (*f.arguments, *f.results) if not item.saved]
    finals = {i.of: i.name for f in functions for i in f.results if i.role == "final"}
    moves = dict(kernel.interface.directions)
    moves |= {finals[s]: finals[d] for s, d in moves.items() if s in finals and d in finals}
    if moves:
        return {name: moves[name] for name in names if name in moves}
    raise ArgumentError(
        f"{kernel.name} is of no tangent: no argument is the direction dot_... of another; pass "
        f"cellgen.compile(cellgen.tangent(Cell))"
    )


def jvp(
    kernel: Kernel, values: Named, along: Named, *, over_time: bool = True, **options: object
) -> First:
    """Differentiate the outputs along directions.

    ``values`` are what the cell takes, ``along`` directions by the names of values, of their
    shapes; those left out are 0. ``over_time=False`` is one step. ``options`` are those of
    ``OPTIONS``.

    Raises:
        ArgumentError: the kernel is of no tangent, or as the kernel's own functions do.
    """
    return _DerivativeCall("jvp", kernel, values, along, over_time, options).first()


def hvp(
    kernel: Kernel,
    values: Named,
    along: Named,
    upstream: Named,
    d_upstream: Named | None = None,
    *,
    gradients: Iterable[str] | None = None,
    over_time: bool = True,
    **options: object,
) -> Second:
    """Differentiate the gradients along directions: forward mode over reverse.

    ``upstream`` are gradients of the outputs, ``d_h`` or ``d_h_last``, at which gradients are
    formed; ``d_upstream`` is how they move along the directions, 0 where left out. For a loss that
    is linear in the outputs ``derivatives`` is the product of its Hessian with the directions.
    ``gradients`` names those whose derivatives are wanted, such as ``("d_w",)``: others, and the
    gradients themselves, are then not formed.

    Raises:
        ArgumentError: as ``jvp``, or an upstream gradient of what is no output.
    """
    call = _DerivativeCall("hvp", kernel, values, along, over_time, options)
    return call.second(upstream, {} if d_upstream is None else d_upstream, gradients)


def double_backward(
    kernel: Kernel,
    values: Named,
    upstream: Named,
    cotangents: Named,
    *,
    gradients: Iterable[str] | None = None,
    over_time: bool = True,
    **options: object,
) -> Second:
    """Pass gradients back through a backward pass: reverse mode over reverse.

    ``cotangents`` are those of the gradients, ``d_<name>``. In the result ``derivatives`` are the
    gradients by what the cell takes, and ``tangents`` those by the upstream gradients of the
    outputs that they are named after. ``gradients`` as in ``hvp``.

    Raises:
        ArgumentError: as ``hvp``, or a cotangent of what has no gradient.
    """
    label = f"{getattr(kernel, 'name', 'kernel')}.double_backward"
    cotangent_arrays = accept.names(label, "cotangents", cotangents, "arrays")
    wrong = [name for name in cotangent_arrays if of_gradient(name) is None]
    if wrong:
        raise ArgumentError(
            f"{label}: cotangents has {wrong[0]}, expected names of gradients, such as "
            f"{gradient_of(wrong[0])}"
        )
    along = {of_gradient(name) or name: cotangents[name] for name in cotangent_arrays}
    call = _DerivativeCall("double_backward", kernel, values, along, over_time, options)
    return call.second(upstream, {}, gradients)


class _DerivativeCall:
    """One question to a tangent: what its functions are given, and what they return by name."""

    def __init__(
        self,
        what: str,
        kernel: Kernel,
        values: Named,
        along: Named,
        over_time: bool,
        options: Mapping[str, object],
    ) -> None:
        self.moves = directions(kernel)
        self.label, self.kernel = f"{kernel.name}.{what}", kernel
        self.over_time = accept.flag(self.label, "over_time", over_time)
        for name in options:
            if name not in OPTIONS or not self.over_time:
                known = suggestion(name, OPTIONS if self.over_time else ())
                raise ArgumentError(f"{self.label}: unknown option {name!r}; {known}")
        self.options = options
        accept.names(self.label, "values", values, "arrays")
        accept.names(self.label, "along", along, "arrays")
        self.values: dict[str, object] = {**values}
        for name, dot in self.moves.items():
            value = values.get(name)
            if name in along:
                self.values[dot] = along[name]
            elif isinstance(value, np.ndarray):
                self.values[dot] = np.zeros(value.shape, value.dtype)
        self._refuse_unknown("along", along, [n for n in self.moves if n in self._taken()])

    def _taken(self) -> set[str]:
        name = "sequence_forward" if self.over_time else "forward"
        if name not in self.kernel.functions:
            raise ArgumentError(
                f"{self.label}: the cell has no {name}, pass over_time={not self.over_time}"
            )
        return {item.name for item in self.kernel.functions[name].function.arguments}

    def _refuse_unknown(self, what: str, names: Named, known: list[str]) -> None:
        for name in names:
            if name not in known:
                raise ArgumentError(
                    f"{self.label}: unknown {name!r} in {what}; {suggestion(name, known)}"
                )

    def first(self) -> First:
        return First(*self._outputs(self._forward(save=False)))

    def second(
        self, upstream: Named, d_upstream: Named, wanted: Iterable[str] | None = None
    ) -> Second:
        result = self._forward(save=True)
        outputs, tangents = self._outputs(result)
        moves = {gradient_of(name): self.moves[name] for name in tangents}
        known = list(moves)
        moved: dict[str, object] = {}
        for what, arrays in (("upstream", upstream), ("d_upstream", d_upstream)):
            accept.names(self.label, what, arrays, "arrays")
            self._refuse_unknown(what, arrays, known)
        for name in upstream:
            moved[gradient_of(moves[name])] = upstream[name]
        moved |= {name: d_upstream[name] for name in d_upstream}
        names = None if wanted is None else self._wanted(wanted)
        if self.over_time:
            results = self._backward(result, moved, names)
        else:
            results = self._step_backward(result, moved)
        if names is not None:
            return Second(outputs, tangents, {}, {name: results[name] for name in names})
        dots = {gradient_of(dot): gradient_of(name) for name, dot in self.moves.items()}
        own = {gradient_of(name) for name in self.values}
        gradients = {dots[n]: results[n] for n in results if n in dots and n in own}
        rest = {n: array for n, array in results.items() if n in own and n not in dots}
        return Second(outputs, tangents, gradients, rest)

    def _forward(self, *, save: bool) -> Results:
        if not self.over_time:
            return self.kernel.functions["forward"](out=None, **self.values)
        call = self.kernel.functions["sequence_forward"]
        return call(out=None, **self.values, **self.options, **({"save": True} if save else {}))

    def _outputs(self, result: Results) -> tuple[dict[str, Array], dict[str, Array]]:
        every = result._asdict()
        outputs = {n: a for n, a in every.items() if n in self.moves}
        return outputs, {n: every[self.moves[n]] for n in outputs}

    def _wanted(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The gradients whose derivatives are wanted. Raises ArgumentError."""
        names = tuple((wanted,) if isinstance(wanted, str) else wanted)
        functions = [f.function for n, f in self.kernel.functions.items() if "gradient" in n]
        functions += [f.function for n, f in self.kernel.functions.items() if "backward" in n]
        dots = {gradient_of(dot) for dot in self.moves.values()}
        values = {gradient_of(name) for name in self._taken()} - dots
        known = [r.name for f in functions for r in f.results if r.name in values]
        self._refuse_unknown("gradients", dict.fromkeys(names, 0.0), list(dict.fromkeys(known)))
        return names

    def _backward(
        self, result: Results, upstream: Mapping[str, object], wanted: tuple[str, ...] | None
    ) -> dict[str, Array]:
        backward = self.kernel.functions["sequence_backward"]
        read = {item.name for item in backward.function.arguments}
        outputs = {n: a for n, a in result._asdict().items() if n in read}
        arguments = {**self.values, **outputs, **upstream, **self.options}
        how = {} if wanted is None else {"gradients": wanted}
        return backward(out=None, **arguments, **how, saved=result.saved)._asdict()

    def _step_backward(self, result: Results, upstream: Mapping[str, object]) -> dict[str, Array]:
        known = {**self.values, **result._asdict(), **upstream}
        results: dict[str, Array] = {}
        for name, function in self.kernel.functions.items():
            if name == "forward" or name.startswith("sequence_"):
                continue
            read = {item.name for item in function.function.arguments}
            formed = function(out=None, **{n: v for n, v in known.items() if n in read})
            results |= formed._asdict()
            known |= formed._asdict()
        return results
