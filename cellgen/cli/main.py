"""The command line: ``cellgen list | show | explain | new | build | check | ...``.

Results go to stdout, progress to stderr. Exit status: 0 fine, 1 a check or a build failed, 2 wrong
usage, 130 interrupted. A command over several cells goes through all and reports each that failed.
Everything heavy is imported inside the command that needs it, so that ``cellgen --help`` is quick;
no mathematics and no file format is decided here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import cellgen
from cellgen.errors import BuildError, CellgenError, Failure, UsageError
from cellgen.runtime.backend import BACKENDS, DEFAULT, Backend, backend

if TYPE_CHECKING:
    from cellgen.language.cell import Cell
    from cellgen.runtime.abi import Function
    from cellgen.runtime.backend import AnyKernel
    from cellgen.targets import Source
    from cellgen.views.explain import Explanation

FAILED, USAGE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="cellgen",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(help="The folder of compiled kernels.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

ONE_CELL = "CELL|FILE.py[:NAME]"
CellsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar=ONE_CELL, help="Cells; all that ship when none is named."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
TargetOption = Annotated[
    str, typer.Option("--target", metavar="|".join(BACKENDS), help="What it is compiled for.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where to write; else the repository's generated/, or ./generated."
    ),
]


def main() -> None:
    """Run the command line (the entry point ``cellgen``)."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellgen {cellgen.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Compile recurrent-cell equations into fused forward and backward kernels in readable C."""


@app.command("list")
def list_cells(as_json: JsonOption = False) -> None:
    """List the cells that ship: states, parameters, source, and whether they are built."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.views.catalogue import catalogue

        entries = catalogue()
        if as_json:
            terminal.print_json([asdict(entry) for entry in entries])
        else:
            terminal.print_catalogue(entries)


@app.command()
def show(
    cell: Annotated[str, typer.Argument(metavar=ONE_CELL, help="The cell to show.")],
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="Print the plan of the C.")] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the graph of a step.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a cell's equations, its derived backward, its plan, or its graph as a picture."""
    with _errors():
        if latex + schedule + as_json + (svg is not None) > 1:
            raise UsageError("give one of --latex, --schedule, --svg and --json")
        from cellgen.cli import terminal
        from cellgen.pipeline import programs_of, schedules_of
        from cellgen.views import show as shown
        from cellgen.views.find import find_one

        found = find_one(cell)
        if svg is not None:
            from cellgen.views.graph import draw

            _write_picture(svg, draw(found.definition))
        elif schedule:
            typer.echo(schedules_of(found))
        elif as_json:
            terminal.print_json(shown.as_data(programs_of(found)))
        else:
            typer.echo((shown.as_latex if latex else shown.as_text)(programs_of(found)))


@app.command("explain")
def explain_cell(
    cell: Annotated[str, typer.Argument(metavar=ONE_CELL, help="The cell to explain.")],
    shape: Annotated[
        str, typer.Option(metavar="T,B,I,H", help="Dimensions, for figures and choices.")
    ] = "",
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Threads; all processors when left out.")
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="float32 (where left out) or float64; for cuda also bfloat16."
        ),
    ] = "",
    target: TargetOption = DEFAULT,
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="One that the target knows; all when left out."),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Explain how a cell runs over time: its plan, and the reason for each choice."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.pipeline import explain as explain_target
        from cellgen.views.find import find_one

        runs = _backend(target)
        dtype = dtype or runs.precisions[0]
        _require_of_backend(runs, shape, threads, dtype, device)
        found = find_one(cell)
        if runs.threads:
            explained = _explained(found, shape, threads, dtype)
            terminal.print_json(explained.as_dict()) if as_json else typer.echo(str(explained))
            return
        lines = explain_target(found, target)
        if shape:
            lines += _weighed(found, runs, shape, dtype, device)
        terminal.print_json(lines) if as_json else typer.echo("\n".join(lines))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="MyCell, or my_cell.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write; else the current folder.")
    ] = Path(),
) -> None:
    """Write a starter cell and its test, which pass as written."""
    with _errors():
        from cellgen.cli.start import start

        cell, test = start(name, out)
        typer.echo(f"{cell}\n{test}")
        typer.echo(f"next: cellgen show {cell}; python -m pytest {test}", err=True)


@app.command()
def build(
    cells: CellsArgument = None,
    out: OutOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; print the diff to what stands there.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Compilers at a time.")
    ] = 2,
    target: TargetOption = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Generate the sources of cells, write them and compile them."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.files import tree
        from cellgen.files.make import generate_all
        from cellgen.views.find import find_each

        _backend(target)
        (found, failures), folder = find_each(cells or ()), tree.target_folder(out)
        with terminal.steps("generating", len(found)) as steps:
            sources, failed = generate_all(found, steps.quietly)
        failures += failed
        tree.refuse_shipped_names(folder, sources)
        if check:
            _compare(folder, sources, not cells and not failures, as_json, failures)
        else:
            _write_and_compile(folder, sources, jobs, target, as_json, failures)


