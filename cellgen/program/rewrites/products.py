"""Rewrites of products: of a transpose, of a concatenation, and of those that are added up."""

from __future__ import annotations

from itertools import pairwise

import sympy
from sympy import Expr, Integer

from cellgen.language.names import Names
from cellgen.language.ops import part, shape_of
from cellgen.language.value import Apply, Role, Value
from cellgen.program.rewrites.unused import drop_dead
from cellgen.program.ssa import Program, Statement


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
