"""Run a cell's equations step by step with NumPy: the truth for functions over time.

Input: a ``Definition`` and arrays. Output: outputs over time and final states; complex arguments
give complex-step derivatives through all steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from cellgen.language.cell import Definition
from cellgen.language.value import Role
from cellgen.program.closures import Array
from cellgen.program.derive import forward
from cellgen.program.identity import once_for_each
from cellgen.program.interpret import STEP, interpret
from cellgen.program.ssa import Program
from cellgen.proof.rounding import Nudge, Scales, largest, scales_of
from cellgen.runtime.call.signature import shown_steps
from cellgen.runtime.kernel import Kernel
from cellgen.runtime.options import BACKWARD, BY_ROW, FORWARD, NONE, OF_OPTIONS, Options, taken_by

VALUES = 2.0**-4
"""How far values on the way are nudged, in nudges of an argument. The bar over time has room for
their rounding (64 units); where a sum cancels for every argument, they alone give it a scale."""

NEAR = 16
"""Units in the last place of a result's largest entry, a quarter of the bars over time. An error of
a forward pass that is larger is measured against what rounding can do as well."""

ROUNDED, CONDITION = 1e-13, 32
"""An error of a gradient that is larger is measured against rounding as well, which may spread so
far within the bar's own room: an sLSTM divides by sums whose terms cancel."""


@dataclass(frozen=True)
class Sequence:
    """Outputs over time by name, final states by ``<state>_last``.

    Outputs that are no states too, at the last valid step of each row.
    """

    outputs: dict[str, Array]
    last: dict[str, Array]
    at_end: dict[str, Array]

    @property
    def results(self) -> dict[str, Array]:
        """Outputs and final states by name."""
        return {**self.outputs, **self.last}


def run_steps(
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    options: Options = NONE,
    nudge: Nudge | None = None,
) -> Sequence:
    """Interpret the equations for ``sizes["T"]`` steps, the valid ones of each row.

    Inputs, mask and reset are (T, B, ...) whatever ``batch_first`` says, states the initial ones,
    scalars the defaults unless given. Derivatives end where ``window`` cuts. Every computed value
    passes through ``nudge``. Outputs are of the steps that ``every`` shows.
    """
    following = {str(s.name): definition.next_state(s) for s in definition.states}
    step = _step_of(definition)
    inputs = {str(v.name) for v in definition.with_role(Role.INPUT)}
    collected: dict[str, list[Array]] = {str(v.name): [] for v in definition.outputs}
    state = {name: arguments[name] for name in following}
    states_after = {str(new.name): name for name, new in following.items()}
    at_end: dict[str, Array] = {}
    repeated: dict[str, Array] = {}
    started = np.zeros(sizes["B"], bool)
    for order, t in enumerate(_order(options, sizes["T"])):
        inside, valid, resets = _flags_at(options, t, sizes["B"])
        if options.window and order and order % options.window == 0:
            state = {name: np.real(a) for name, a in state.items()}
            repeated = {name: np.real(a) for name, a in repeated.items()}
        if resets.any():
            state = {
                name: _where(resets, np.full_like(a, definition.initials.get(name, 0)), a)
                for name, a in state.items()
            }
        now = {n: a for n, a in arguments.items() if n not in state}
        now |= {n: _where(valid, now[n][t], np.asarray(0.0)) for n in inputs & now.keys()}
        values = interpret(step, {**definition.defaults, **now, **state}, sizes, nudge=nudge)
        holds = inside & ~valid & started & (not options.zero_output_for_mask)
        started |= valid
        for name, steps in collected.items():
            output, none = values[name], np.asarray(0.0)
            if name not in states_after:
                at_end[name] = _where(valid, output, at_end.get(name, none))
            if not valid.all():
                kept = state[states_after[name]] if name in states_after else repeated.get(name)
                held = none if kept is None else _where(holds, kept, none)
                output = _where(valid, output, held)
            steps.append(output)
            repeated[name] = output
        state = {
            name: _where(valid, values[str(new.name)], state[name])
            for name, new in following.items()
        }
    few = shown_steps(options)
    outputs = {name: _in_order(steps, options)[few] for name, steps in collected.items()}
    last = {f"{new.name}_last": state[name] for name, new in following.items()}
    return Sequence(outputs, last, at_end)