@app.command("check")
def check_cells(
    cells: CellsArgument = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prove cells: hand-written forward, exact gradients, C against the equations."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.proof.check import check
        from cellgen.views.find import find_each

        found, failures = find_each(cells or ())
        reports = []
        with terminal.steps("checking", len(found)) as steps:
            for cell in found:
                name = cell.definition.name
                try:
                    reports.append(check(cell, seed=seed, progress=steps.say))
                except CellgenError as error:
                    failures.append(Failure(name, error))
                    steps.done(name, "FAILED")
                else:
                    steps.done(name, "ok" if reports[-1].ok else "FAILED")
        if as_json:
            terminal.print_json([r.as_dict() for r in reports] + [f.as_dict() for f in failures])
        elif reports:
            terminal.print_reports(reports)
        _leave_for(failures, is_worse=not all(report.ok for report in reports))
        if not all(report.ok for report in reports):
            raise typer.Exit(FAILED)


@app.command()
def bench(
    cells: Annotated[
        list[str] | None,
        typer.Argument(metavar=ONE_CELL, help="Cells; lstm and both GRUs when none is named."),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="PEER,...", help="Peers, or none; all when left out.")
    ] = "",
    shapes: Annotated[
        list[str] | None,
        typer.Option(metavar="W1,...|T,B,I,H", help="Shapes, or W1 to W6."),
    ] = None,
    threads: Annotated[
        str, typer.Option(metavar="N,...", help="Thread counts; all processors when left out.")
    ] = "",
    mode: Annotated[
        str, typer.Option(metavar="MODE,...", help="forward, forward+backward, or both.")
    ] = "",
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds, at least 7.")] = 7,
    memory: Annotated[bool, typer.Option("--memory", help="Peak memory as well.")] = False,
    as_json: JsonOption = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the comparison.")] = None,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show what was kept; time nothing."),
    ] = None,
) -> None:
    """Time whole sequences beside other libraries, as multiples of what the machine allows."""
    with _errors():
        from cellgen.cli import bench as command

        failures: list[Failure] = []
        if plot is not None:
            command.require_matplotlib()
        if saved is not None:
            report = command.read(saved)
        else:
            options = (cells or (), against, shapes or (), threads, mode, rounds, memory)
            plan, failures = command.usable(*command.plan_of(*options))
            if not plan.cells:
                _leave_for(failures)
            report = command.run(plan)
        if save is not None:
            command.save(report, save)
        command.show(report, as_json)
        if plot is not None:
            from cellgen.bench.plot import draw

            draw(report, plot)
        _leave_for(failures, is_worse=True)


@app.command()
def gallery(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; else docs/gallery of a checkout.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; print the diff to what stands there.")
    ] = False,
) -> None:
    """Write a page for every cell that ships: equations, derivation, plan, picture, speed."""
    with _errors():
        from cellgen.cells import SHIPPED
        from cellgen.cli import gallery as pages
        from cellgen.cli import terminal

        folder = pages.gallery_folder(out)
        made, failures = pages.files(SHIPPED, pages.kept_results())
        if not check:
            pages.write(folder, made, is_whole=not failures)
            typer.echo(str(folder))
            _leave_for(failures)
            return
        differences = pages.differences(folder, made, is_whole=not failures)
        terminal.print_differences(differences)
        _leave_for(failures)
        if differences:
            _leave(f"{folder} differs in {len(differences)} places; `cellgen gallery` writes it")
        terminal.note(f"{folder} is what {len(SHIPPED)} cells give")


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Look at compiler, headers, cache and extras; say what is missing and how to get it."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.cli.doctor import examine

        findings = examine()
        healthy = all(finding.ok for finding in findings if finding.required)
        if as_json:
            records = [asdict(finding) for finding in findings]
            terminal.print_json({"ok": healthy, "findings": records})
        else:
            terminal.print_findings(findings)
        if not healthy:
            _leave("something that is required is missing")


