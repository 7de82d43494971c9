"""Layers: folders are the stages of the pipeline, and a folder imports only from folders above it.

The table is the architecture. A new folder needs a row: there its place gets thought about.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.site import drawing
from tests.house.parsing import every_statement, parsed, statements_of

PACKAGE = Path(__file__).parents[2] / "cellgen"

FOLDERS = (
    "errors",
    "accept",  # what callers hand in
    "runtime",  # the path that loads a built kernel: needs NumPy and cffi only
    "language",
    "cells",
    "program",
    "schedule",
    "targets",
    "pipeline",
    "files",
    "api",
    "__init__ derivatives masks regularise",  # what people import by these names
    "views",
    "proof",
    "frameworks",  # what bridges to other frameworks share
    "compat bench torch jax onnx weights wheel",
    "keras",  # on torch's or JAX's bridge
    "report",  # pages, of views, proofs and benchmarks
    "cli",
    "__main__",
)
RANK = {name: rank for rank, names in enumerate(FOLDERS) for name in names.split()}

LAZY = {
    ("api", "pipeline"): "loading a built kernel must not import SymPy",
    ("api", "files"): "loading a built kernel must not import SymPy",
    ("api", "language"): "a cell of another package is imported by its name",
    ("api", "cells"): "a text that is held by its digest is generated from its declaration",
    ("frameworks/registry", "cells"): "shipped cells go by name; a class is needed for tangents",
    ("frameworks/registry", "language"): "loading a built kernel must not import SymPy",
    ("frameworks/registry", "program"): "loading a built kernel must not import SymPy",
    ("torch/forms", "language"): "a call step by step must not import SymPy",
    ("torch/forms", "program"): "a call step by step must not import SymPy",
    ("torch/forms", "torch"): "a call step by step must not import SymPy",
    ("torch/functional", "torch"): "a scan for ONNX is of a declaration, which imports SymPy",
    ("torch/launched", "torch"): "Triton is imported where its kernels run",
    ("torch/recurrent", "torch"): "declarations are imported when a layer of that kind is made",
    ("compat/mygrad", "cells"): "a drop-in whose kernel is built must not import SymPy",
    ("compat/epynn", "cells"): "a drop-in whose kernel is built must not import SymPy",
    ("compat/keras", "cells"): "a drop-in whose kernel is built must not import SymPy",
}
"""Function-local imports that are deliberate, and why. The command line's are all of that kind."""

WITHOUT_SYMPY = ("errors", "accept", "runtime", "proof/goldens")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).with_suffix("").as_posix(), path


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those of a module, whatever they stand in."""
    nodes = every_statement(parsed(path))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def folder_of(module: str) -> str:
    """``schedule/stages`` belongs to ``schedule``; a module beside the folders to itself."""
    return module.partition("/")[0]


def imported(node: ast.AST, module: str) -> Iterator[str]:
    """Names of cellgen's modules that an import statement reads."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = f"cellgen.{node.module}" if node.level and node.module else node.module or "cellgen"
        names = [f"cellgen.{a.name}" for a in node.names] if base == "cellgen" else [base]
    else:
        return
    for name in names:
        package, _, rest = name.partition(".")
        if package == "cellgen":
            part = rest.partition(".")[0]
            is_module = (PACKAGE / f"{part}.py").exists() or (PACKAGE / part).is_dir()
            yield part if part and is_module else "__init__"


@cache
def imports(path: Path, module: str) -> tuple[tuple[str, bool], ...]:
    """What a module imports from cellgen, and whether it does so inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in statements_of(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            for name in imported(child, module):
                yield name, inside
            local = inside or isinstance(child, ast.FunctionDef)
            yield from walk(child, local)

    return tuple(walk(parsed(path), False))


def test_every_folder_has_a_row() -> None:
    assert [module for module, _ in modules() if folder_of(module) not in RANK] == []


def test_folders_import_only_from_folders_above_them() -> None:
    upward = []
    for module, path in modules():
        own = folder_of(module)
        for name, _ in imports(path, module):
            same_folder = folder_of(name) == own
            if not same_folder and RANK[folder_of(name)] >= RANK[own]:
                upward.append(f"{module} imports {name}")
    assert [line for line in upward if tuple(line.split(" imports ")) not in LAZY] == []


def test_no_two_folders_within_a_stage_import_each_other() -> None:
    """``runtime/build`` and ``runtime/host``, ``targets/c`` and ``targets/cuda``, and so on."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in modules():
        own = module.rpartition("/")[0]
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellgen."):
                target = str(node.module).removeprefix("cellgen.").replace(".", "/")
                folder = target if (PACKAGE / target).is_dir() else target.rpartition("/")[0]
                edges[own].add(folder)
    mutual = {tuple(sorted((a, b))) for a in edges for b in edges[a] if a in edges.get(b, ())}
    # A stage and its own folders are one: `runtime/abi` serves `runtime/build`.
    pairs = {(a, b) for a, b in mutual if a and not f"{b}/".startswith(f"{a}/")}
    assert sorted(pairs) == []