@once_for_each
def _step_of(definition: Definition) -> Program:
    """The program of outputs and next states."""
    following = (definition.next_state(state) for state in definition.states)
    wanted = tuple(dict.fromkeys((*definition.outputs, *following)))
    return forward(definition.with_outputs(wanted))


def _keywords(options: Options, function: str) -> dict[str, object]:
    """Name the options of one function, as a call of it wants them."""
    mine = {option.name for option in taken_by(function)}
    chosen = {}
    for option in OF_OPTIONS:
        value = getattr(options, option.name)
        if option.name not in mine or value is option.default:
            continue
        transposed = options.batch_first and option.kind == BY_ROW and option.axes == ("T", "B")
        chosen[option.name] = np.ascontiguousarray(value.T) if transposed else value
    return chosen


def shared_keywords(options: Options) -> dict[str, object]:
    """Name the options that forward and backward passes have, as calls of both want them."""
    shared = {option.name for option in OF_OPTIONS if len(option.functions) > 1}
    return {n: v for n, v in _keywords(options, FORWARD).items() if n in shared}


def differs(one: Array, other: Array) -> bool:
    """Whether a bit of two arrays differs."""
    return one.tobytes() != other.tobytes()


def learned_scalars(definition: Definition) -> dict[str, Array]:
    """The defaults of the scalars that have a gradient."""
    names = [str(v.name) for v in definition.requested if v.role is Role.SCALAR]
    return {name: np.asarray(definition.defaults[name]) for name in names}


def as_call(kernel: Kernel, arrays: Mapping[str, Array], options: Options) -> dict[str, object]:
    """Spell arguments as a call takes them: arrays laid out, scalars as numbers."""
    laid_out = _laid_out(kernel, arrays, options)
    return {name: a if a.ndim else float(a) for name, a in laid_out.items()}


def _laid_out(kernel: Kernel, arrays: Mapping[str, Array], options: Options) -> dict[str, Array]:
    """Lay arrays over time as a call takes them, or lay its results time-major."""
    if not options.batch_first:
        return dict(arrays)
    functions = [kernel.functions[f"sequence_{way}"].function for way in ("forward", "backward")]
    items = [item for f in functions for item in (*f.arguments, *f.results) if item.over_time]
    timed = {item.name for item in items}
    return {
        name: np.ascontiguousarray(a.swapaxes(0, 1)) if name in timed else a
        for name, a in arrays.items()
    }


def _order(options: Options, steps: int) -> range:
    return range(steps)[:: -1 if options.reverse else 1]


def with_poison(
    upstream: Mapping[str, Array], timed: Collection[str], options: Options
) -> dict[str, Array]:
    """Put NaN into gradients of outputs, ``timed``, that show nothing.

    They are beyond lengths, where the mask zeroes, and before the first valid step.
    """
    steps, rows = next(upstream[n].shape[:2] for n in timed)
    visible, started = np.zeros((steps, rows), bool), np.zeros(rows, bool)
    for t in _order(options, steps):
        inside, valid, _ = _flags_at(options, t, rows)
        started |= valid
        visible[t] = valid | (inside & started & (not options.zero_output_for_mask))
    return {
        n: np.where(visible.reshape(steps, rows, *(1,) * (a.ndim - 2)), a, np.nan)
        if n in timed
        else a
        for n, a in upstream.items()
    }


def only_shown(
    upstream: Mapping[str, Array], timed: Collection[str], options: Options
) -> dict[str, Array]:
    """The gradients of outputs, ``timed``, as a call shows them, and those of final states."""
    few = shown_steps(options)
    return {n: a[few] if n in timed else a for n, a in upstream.items()}


