"""Find the steps that states go through: what keeps a segment of time from forgetting its start.

Input: a ``Definition``. Output: the statement by which a state jumps, as text. A step is a
comparison or a rounding of what a state reaches, or a function of an author's whose derivative is
declared rather than true, as that of a spike: a difference in the last bit of a state may become
one of size 1 there. Conditions on what no state reaches are none, nor are limits and maxima.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellgen.language.cell import Definition
from cellgen.language.notation import text
from cellgen.language.ops.function import Pointwise
from cellgen.language.value import Value
from cellgen.program.derive import forward
from cellgen.program.identity import once_for_each
from cellgen.program.ssa import Program, Statement


@once_for_each
def jump_of(definition: Definition) -> str:
    """The first statement by which a state jumps that reads itself; nothing where none does."""
    following = {state: definition.next_state(state) for state in definition.states}
    step = forward(definition.with_outputs(tuple(dict.fromkeys(following.values()))))
    written = {equation.target: equation.expression for equation in definition.equations}
    for state in following:
        loop = _loop(step, following, state)
        for statement in step.statements:
            if statement.target in loop and _jumps(statement, loop):
                spelled = written.get(statement.target, statement.expression)
                return f"{statement.target} = {text(spelled)}"
    return ""


def _loop(program: Program, following: Mapping[Value, Value], state: Value) -> set[Value]:
    """The values on a way from a state to itself, over any number of steps."""
    after: dict[Value, list[Value]] = {value: [] for value in program.values}
    for target, read in {s.target: s.operands for s in program.statements}.items():
        for value in after.keys() & set(read):
            after[value].append(target)
    for old, new in following.items():
        after.setdefault(new, []).append(old)
    before: dict[Value, list[Value]] = {value: [] for value in after}
    for value, readers_of in after.items():
        for reader in readers_of:
            before.setdefault(reader, []).append(value)
    return _reached(after, following[state]) & _reached(before, state)


def _reached(ways: Mapping[Value, list[Value]], value: Value) -> set[Value]:
    """A value and all that ways lead to from it."""
    reached, waiting = {value}, [value]
    while waiting:
        further = [v for v in ways.get(waiting.pop(), ()) if v not in reached]
        reached.update(further)
        waiting += further
    return reached


def _jumps(statement: Statement, reached: set[Value]) -> bool:
    """Whether a statement makes a step of a value that a state reaches."""
    if not statement.is_pointwise:
        return False
    return any(
        node.row.jumps and not reached.isdisjoint(node.atoms(Value))
        for node in statement.expression.atoms(Pointwise)
    )
