"""Show a cell in chunks: its layers, and the programs of each, as text, LaTeX or plain data.

Input: a ``Definition``. Output: strings. Equations are printed from the programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cellgen.language.cell import Definition
from cellgen.program.chunks import equation_of, kind_of, lines_of
from cellgen.program.chunks.programs import ChunkPrograms, chunk_programs
from cellgen.program.chunks.writer import ChunkProgram
from cellgen.program.ssa import Program
from cellgen.views.layout import fitted
from cellgen.views.show import (
    FunctionSection,
    derived,
    section_data,
    section_latex,
    section_text,
)


def as_text(definition: Definition, width: int | None = None) -> str:
    """The layers of a cell, then the programs of each, and what forms the outputs.

    An equation has one line, or as many as it takes within ``width`` columns.

    Raises:
        DerivationError: a cell without a form over time, with the statement that forbids it.
    """
    programs = chunk_programs(definition)
    head = f"{definition.name} ({definition.origin}) in chunks of {programs.length} steps"
    layers = "\n".join(f"  {line}" for line in lines_of(programs.form))
    of_programs = (section_text(one, width) for one in sections(programs))
    blocks = [fitted(f"{head}\n{layers}", width), *of_programs]
    return "\n\n".join(blocks)


def as_latex(definition: Definition) -> str:
    """One ``align*`` for each program. Raises DerivationError as ``as_text`` does."""
    return "\n\n".join(section_latex(one) for one in sections(chunk_programs(definition)))


def as_data(definition: Definition) -> dict[str, object]:
    """The same as plain data, for ``--json``. Raises DerivationError as ``as_text`` does."""
    programs = chunk_programs(definition)
    return {
        "name": definition.name,
        "origin": definition.origin,
        "steps": str(programs.length),
        "layers": [
            {
                "states": [str(state) for state in chunk.layer.states],
                "kind": kind_of(chunk.layer),
                "equation": equation_of(chunk.layer, programs.form),
                "safe_steps": chunk.safe_steps,
            }
            for chunk in programs.layers
        ],
        "functions": [section_data(one) for one in sections(programs)],
    }


def sections(programs: ChunkPrograms) -> tuple[FunctionSection, ...]:
    """The programs in the order in which they run."""
    functions = [section for chunk in programs.layers for section in _of_layer(programs, chunk)]
    post = programs.form.post
    if post is not None and post.results:
        functions.append(_by_row(programs, post))
    return tuple(functions)


def _of_layer(programs: ChunkPrograms, chunk: ChunkProgram) -> Iterator[FunctionSection]:
    yield _by_row(programs, programs.form.pre[chunk.layer.states])
    for program in (chunk.program, chunk.factored):
        if program is not None:
            yield _of_steps(programs, program)


def _of_steps(programs: ChunkPrograms, program: Program) -> FunctionSection:
    """Both sides of a solve have lines of their own, though each is read once."""
    solved = {v for s in program.statements if s.traits.is_solve for v in s.operands}
    sides = tuple(s.target for s in program.statements if s.target in solved)
    with_sides = replace(program, results=tuple(dict.fromkeys((*program.results, *sides))))
    section = derived(programs.definition, with_sides, set(), {})
    lines = tuple(replace(line, again=False) for line in section.lines)
    return replace(section, lines=lines, results=program.results)


def _by_row(programs: ChunkPrograms, program: Program) -> FunctionSection:
    """Values that are formed as in a step have the author's equations."""
    step = programs.form.step.definitions
    own = set[str]()
    reads = {readout.value for memory in programs.form.memories for readout in memory.readouts}
    of_reads = set(reads)
    for statement in program.statements:
        target = statement.target
        if of_reads.intersection(statement.operands):
            of_reads.add(target)
        elif step.get(target) == statement:
            own.add(str(target))
    equations = {str(equation.target) for equation in programs.definition.equations}
    section = derived(programs.definition, program, own & equations, {})
    return replace(section, lines=tuple(replace(line, again=False) for line in section.lines))