def _flags_at(options: Options, t: int, rows: int) -> tuple[Array, Array, Array]:
    """Which rows are within their lengths, which are valid, and which start from zero."""
    inside = np.ones(rows, bool) if options.lengths is None else t < np.asarray(options.lengths)
    valid = inside if options.mask is None else inside & np.asarray(options.mask)[t]
    resets = valid & (False if options.reset is None else np.asarray(options.reset)[t])
    return inside, valid, resets


def _where(rows: Array, one: Array, other: Array) -> Array:
    if rows.all():
        return one
    return np.where(rows.reshape(-1, *(1,) * (np.ndim(one) - 1)), one, other)


def _in_order(steps: list[Array], options: Options) -> Array:
    return np.array(steps[::-1] if options.reverse else steps)


@dataclass(frozen=True)
class Truth:
    """What the equations give, and what the error of each result is measured against."""

    steps: Sequence
    scales: Scales


def truth_over_time(
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    options: Options = NONE,
) -> Truth:
    """Run the equations, and measure how far rounding spreads through all steps.

    For arguments that float32 holds it is the truth of both precisions.
    """
    wide = {name: np.array(a, np.float64) for name, a in arguments.items()}  # as they are by now
    steps = run_steps(definition, wide, sizes, options)

    def nudged(nudge: Nudge, inner: Nudge) -> Mapping[str, Array]:
        moved = {name: nudge(a) for name, a in wide.items()}
        return run_steps(definition, moved, sizes, options, inner).results

    return Truth(steps, Scales(steps.results, nudged, np.random.default_rng(0), VALUES))


def forward_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    sizes: Mapping[str, int],
    dtype: str,
    options: Options = NONE,
    truth: Truth | None = None,
) -> dict[str, float]:
    """Compare ``sequence_forward`` with the equations, whose ``truth`` may be known.

    With options that it has alone both with and without them.

    Errors are relative to the largest entry, or to what rounding can do to it where that is more
    (``rounding``) and they are beyond ``NEAR``: a division by nearly zero magnifies it, a sum may
    cancel.
    """
    call = {name: np.asarray(a, dtype, order="C") for name, a in arguments.items()}
    options = replace(options, checkpoint=0)  # says nothing of a run that does not save
    truth = truth or truth_over_time(definition, call, sizes, options)
    call = {name: a.copy() for name, a in call.items()}  # which a kernel may spoil
    chosen, shared = _keywords(options, FORWARD), shared_keywords(options)
    laid_out = _laid_out(kernel, call, options)
    forward_function = kernel.functions["sequence_forward"]
    results = forward_function(out=None, **laid_out, **shared)._asdict()
    every = _laid_out(kernel, {n: a for n, a in results.items() if a is not None}, options)
    alone = (
        forward_function(out=None, **laid_out, **chosen)._asdict()
        if len(chosen) > len(shared)
        else {}
    )
    errors: dict[str, float] = {}
    least = float(np.finfo(dtype).tiny)  # below it numbers lie evenly: a rounding is no smaller
    near = NEAR * float(np.finfo(dtype).eps)
    for name, expected in truth.steps.results.items():
        pairs = [(every[name], expected)]
        if alone.get(name) is not None:
            pairs.append((alone[name], {**truth.steps.last, **truth.steps.at_end}[name]))
        for array, value in pairs:
            difference = largest(array.astype(np.float64) - value)
            error = difference / max(truth.scales.of(name, difference, near), least)
            errors[name] = max(errors.get(name, 0.0), error if error >= 0 else np.inf)
    return errors


