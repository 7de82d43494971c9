"""Named rewrites of Programs. Each takes and gives a verified Program and says why it is exact.

None changes the value of an expression by more than the order of a sum: no ``simplify()``, no
``expand()``, no common subexpressions behind the author's back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import sympy
from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import Traits, absolute, exp, ge, le, maximum, part, shape_of, where
from cellgen.language.value import Apply, Role, Shape, Value
from cellgen.program.ssa import Program, Statement

Rewrite: TypeAlias = Callable[[Program], Program]


def simplify(program: Program, rewrites: Sequence[Rewrite]) -> Program:
    """Apply rewrites in order, verifying after each."""
    for rewrite in rewrites:
        program = rewrite(program)
        program.verify()
    return program


def merge_equal(program: Program) -> Program:
    """Compute equal right-hand sides once; the first name stays."""
    known: dict[Expr, Value] = {}
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        same = known.get(expression)
        is_result = statement.target in program.results
        if same is not None and same.shape == statement.target.shape and not is_result:
            swap[statement.target] = same
            continue
        if expression.args:
            known.setdefault(expression, statement.target)
        statements.append(Statement(statement.target, expression))
    return program.with_statements(statements)


def drop_copies(program: Program) -> Program:
    """Read the original instead of a copy (``a = b``), except where the copy is a result."""
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        is_copy = isinstance(expression, Value) and expression.shape == statement.target.shape
        if is_copy and statement.target not in program.results:
            swap[statement.target] = expression
            continue
        statements.append(Statement(statement.target, expression))
    return program.with_statements(statements)


def drop_dead(program: Program) -> Program:
    """Keep only what a result needs."""
    needed = set(program.results)
    kept = []
    for statement in reversed(program.statements):
        if statement.target in needed:
            kept.append(statement)
            needed.update(statement.operands)
    return program.with_statements(reversed(kept))


def transposed_products(program: Program) -> Program:
    """``a @ w.T`` is one product that reads ``w`` the other way; no transposed copy is made."""
    definitions = program.definitions
    statements = []
    for statement in program.statements:
        node = statement.expression
        product = statement.traits.product
        if product is not None and product.mirrored and not product.onto:
            source = definitions.get(node.operands[1])
            if source is not None and source.traits.is_transpose:
                node = Apply(product.mirrored, (node.operands[0], source.expression.operands[0]))
        statements.append(Statement(statement.target, node))
    return drop_dead(program.with_statements(statements))


def distribute_concat(program: Program) -> Program:
    """``concat(x, h) @ w`` is ``x @ w_x + h @ w_h``, with ``w_x`` and ``w_h`` rows of ``w``.

    The two products can then be scheduled apart (the first needs no state), and no concatenated
    copy is made. Each sum over the contracted axis is split in two, in the order of the axis.
    """
    names = Names(str(value.name) for value in program.values)
    definitions = program.definitions
    rows: dict[tuple[Value, Expr], Value] = {}
    statements: list[Statement] = []

    def emit(name: str, like: Value, expression: Expr, position: int = 0) -> Value:
        shape, order = shape_of(expression), like.order + position
        target = Value(names.fresh(name), shape, Role.TEMPORARY, like.owner, order)
        statements.append(Statement(target, expression))
        return target

    for statement in program.statements:
        source = None
        if statement.traits.is_matmul:
            source = definitions.get(statement.expression.operands[0])
        if source is None or not source.traits.is_join:
            statements.append(statement)
            continue
        weight = statement.expression.operands[1]
        start: Expr = Integer(0)
        products: list[Value] = []
        for piece in source.expression.operands:
            size = piece.shape[-1]
            if (weight, start) not in rows:
                node = part(weight, 0, start, size)
                rows[weight, start] = emit(f"{weight.name}_{piece.name}", weight, node)
            product = Apply("matmul", (piece, rows[weight, start]))
            name = f"{piece.name}_{weight.name}"
            products.append(emit(name, statement.target, product, len(products)))
            start = start + size
        statements.append(Statement(statement.target, sympy.Add(*products)))
    return drop_dead(program.with_statements(statements))


def inline_sums(program: Program) -> Program:
    """Write a temporary sum into the one sum of which it is a term: all terms stand together.

    Only where it is a term as it stands: SymPy would multiply a number into every term, and
    products that are added to each other would no longer be found as such.
    """
    return _inline(
        program,
        lambda s: s.is_pointwise and bool(s.expression.is_Add),
        lambda target, reader: bool(reader.is_Add) and target in reader.args,
    )


def inline_temporaries(program: Program) -> Program:
    """Write an unnamed pointwise intermediate back into the one statement that reads it."""
    return _inline(program, lambda s: s.is_pointwise)


def _inline(
    program: Program,
    accept: Callable[[Statement], bool],
    into: Callable[[Value, Expr], bool] = lambda target, reader: True,
) -> Program:
    uses = program.uses
    swap: dict[Value, Expr] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        target = statement.target
        readers = uses[target]
        single = (
            target.role is Role.TEMPORARY
            and target not in program.results
            and len(readers) == 1
            and readers[0].is_pointwise
            and _occurrences(readers[0].expression, target) == 1
            and shape_of(expression) == target.shape
            and target.is_batched == readers[0].target.is_batched
        )
        if single and accept(statement) and into(target, readers[0].expression):
            swap[target] = expression
        else:
            statements.append(Statement(target, expression))
    return program.with_statements(statements)


def _occurrences(expression: Expr, value: Value) -> int:
    if expression == value:
        return 1
    return sum(_occurrences(argument, value) for argument in expression.args)


def narrow_parts(program: Program) -> Program:
    """A part of a pointwise value is the pointwise value of the parts.

    A wide value that is read in parts only is never formed; all its gates are then computed side by
    side, one unit at a time. One that is needed whole as well is joined from the parts.
    """
    narrowing = _Narrowing(program)
    return drop_dead(narrowing.run())


class _Narrowing:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Names(str(value.name) for value in program.values)
        self.parts: dict[tuple[Value, tuple[Expr, ...]], Value] = {}
        self.statements: list[Statement] = []
        self.uses = program.uses

    def run(self) -> Program:
        for statement in self.program.statements:
            if statement.traits.is_part:
                source = statement.expression.operands[0]
                known = self.parts.get((source, statement.expression.attributes))
                if known == statement.target:
                    continue
                if known is not None:
                    self.statements.append(Statement(statement.target, known))
                    continue
                self.parts[source, statement.expression.attributes] = statement.target
            slices = self._slices(statement)
            if not slices:
                self.statements.append(statement)
                continue
            pieces = [self._piece(statement, node) for node in slices]
            axis = slices[0].attributes[0]
            self.statements.append(Statement(statement.target, Apply("concat", pieces, (axis,))))
        return drop_copies(self.program.with_statements(self.statements))

    def _slices(self, statement: Statement) -> list[Apply]:
        """The parts that are read of a pointwise value, if together they are the whole of it."""
        if not statement.is_pointwise:
            return []
        readers = [s for s in self.uses[statement.target] if s.traits.is_part]
        nodes = sorted(
            {s.expression for s in readers}, key=lambda n: (str(n.attributes[0]), n.sort_key())
        )
        axes = {node.attributes[0] for node in nodes}
        last = len(statement.target.shape) - 1
        if axes != {Integer(last)}:
            return []
        ordered, position = [], Integer(0)
        while nodes:
            found = next((n for n in nodes if n.attributes[1] == position), None)
            if found is None:
                return []
            nodes.remove(found)
            ordered.append(found)
            position = position + found.attributes[2]
        return ordered if position == statement.target.shape[-1] else []

    def _piece(self, statement: Statement, node: Apply) -> Value:
        """The pointwise statement of one part, its operands narrowed the same way."""
        swap = {
            operand: self._operand(operand, node, statement.target)
            for operand in statement.operands
        }
        expression = statement.expression.xreplace(swap)
        target = next(s.target for s in self.uses[statement.target] if s.expression == node)
        self.statements.append(Statement(target, expression))
        self.parts[statement.target, node.attributes] = target
        return target

    def _operand(self, operand: Value, node: Apply, whole: Value) -> Value:
        if not operand.shape or operand.shape[-1] != whole.shape[-1]:
            return operand
        _, start, size = node.attributes
        axis = len(operand.shape) - 1
        attributes = (Integer(axis), start, size)
        known = self.parts.get((operand, attributes))
        if known is None:
            known = self._named(operand, node)
            self.statements.append(Statement(known, part(operand, axis, start, size)))
            self.parts[operand, attributes] = known
        return known

    def _named(self, source: Value, node: Apply) -> Value:
        _, start, size = node.attributes
        index = start / size
        suffix = str(index) if index.is_Integer else str(len(self.parts))
        role = source.role if source.role is Role.ADJOINT else Role.TEMPORARY
        shape = (*source.shape[:-1], size)
        return Value(
            self.names.fresh(f"{source.name}_{suffix}"), shape, role, source.owner, source.order
        )


def unwrap_parts(program: Program) -> Program:
    """A part of a concatenation along the same cuts is the operand itself."""
    definitions = program.definitions
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        expression = statement.expression.xreplace(swap)
        if statement.traits.is_part:
            operand = _concat_operand(expression, definitions.get(expression.operands[0]))
            if operand is not None and statement.target in program.results:
                expression = operand.xreplace(swap)
            elif operand is not None:
                swap[statement.target] = operand.xreplace(swap)
                continue
        statements.append(Statement(statement.target, expression))
    return drop_dead(program.with_statements(statements))


def _concat_operand(node: Apply, source: Statement | None) -> Value | None:
    if source is None or not source.traits.is_join:
        return None
    axis, start, size = node.attributes
    if source.expression.attributes[0] != axis:
        return None
    position: Expr = Integer(0)
    for operand in source.operands:
        length = operand.shape[int(axis)]
        if position == start and length == size:
            return operand
        position = position + length
    return None


def accumulate_products(program: Program) -> Program:
    """Products that are only ever added to each other grow in one buffer.

    ``x @ w_x + h @ w_h`` becomes ``a = x @ w_x`` and ``b = a + h @ w_h``: each entry is then one
    chain of multiply-adds over both contracted axes, whichever of them is computed early.
    """
    uses, definitions = program.uses, program.definitions
    seeds: dict[Value, Value] = {}
    sums: dict[Value, tuple[Expr, Value]] = {}
    for statement in program.statements:
        terms = [
            term
            for term in statement.expression.args
            if statement.is_pointwise
            and statement.expression.is_Add
            and isinstance(term, Value)
            and term in definitions
            and definitions[term].traits.is_product
            and not definitions[term].traits.is_onto
            and uses[term] == (statement,)
            and term.shape == statement.target.shape
            and term not in program.results
        ]
        positions = {s.target: index for index, s in enumerate(program.statements)}
        terms.sort(key=positions.__getitem__)
        for seed, term in pairwise(terms):
            seeds[term] = seed
        if len(terms) > 1:
            rest = sympy.Add(*(t for t in statement.expression.args if t not in terms))
            sums[statement.target] = (rest, terms[-1])
    return _with_accumulation(program, seeds, sums)


def _with_accumulation(
    program: Program, seeds: dict[Value, Value], sums: dict[Value, tuple[Expr, Value]]
) -> Program:
    names = Names(str(value.name) for value in program.values)
    swap: dict[Value, Value] = {}
    statements = []
    for statement in program.statements:
        node, target = statement.expression, statement.target
        if target in seeds:
            seed = swap.get(seeds[target], seeds[target])
            name = names.fresh(f"{seed.name}_{node.operands[0].name}")
            grown = Value(name, target.shape, target.role, target.owner, target.order)
            swap[target] = grown
            product = statement.traits.product
            assert product is not None
            sum_of_both = Apply(product.grown, (seed, *node.operands), node.attributes)
            statements.append(Statement(grown, sum_of_both))
        elif target in sums:
            rest, last = sums[target]
            statements.append(Statement(target, rest + swap[last]))
        else:
            statements.append(statement)
    return _name_chain_ends(program.with_statements(statements))


def _name_chain_ends(program: Program) -> Program:
    """A value that is nothing but the end of a chain gives the chain its name."""
    ends = {
        s.expression: s.target
        for s in program.statements
        if isinstance(s.expression, Value)
        and len(program.uses[s.expression]) == 1
        and s.expression not in program.results
        and program.definitions.get(s.expression, s).traits.is_onto
    }
    statements = [
        Statement(ends.get(s.target, s.target), s.expression)
        for s in program.statements
        if s.expression not in ends
    ]
    return program.with_statements(statements)


def share_exponentials(program: Program) -> Program:
    """``exp(a - m)`` and ``exp(b - m)`` with ``m = maximum(a, b)`` take one exponential together.

    One of them is 1 and the other e^-|a - b|: the same bits, NaN included, since no comparison with
    NaN holds; where one exponent alone is +infinity, 1 is the limit of what was NaN. Exponential
    gates that are kept finite by their larger exponent are of this form. For programs that are
    derived already: what is differentiated is what the author wrote.
    """
    definitions = program.definitions
    sides = {
        node: side
        for statement in program.statements
        if statement.is_pointwise
        for node in statement.expression.atoms(exp)
        if (side := _side_of_maximum(node, definitions)) is not None
    }
    paired = {
        node: (pair, own)
        for node, (pair, own) in sides.items()
        if all((pair, one) in sides.values() for one in pair)
    }
    names = Names(str(value.name) for value in program.values)
    shared: dict[_Pair, _Pair] = {}
    statements: list[Statement] = []

    def emit(name: str, like: Value, expression: Expr) -> Value:
        shape = shape_of(expression)
        target = Value(names.fresh(name), shape, Role.TEMPORARY, like.owner, like.order)
        statements.append(Statement(target, expression))
        return target

    for statement in program.statements:
        nodes = statement.expression.atoms(exp) & paired.keys() if statement.is_pointwise else ()
        swap: dict[Expr, Expr] = {}
        for node in sorted(nodes, key=str):  # sets have another order in every process
            (first, second), own = paired[node]
            if (first, second) not in shared:
                gap = emit(f"{first.name}_{second.name}_gap", statement.target, first - second)
                decay = emit(f"{gap.name}_exp", statement.target, exp(-absolute(gap)))
                shared[first, second] = gap, decay
            gap, decay = shared[first, second]
            is_larger = ge(gap, 0) if own == first else le(gap, 0)
            swap[node] = where(is_larger, 1, decay)
        statements.append(Statement(statement.target, statement.expression.xreplace(swap)))
    return program.with_statements(statements)


_Pair: TypeAlias = tuple[Value, Value]


def _side_of_maximum(
    node: Expr, definitions: Mapping[Value, Statement]
) -> tuple[_Pair, Value] | None:
    """The two values of which the exponent is one less the larger, and which it is."""

    def written_out(expression: Expr) -> Expr:
        source = definitions.get(expression)
        return source.expression if source and source.is_pointwise else expression

    exponent = written_out(node.args[0])
    for term in sympy.Add.make_args(exponent):
        most, own = written_out(-term), exponent - term
        first, second = most.args if isinstance(most, maximum) else (None, None)
        if isinstance(first, Value) and isinstance(second, Value) and own in (first, second):
            return (first, second), own
    return None


def spread_heads(program: Program) -> Program:
    """Copy what differs between heads or units alone to all units of all heads.

    A loop runs over rows and over the units of all heads side by side; what has one of those two
    axes only is read there by way of a copy that has both.
    """
    names = Names(str(value.name) for value in program.values)
    known: dict[tuple[Value, Shape], Value] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        swap: dict[Value, Value] = {}
        shape = statement.target.shape
        if statement.is_pointwise and len(shape) == 3:
            for operand in statement.operands:
                wide = shape if len(operand.shape) == 3 else shape[1:]
                if not _differs_by_one(operand.shape, shape):
                    continue
                if (operand, wide) not in known:
                    name = names.fresh(f"{operand.name}_spread")
                    role = operand.role if operand.role is Role.ADJOINT else Role.TEMPORARY
                    copied = Value(name, wide, role, operand.owner, operand.order)
                    known[operand, wide] = copied
                    statements.append(Statement(copied, Apply("spread", (operand,), wide)))
                swap[operand] = known[operand, wide]
        statements.append(Statement(statement.target, statement.expression.xreplace(swap)))
    return program.with_statements(statements)


def _differs_by_one(shape: Shape, space: Shape) -> bool:
    """Whether a shape has one of the axes (heads, units) of a space, and not the other."""
    own = (Integer(1),) * (3 - len(shape)) + tuple(shape)
    is_whole = space[1] != 1 and space[2] != 1
    return is_whole and bool((own[1] == 1) != (own[2] == 1))


def materialize(program: Program) -> Program:
    """Copy what has to lie in memory at a place of its own.

    An optional argument that an operator reads (it may be missing), a result that is a part or the
    transpose of another value, a transpose that an operator reads, and an operand of a
    concatenation that already lives elsewhere: an argument, a result, a part, one used twice.
    """
    names = Names(str(value.name) for value in program.values)
    definitions = program.definitions
    placed: set[Value] = set()
    present: dict[Value, Value] = {}
    statements: list[Statement] = []

    def copy_of(value: Value) -> Value:
        name = names.fresh(f"{value.name}_copy")
        copied = Value(name, value.shape, value.role, value.owner, value.order)
        statements.append(Statement(copied, value))
        return copied

    def in_place(value: Value, reader: Traits) -> Value:
        source = definitions.get(value)
        is_turned = source is not None and source.traits.is_transpose
        if not reader.is_join:
            if value not in program.optional and not is_turned:
                return value
            if value not in present:
                present[value] = copy_of(value)
            return present[value]
        fixed = source is None or source.traits.is_part or value in program.results
        if fixed or is_turned or value in placed:
            return copy_of(value)
        placed.add(value)
        return value

    for statement in program.statements:
        node = statement.expression
        if isinstance(node, Apply):
            operands = [in_place(operand, statement.traits) for operand in node.operands]
            node = Apply(node.op, operands, node.attributes)
            if statement.traits.is_view and statement.target in program.results:
                like = statement.target
                name = names.fresh(f"{like.name}_view")
                view = Value(name, like.shape, like.role, like.owner, like.order)
                statements.append(Statement(view, node))
                node = view
        statements.append(Statement(statement.target, node))
    return program.with_statements(statements)


FORWARD: tuple[Rewrite, ...] = (
    merge_equal,
    transposed_products,
    distribute_concat,
    inline_sums,
    spread_heads,
    drop_dead,
)
"""What the forward program goes through before it is differentiated."""

LOWER: tuple[Rewrite, ...] = (
    merge_equal,
    drop_copies,
    unwrap_parts,
    accumulate_products,
    narrow_parts,
    unwrap_parts,
    inline_temporaries,
    spread_heads,
    drop_dead,
    materialize,
)
"""What every function goes through before it is scheduled."""