def test_no_module_is_imported_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, path in modules():
        name = module.removesuffix("/__init__").replace("/", ".")
        tree = parsed(path)
        found = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                prefix = "cellgen." if node.level else ""
                target = f"{prefix}{node.module}".removeprefix("cellgen.")
                found |= {target, *(f"{target}.{alias.name}" for alias in node.names)}
        graph[name] = found
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' -> '.join((*path, name))}"
        if name in done:
            return
        # A package's own modules import each other, not the package: that is checked by name.
        for target in sorted(graph[name] & set(graph)):
            if not f"{name}.".startswith(f"{target}."):
                visit(target, (*path, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_no_module_takes_a_private_name_of_another() -> None:
    taken = [
        f"{module}: {alias.name}"
        for module, path in modules()
        for node in import_statements(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellgen")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert taken == []


def test_imports_inside_functions_are_the_deliberate_ones() -> None:
    local = {
        (module, name)
        for module, path in modules()
        for name, inside in imports(path, module)
        if inside and not module.startswith("cli/")
    }
    assert sorted(local - set(LAZY)) == []


@pytest.mark.parametrize("folder", WITHOUT_SYMPY)
def test_loading_a_built_kernel_imports_neither_sympy_nor_jinja2(folder: str) -> None:
    place = PACKAGE / folder
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    assert paths
    for path in paths:
        roots = {
            (node.module or "").partition(".")[0]
            if isinstance(node, ast.ImportFrom)
            else alias.name
            for node in import_statements(path)
            for alias in node.names
        }
        assert not roots & {"sympy", "jinja2", "mpmath"}, path


def test_importing_the_package_imports_neither_sympy_nor_jinja2() -> None:
    code = "import sys, cellgen, cellgen.runtime.kernel, cellgen.api; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'sympy'" not in done.stdout
    assert "'jinja2'" not in done.stdout


def test_loading_and_calling_a_kernel_reads_its_interface_and_imports_nothing_that_made_it() -> (
    None
):
    code = (
        "import sys, cellgen; kernel = cellgen.load('elman'); kernel.pack; "
        "kernel.sequence_forward.plan(T=1, B=1, I=1, H=1); print(sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'cellgen.runtime.interface_file'" in done.stdout
    for name in (
        "sympy",
        "jinja2",
        "cellgen.language",
        "cellgen.targets",
        "cellgen.runtime.device",
    ):
        assert f"'{name}" not in done.stdout, name


def test_only_the_backend_of_cuda_and_its_target_import_what_is_of_a_device() -> None:
    """What loads a kernel, and all that takes a target, goes through the table of backends."""
    found = {
        module
        for module, path in modules()
        for node in import_statements(path)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("cellgen.runtime.device")
        and not module.startswith("runtime/device/")
    }
    # api: for its types, under TYPE_CHECKING; Triton has the same assembler
    assert found == {"api", "runtime/triton/assembler", "targets/cuda/source"}


def test_the_drawing_of_the_folders_is_what_the_code_imports_and_hands_on() -> None:
    there = drawing.PICTURE.read_text(encoding="utf-8")
    assert there == drawing.draw(), "old: run `python -m docs.site.drawing`"


def test_the_drawing_shows_every_folder_after_all_that_it_imports() -> None:
    placed = drawing.order()
    assert set(placed) == {folder_of(module) for module, _ in modules()} - drawing.HIDDEN
    assert all(placed.index(a) > placed.index(b) for a, b in drawing.import_edges())
    assert "CellPrograms" in drawing.handed_on()["program", "schedule"]