@cache_app.command("info")
def cache_info(as_json: JsonOption = False) -> None:
    """Say where compiled kernels are kept, how many, and their size."""
    with _errors():
        from cellgen.cli import terminal
        from cellgen.cli.doctor import size
        from cellgen.runtime.build import cache

        found = cache.info()
        if as_json:
            data = {"path": str(found.path), "kernels": found.entries, "bytes": found.bytes}
            terminal.print_json(data)
        else:
            typer.echo(f"{found.path}: {found.entries} kernels, {size(found.bytes)}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are compiled again when they are needed."""
    with _errors():
        from cellgen.cli.doctor import size
        from cellgen.runtime.build import cache

        before = cache.clear()
        typer.echo(f"removed {before.entries} kernels, {size(before.bytes)} from {before.path}")


# --- parts of commands ---------------------------------------------------------------------------


def _backend(target: str) -> Backend:
    """The backend that --target names. Raises UsageError."""
    if target not in BACKENDS:
        raise UsageError(f"--target {target}: expected one of {', '.join(BACKENDS)}")
    return backend(target)


def _require_of_backend(
    runs: Backend, shape: str, threads: int | None, dtype: str, device: str
) -> None:
    """Refuse options of ``explain`` that decide nothing for a target, or that it does not know."""
    if threads is not None and not runs.threads:
        raise UsageError(f"--threads is of targets on the host; leave it out for {runs.name}")
    if device and not runs.devices:
        of = ", ".join(name for name in BACKENDS if backend(name).devices)
        raise UsageError(f"--device is of --target {of}; leave it out for {runs.name}")
    if device and device not in runs.devices:
        raise UsageError(f"--device {device!r}: expected one of {', '.join(runs.devices)}")
    if dtype not in runs.precisions:
        raise UsageError(f"--dtype {dtype!r}: expected one of {', '.join(runs.precisions)}")
    for name, given in (("threads", threads is not None), ("device", device)):
        if given and not shape:
            raise UsageError(f"--{name} decides nothing without --shape T,B,I,H; give both")


def _explained(cell: type[Cell], shape: str, threads: int | None, dtype: str) -> Explanation:
    """The plan of a cell, with figures for a shape where one is given."""
    from cellgen import api
    from cellgen.runtime.host.threads import thread_count
    from cellgen.views.explain import explain, shape_of

    plain = explain(cell)  # a cell without functions over time is told so first
    if not shape:
        return plain
    kernel = api.compile(cell)
    over_time = _over_time(kernel)
    count = thread_count(threads, "cellgen explain")
    return explain(cell, shape_of(over_time, shape, count, dtype), kernel)


def _weighed(cell: type[Cell], runs: Backend, shape: str, dtype: str, device: str) -> list[str]:
    """What a backend chooses for a shape on devices, with the figures it is chosen by."""
    from cellgen import api
    from cellgen.views.explain import shape_of

    kernel = api.compile(cell, runs.name, emulated=runs.emulates)
    asked = shape_of(_over_time(kernel), shape, 1, dtype)
    sizes = ", ".join(f"{name} = {size}" for name, size in asked.sizes.items())
    return [f"at {sizes}; {dtype}:", *runs.weigh(kernel, asked.sizes, dtype, device)]


def _over_time(kernel: AnyKernel) -> Function:
    """The first of a kernel's functions over time. Raises UsageError: it has none."""
    found = next((f for f in kernel.interface.functions if f.team), None)
    if found is None:
        raise UsageError(f"{kernel.name} has the functions of one step only: no --shape")
    return found


def _compare(
    folder: Path,
    sources: Sequence[Source],
    whole: bool,
    as_json: bool,
    failures: Sequence[Failure],
) -> None:
    from cellgen.cli import terminal
    from cellgen.files import tree

    differences = tree.differences(folder, sources, whole)
    if as_json:
        records = [{"path": str(d.path), "text": d.text} for d in differences]
        failed = [failure.as_dict() for failure in failures]
        terminal.print_json({"folder": str(folder), "differences": records, "failures": failed})
    else:
        terminal.print_differences(differences)
    _leave_for(failures, is_worse=bool(differences))
    if differences:
        _leave(f"{folder} differs in {len(differences)} places; `cellgen build` writes it")
    terminal.note(f"{folder} is what {len(sources)} cells generate")


def _write_and_compile(
    folder: Path,
    sources: Sequence[Source],
    jobs: int,
    target: str,
    as_json: bool,
    failures: Sequence[Failure],
) -> None:
    from cellgen.cli import terminal
    from cellgen.files import tree
    from cellgen.files.make import compile_all, write_all

    if not sources:
        _leave_for(failures)
    written = write_all(folder, sources)
    for difference in tree.stale_files(folder, sources):
        terminal.note(f"warning: {difference.text}")
    with terminal.steps("compiling", len(sources)) as steps:
        outcomes = compile_all(written, jobs, steps.done, target)
    if as_json:
        terminal.print_json([o.as_dict() for o in outcomes] + [f.as_dict() for f in failures])
    else:
        terminal.print_outcomes(outcomes)
    uncompiled = [Failure(o.source.name, o.error) for o in outcomes if o.error]
    _leave_for([*failures, *uncompiled])


def _write_picture(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(str(path))


@contextmanager
def _errors() -> Iterator[None]:
    """Turn cellgen's errors into one message and an exit status; no traceback."""
    try:
        yield
    except UsageError as error:
        _leave(str(error), USAGE)
    except CellgenError as error:
        _leave(str(error), FAILED)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)


def _leave_for(failures: Sequence[Failure], *, is_worse: bool = False) -> None:
    """End where something failed, with every reason on stderr: wrong usage, if it was no more."""
    if failures:
        usage = not is_worse and all(isinstance(f.error, UsageError) for f in failures)
        texts = dict.fromkeys(str(failure.error) for failure in failures)
        _leave("\n".join(texts), USAGE if usage else FAILED)


def _leave(message: str, status: int = FAILED) -> NoReturn:
    """Say why on stderr and end with a status."""
    typer.secho("cellgen: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    raise typer.Exit(status)