def gradient_errors(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, Array],
    upstream: Mapping[str, Array],
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    options: Options = NONE,
    bp_lim: int | None = None,
    *,
    together: bool = False,
) -> dict[str, float]:
    """Compare every gradient of ``sequence_backward`` with the complex step, in float64.

    Each gradient is compared along one random direction, or all of them along one of all arguments
    (``together``); errors are relative to the sum of the sizes of the terms, since terms of either
    sign may cancel, or to what rounding can do to it where that is more (``rounding``). Upstream
    gradients of outputs that show nothing are NaN in the call. With ``bp_lim``, as many steps as
    there are, the gradients that are truncated term by term are compared too. With ``checkpoint``,
    gradients from states at some steps are to be the same to the bit.
    """
    arguments = {**learned_scalars(definition), **arguments}
    timed = [f"d_{v.name}" for v in definition.outputs]
    poisoned = only_shown(with_poison(upstream, timed, options), timed, options)
    above, errors = only_shown(upstream, timed, options), dict[str, float]()

    def gradients(nudge: Nudge | None = None, **how: object) -> dict[str, Array]:
        moved = {n: nudge(np.asarray(a)) if nudge else a for n, a in arguments.items()}
        laid_out = as_call(kernel, moved, options)
        upstreams = _laid_out(kernel, poisoned, options)
        results = run_gradients(kernel, definition, laid_out, upstreams, options, how)
        return _laid_out(kernel, results, options)

    runs = [gradients(), *([gradients(bp_lim=bp_lim)] if bp_lim else [])]
    if options.checkpoint:
        again = gradients(checkpoint=options.checkpoint)
        errors |= {name: np.inf for name, a in runs[0].items() if differs(a, again[name])}
    items = {i.name: i.of for i in kernel.functions["sequence_backward"].function.results}
    along = {name: rng.standard_normal(arguments[of].shape) for name, of in items.items()}

    def sums(run: Mapping[str, Array]) -> dict[str, Array]:
        return {name: np.asarray(np.sum(run[name] * along[name])) for name in items}

    @cache  # how far one rounding of each argument moves these derivatives
    def spread() -> dict[str, float]:
        return scales_of(sums(runs[0]), lambda nudge, _: sums(gradients(nudge)), rng)

    for group in [list(items)] if together else [[name] for name in items]:
        moved = {items[n]: arguments[items[n]] + 1j * STEP * along[n] for n in group}
        results = run_steps(definition, {**arguments, **moved}, sizes, options).results
        loss = sum(np.sum(a * above[f"d_{n}"]) for n, a in results.items())
        for run, derivatives in zip(runs, map(sums, runs), strict=True):
            size = float(sum(np.sum(np.abs(run[n] * along[n])) for n in group)) or 1.0
            error = float(abs(sum(derivatives[n] for n in group) - np.imag(loss) / STEP))
            if error > ROUNDED * size:
                size = max(size, sum(spread()[n] for n in group) / CONDITION)
            for name in group:
                relative = error / size
                errors[name] = max(errors.get(name, 0.0), relative if relative >= 0 else np.inf)
    return errors


def run_gradients(
    kernel: Kernel,
    definition: Definition,
    arguments: Mapping[str, object],
    upstream: Mapping[str, Array],
    options: Options,
    how: Mapping[str, object],
) -> dict[str, Array]:
    """Run forward and backward; ``how`` may have a ``checkpoint``, or ``bp_lim``."""
    shared = shared_keywords(options)
    kept = {**shared, "checkpoint": how["checkpoint"]} if "checkpoint" in how else shared
    forward_function = kernel.functions["sequence_forward"]
    result = forward_function(out=None, **arguments, **kept, save=True)
    seen = result if kept is shared else forward_function(out=None, **arguments, **shared)
    outputs = {str(v.name): getattr(seen, str(v.name)) for v in definition.outputs}
    call = {**arguments, **outputs, **upstream, **_keywords(options, BACKWARD)}
    call |= {name: value for name, value in how.items() if name != "checkpoint"}
    return kernel.functions["sequence_backward"](out=None, **call, saved=result.saved)._asdict()
