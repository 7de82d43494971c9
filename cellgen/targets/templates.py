"""Load templates and hold each one's free variables equal to its context's fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import jinja2.meta

from cellgen.errors import DerivationError
from cellgen.runtime.names import c_member
from cellgen.runtime.paths import templates_folder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@cache
def environment_of(folder: Path) -> jinja2.Environment:
    """Read the templates of a folder once."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=jinja2.select_autoescape(("html.j2",), default=False),
    )
    environment.filters["member"] = c_member
    environment.filters["continued"] = continued
    return environment


def fill(template: str, context: DataclassInstance) -> str:
    """Render a template with the fields of its context.

    Raises:
        DerivationError: a field without use, or a variable without field.
    """
    values = {item.name: getattr(context, item.name) for item in dataclasses.fields(context)}
    check_template(template, values.keys())
    return environment_of(templates_folder()).get_template(template).render(values)


def fill_block(template: str, block: str, context: DataclassInstance) -> str:
    """Render one block of a template, which reads some fields of its context."""
    values = {item.name: getattr(context, item.name) for item in dataclasses.fields(context)}
    whole = environment_of(templates_folder()).get_template(template)
    return "".join(whole.blocks[block](whole.new_context(values)))


@cache
def blocks_of(template: str) -> tuple[str, ...]:
    """The names of a template's blocks, in order."""
    return tuple(environment_of(templates_folder()).get_template(template).blocks)


def continued(text: str) -> str:
    r"""Make lines the value of a macro of C: a backslash at the end of each but the last.

    >>> len(continued("a;\nb;\n"))
    108
    """
    lines = [f"    {line}" for line in text.rstrip("\n").split("\n")]
    return "\\\n".join([*(line.ljust(99) for line in lines[:-1]), lines[-1]]) + "\n"


def check_template(template: str, fields: Set[str]) -> None:
    """Hold a template's free variables equal to its context's fields.

    Raises:
        DerivationError: naming both.
    """
    environment = environment_of(templates_folder())
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, template)
    free = _free_variables(source)
    if free != fields:
        raise DerivationError(
            f"template {template} reads {sorted(free)}, its context has {sorted(fields)}",
            code="render.template",
        )


@cache
def _free_variables(source: str) -> Set[str]:
    environment = environment_of(templates_folder())
    return jinja2.meta.find_undeclared_variables(environment.parse(source))
