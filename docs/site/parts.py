"""Parts of pages that are read from the code: options, error codes, the public interface.

A page holds ``<!-- generated: NAME -->`` where a part begins and ``<!-- end -->`` where it ends.
Between stands what a reader of the repository sees: the part or, where it is long, its names.
``python -m docs.site.parts`` writes it; the build of the site puts the whole part there.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cellgen"
DOCUMENTS = PACKAGE.parent / "docs"
MARK = re.compile(r"<!-- generated: ([\w-]+) -->\n(?:.*?\n)??<!-- end -->", re.DOTALL)
COMMAND = "python -m docs.site.parts"


def filled(markdown: str) -> str:
    """A page of the site, with its generated parts.

    Raises:
        KeyError: a page asks for a part that does not exist.
    """
    return MARK.sub(lambda found: PARTS[found[1]](), markdown)


def written(markdown: str) -> str:
    """A page of the repository, with what stands there for its generated parts.

    Raises:
        KeyError: a page asks for a part that does not exist.
    """

    def part(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- generated: {name} -->\n{(SHORT.get(name) or PARTS[name])()}\n<!-- end -->"

    return MARK.sub(part, markdown)


def pages() -> Iterator[Path]:
    """Pages of the repository with generated parts."""
    for path in sorted(DOCUMENTS.rglob("*.md")):
        if MARK.search(path.read_text(encoding="utf-8")):
            yield path


def table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in lines)
    return "\n".join("| " + " | ".join(row) + " |" for row in escaped)


# --- options -------------------------------------------------------------------------------------

DIRECTIONS = {"sequence_forward": "forward", "sequence_backward": "backward"}


def options() -> str:
    """Every keyword of functions over time."""
    from cellgen.runtime.options import TABLE

    rows = [
        (
            f"`{option.name}`",
            f"`{option.default!r}`",
            ", ".join(DIRECTIONS[name] for name in option.functions),
            {"all": "every layer", "last": "the last layer", "": "no"}[option.layers],
            "yes" if option.on_device else "no",
            option.text,
        )
        for option in TABLE
    ]
    return table(("option", "default", "taken by", "in `Layers`", "CUDA", "what it does"), rows)


# --- errors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Raised:
    """A place that raises an error with a code of its own."""

    code: str
    message: str
    module: str


def error_classes() -> str:
    """Every class of errors with its code."""
    from cellgen import errors

    classes = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CellgenError)
    ]
    rows = [
        (f"`{kind.__name__}`", f"`{kind.code}`", (inspect.getdoc(kind) or "").replace("``", "`"))
        for kind in classes
    ]
    return table(("class", "code", "raised when"), rows)


@cache
def raised() -> tuple[Raised, ...]:
    """Errors whose code is more than that of their class, as they stand in the source."""
    found: dict[str, Raised] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "code=" not in text:
            continue
        tree = ast.parse(text)
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and (code := _code(call, constants)):
                module = path.relative_to(PACKAGE.parent).as_posix()
                found.setdefault(code, Raised(code, _message(call), module))
    return tuple(found[code] for code in sorted(found))


def _code(call: ast.Call, constants: Mapping[str, object]) -> str:
    for keyword in call.keywords:
        if keyword.arg == "code":
            value = keyword.value
            code = constants.get(value.id, "") if isinstance(value, ast.Name) else ""
            code = value.value if isinstance(value, ast.Constant) else code
            return code if isinstance(code, str) and "." in code else ""
    return ""


def _message(call: ast.Call) -> str:
    """The message of an error, with `...` where it names what was found."""
    for argument in call.args:
        if isinstance(argument, ast.JoinedStr):
            parts = [
                str(part.value) if isinstance(part, ast.Constant) else "..."
                for part in argument.values
            ]
            return "".join(parts)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value if " " in argument.value else ""
    return ""


def error_codes() -> str:
    """Every code beside those of declarations, with its message."""
    rows = [
        (f"`{error.code}`", " ".join(error.message.split()) or "see the page of its subject")
        for error in raised()
        if not error.code.startswith("declaration.")
    ]
    return "`...` stands for what a message names.\n\n" + table(("code", "message"), rows)


def code_names() -> str:
    """The codes alone."""
    codes = [error.code for error in raised() if not error.code.startswith("declaration.")]
    listed = textwrap.fill(", ".join(f"`{code}`" for code in codes), 180)
    return f"{listed}.\n\nThe site has the messages, too: `python -m docs.build`."


# --- C -------------------------------------------------------------------------------------------

CODE = re.compile(r"(CELLGEN_[A-Z_]+) = (\d+),? *(?:/\* (.*?) \*/)?")


def return_codes() -> str:
    """What a function in C returns, from its header."""
    header = (PACKAGE.parent / "generated" / "include" / "cellgen.h").read_text(encoding="utf-8")
    codes = header[header.index("CELLGEN_OK = 0") :].partition("}")[0]
    rows = [
        (
            f"`{name}`",
            value,
            re.sub(r"<cell>\w+(<\w+>\w+)*", r"`\g<0>`", text) or "results are written",
        )
        for name, value, text in CODE.findall(codes)
    ]
    return table(("code", "value", "when"), rows)


# --- the public interface ------------------------------------------------------------------------

INTERFACE: Mapping[str, tuple[str, ...]] = {
    "Kernels": (
        "cellgen.api.load",
        "cellgen.api.compile",
        "cellgen.api.write",
        "cellgen.runtime.kernel.Kernel",
    ),
    "Functions of a kernel": (
        "cellgen.runtime.call.function.KernelFunction",
        "cellgen.runtime.call.over_time.TimeFunction",
    ),
    "Stacks of layers": (
        "cellgen.runtime.stacks.Layers",
        "cellgen.runtime.stacks.Run",
        "cellgen.runtime.stacks.Gradients",
    ),
    "Step by step": ("cellgen.runtime.streams.stream.Stream",),
    "Regularisers and masks": (
        "cellgen.program.transforms.regularise.variational_dropout",
        "cellgen.program.transforms.regularise.recurrent_dropout",
        "cellgen.program.transforms.regularise.dropconnect",
        "cellgen.program.transforms.regularise.zoneout",
        "cellgen.program.transforms.masked_cell.masks_of",
        "cellgen.runtime.masks.draw_masks",
    ),
    "Derivatives": (
        "cellgen.program.transforms.tangent.tangent",
        "cellgen.runtime.derivatives.jvp",
        "cellgen.runtime.derivatives.hvp",
        "cellgen.runtime.derivatives.double_backward",
    ),
    "Learning online": (
        "cellgen.program.transforms.online.online",
        "cellgen.program.transforms.online.gradients_of",
    ),
    "Declarations": (
        "cellgen.language.cell.Cell",
        "cellgen.language.cell.Input",
        "cellgen.language.cell.State",
        "cellgen.language.cell.Static",
        "cellgen.language.cell.Weight",
        "cellgen.language.cell.Bias",
        "cellgen.language.cell.Scalar",
        "cellgen.language.value.Dim",
        "cellgen.language.ops.activation",
    ),
    "PyTorch": (
        "cellgen.torch.functional.function",
        "cellgen.torch.layers.module",
        "cellgen.torch.replacing.replace",
    ),
    "JAX": ("cellgen.jax.functional.function",),
    "Errors": ("cellgen.errors.CellgenError",),
}


def interface() -> str:
    """Docstrings of what people import, for mkdocstrings."""
    blocks = []
    for title, names in INTERFACE.items():
        blocks += [f"## {title}", *(f"::: {name}" for name in names)]
    return "\n\n".join(blocks)


def interface_names() -> str:
    """What people import: each name with the first sentence of its docstring."""
    rows = [
        (title if number == 0 else "", f"`{name.rpartition('.')[2]}`", _sentence(name))
        for title, names in INTERFACE.items()
        for number, name in enumerate(names)
    ]
    said = "The first sentences; the site has the whole docstrings: `python -m docs.build`."
    return f"{said}\n\n{table(('for', 'name', 'what it is'), rows)}"


def _sentence(name: str) -> str:
    """What a function or a class says of itself first, read without importing its module."""
    parts = name.split(".")[1:]
    path = PACKAGE.joinpath(*parts[:-1])
    for source in sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]:
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == parts[-1]:
                said = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if said:
                    return re.split(r"(?<!al\.)(?<=\.) ", said)[0].replace("``", "`")
    return ""


def operators() -> str:
    """The functions that a class body may call."""
    import cellgen

    known = set(cellgen.__all__) - {name.rpartition(".")[2] for name in INTERFACE["Declarations"]}
    rows = []
    for name in sorted(known - {"H", "I"}):
        thing = getattr(cellgen, name)
        said = (inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "`")
        rows.append((f"`{name}`", " ".join(said.split())))
    return table(("function", "what it is"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "options": options,
    "error-classes": error_classes,
    "error-codes": error_codes,
    "return-codes": return_codes,
    "interface": interface,
    "operators": operators,
}

SHORT: Mapping[str, Callable[[], str]] = {
    "error-codes": code_names,
    "interface": interface_names,
}
"""What stands in the repository for a part that is long."""


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(written(text), encoding="utf-8")
        print(page)
