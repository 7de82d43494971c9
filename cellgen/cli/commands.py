"""The command line: ``cellgen list | show | explain | new | build | check | ...``.

Results go to stdout, progress to stderr. Exit status: 0 fine, 1 a check or a build failed, 2 wrong
usage, 130 or 143 interrupted. A command over several cells goes through all and reports each that
failed.
Everything heavy is imported inside the command that needs it, so that ``cellgen --help`` is quick;
no mathematics and no file format is decided here.
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import cellgen
from cellgen.cli.explained import (
    FORMS,
    ONE_CELL,
    FormOption,
    JsonOption,
    TargetOption,
    backend_of,
    explained,
    require_form,
    require_of_backend,
    require_of_shape,
    weighed,
)
from cellgen.cli.export import export
from cellgen.cli.listing import list_families
from cellgen.cli.models import import_model
from cellgen.cli.screen import columns
from cellgen.cli.show import show
from cellgen.cli.status import FAILED, ending, leave, leave_for
from cellgen.cli.wheel import wheel
from cellgen.cli.written import compare, write_and_compile
from cellgen.errors import Failure, UsageError
from cellgen.runtime.backend import DEFAULT
from cellgen.runtime.progress import progress

app = typer.Typer(
    name="cellgen",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

cache_app = typer.Typer(help="The folder of compiled kernels.", no_args_is_help=True)

app.add_typer(cache_app, name="cache")

CellsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar=ONE_CELL, help="Cells; all that ship when none is named."),
]

OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where to write; else the repository's generated/, or ./generated."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellgen {cellgen.__version__}")
        raise typer.Exit


RoundsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Rounds, at least 7, which is the default.")
]

QuickOption = Annotated[
    bool, typer.Option("--quick", help="A first look in 20 s a cell: W1, 3 rounds, lstm if none.")
]


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
    """List the cells that ship, by family: what each is. Those of other packages follow.

    With --json their states, parameters and source, and whether they are built, too.
    """
    with ending():
        if not as_json:
            list_families()
            return
        from cellgen.cli import terminal
        from cellgen.views.catalogue import catalogue, of_packages

        with progress("describing cells"):
            entries = catalogue()
            others, failures = of_packages()
        terminal.print_json([asdict(entry) for entry in (*entries, *others)])
        for failure in failures:
            terminal.note(f"warning: {failure.error}")


app.command()(show)


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
            metavar="DTYPE",
            help="float32 (where left out) or float64; for cuda also bfloat16 or float16.",
        ),
    ] = "",
    target: TargetOption = DEFAULT,
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="One that the target knows; all when left out."),
    ] = "",
    memory_limit: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=0, help="What steps save may take; all when left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain how a cell runs over time: its plan, and the reason for each choice."""
    with ending():
        from cellgen.cli import terminal
        from cellgen.pipeline import explain as explain_target
        from cellgen.views.find import find_one
        from cellgen.views.layout import LINE, fitted

        runs = backend_of(target)
        dtype = dtype or runs.precisions[0]
        require_of_backend(runs, shape, threads, dtype, device)
        require_of_shape(runs, shape, memory_limit)
        chosen = find_one(cell)
        if runs.threads:
            with progress(f"explaining {cell}"):
                answer = explained(chosen, shape, threads, dtype, memory_limit)
            if as_json:
                terminal.print_json(answer.as_dict())
            else:
                typer.echo(terminal.with_headings(answer.text(min(columns() or LINE, LINE))))
            return
        with progress(f"explaining {cell}"):
            lines = explain_target(chosen, target)
            if shape:
                lines += weighed(chosen, runs, shape, dtype, device)
        if as_json:
            terminal.print_json(lines)
        else:
            typer.echo(terminal.with_headings(fitted("\n".join(lines), columns())))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="MyCell, or my_cell.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write; else the current folder.")
    ] = Path(),
) -> None:
    """Write a starter cell and its test, which pass as written."""
    with ending():
        from cellgen.cli.start import start

        cell, test = start(name, out)
        typer.echo(f"{cell}\n{test}")
        first = "" if importlib.util.find_spec("pytest") else " (first: pip install pytest)"
        typer.echo(f"next: cellgen show {cell}; python -m pytest {test}{first}", err=True)


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
    with ending():
        from cellgen.cli import terminal
        from cellgen.files import tree
        from cellgen.files.make import generate_all
        from cellgen.views.find import find_each

        runs = backend_of(target)
        (chosen, failures), folder = find_each(cells or ()), tree.target_folder(out)
        with nullcontext() if check else runs.preparing():
            with terminal.steps("generating", len(chosen)) as steps:
                sources, failed = generate_all(chosen, steps.quietly, target)
            failures += failed
            tree.refuse_shipped_names(folder, sources)
            if check:
                compare(folder, sources, not cells and not failures, as_json, failures)
            else:
                write_and_compile(folder, sources, jobs, target, as_json, failures)


@app.command("check")
def check_cells(
    cells: CellsArgument = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Cells at a time.")
    ] = 2,
    form: FormOption = FORMS[0],
    as_json: JsonOption = False,
) -> None:
    """Prove cells: hand-written forward, exact gradients, C against the equations.

    With --form chunk, programs of whole chunks against the steps.
    """
    with ending():
        require_form(form)
        from cellgen.cli import terminal
        from cellgen.proof.check import Report
        from cellgen.proof.check.several import check_each
        from cellgen.views.find import find_each

        chosen, failures = find_each(cells or ())
        with terminal.steps("checking", len(chosen)) as steps:
            every = check_each(
                chosen, seed=seed, jobs=jobs, say=steps.say, done=steps.done, form=form
            )
        reports = [one for one in every if isinstance(one, Report)]
        failures += [one for one in every if isinstance(one, Failure)]
        if as_json:
            terminal.print_json([r.as_dict() for r in reports] + [f.as_dict() for f in failures])
        elif reports:
            terminal.print_reports(reports)
        leave_for(failures, is_worse=not all(report.ok for report in reports))
        if not all(report.ok for report in reports):
            raise typer.Exit(FAILED)


@app.command()
def bench(  # noqa: PLR0913, PLR0917 - one argument an option
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
    rounds: RoundsOption = None,
    quick: QuickOption = False,
    memory: Annotated[bool, typer.Option("--memory", help="Peak memory as well.")] = False,
    as_json: JsonOption = False,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep the JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the comparison.")] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.html", help="Write a page: bars, and the cells."),
    ] = None,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show what was kept; time nothing."),
    ] = None,
) -> None:
    """Time whole sequences beside other libraries, as multiples of what the machine allows."""
    with ending():
        from cellgen.cli import bench as command

        failures: list[Failure] = []
        if plot is not None:
            command.require_matplotlib()
        if saved is not None:
            outcome = command.read(saved)
        else:
            options = (cells or (), against, shapes or (), threads, mode, rounds, memory)
            plan, failures = command.usable(*command.plan_of(*options, quick=quick))
            if not plan.cells:
                leave_for(failures)
            outcome = command.run(plan)
        if save is not None:
            command.save(outcome, save)
        command.show(outcome, as_json)
        if plot is not None:
            from cellgen.bench.plot import draw

            draw(outcome, plot)
        if page is not None:
            from cellgen.cli import report as pages

            pages.write(pages.bench_page(outcome, cells or ()), page)
        leave_for(failures, is_worse=True)


@app.command()
def report(
    cells: Annotated[list[str], typer.Argument(metavar=ONE_CELL, help="One cell, or several.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="Where to write.")],
    shape: Annotated[
        str, typer.Option(metavar="T,B,I,H", help="Dimensions of figures of memory.")
    ] = "W2",
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--bench",
            metavar="FILE",
            help="What `cellgen bench --save` kept; else what a checkout keeps.",
        ),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove/--no-prove", help="Compile and prove cells.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the proof's random numbers.")] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Cells at a time.")
    ] = 2,
) -> None:
    """Write a page on cells: equations, derivation, graph, plan, memory, speed, proof."""
    with ending():
        from cellgen.cli import report as command
        from cellgen.views.find import find_each

        at, measured = command.shape_of(shape), command.results_of(results or ())
        chosen, failures = find_each(cells)
        if not chosen:
            leave_for(failures)
        page, failed = command.page_of(chosen, at, measured, prove=prove, seed=seed, jobs=jobs)
        command.write(page, out)
        leave_for([*failures, *failed], is_worse=bool(failed))


app.command()(export)
app.command("import")(import_model)
app.command()(wheel)


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
    with ending():
        from cellgen.cells import SHIPPED
        from cellgen.cli import gallery as pages
        from cellgen.cli import terminal

        folder = pages.gallery_folder(out)
        with terminal.steps("writing", len(SHIPPED)) as steps:
            texts, failures = pages.files(SHIPPED, pages.kept_results(), steps.quietly)
        if not check:
            pages.write(folder, texts, is_whole=not failures)
            typer.echo(str(folder))
            leave_for(failures)
            return
        differences = pages.differences(folder, texts, is_whole=not failures)
        terminal.print_differences(differences)
        leave_for(failures)
        if differences:
            leave(f"{folder} differs in {len(differences)} places; `cellgen gallery` writes it")
        terminal.note(f"{folder} is what {len(SHIPPED)} cells give")


@app.command()
def convert(
    file: Annotated[
        Path, typer.Argument(metavar="IN", help="A .safetensors, .npz, .pt, .h5, .keras file.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A .safetensors or .npz file to write.")
    ],
    source: Annotated[str, typer.Option("--from", metavar="DIALECT", help="torch.nn.LSTM, ...")],
    target: Annotated[str, typer.Option("--to", metavar="DIALECT", help="onnx.LSTM, ...")],
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="How the arrays' names begin.")] = "",
    prove: Annotated[bool, typer.Option("--prove", help="Run both libraries' equations.")] = False,
) -> None:
    """Convert one layer's weights from one library's layout to another's."""
    with ending():
        from cellgen import weights

        if file.resolve() == out.resolve():
            raise UsageError(f"OUT is IN, {file}, whose arrays would be lost; name another file")
        with progress(f"converting {file.name}"):
            read = weights.load(file)
            converted = weights.convert(read, source, target, prefix=prefix, prove=prove)
        weights.save(out, converted)
        for name, array in converted.items():
            typer.echo(f"{name} {array.shape} {array.dtype}")
        if converted.difference is not None:
            typer.echo(
                f"{source} and {target} differ by at most {converted.difference:.1e}", err=True
            )


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Look at compiler, headers, cache and extras; say what is missing and how to get it."""
    with ending():
        from cellgen.cli import terminal
        from cellgen.cli.doctor import examine

        with progress("looking at compilers"):
            findings = examine()
        healthy = all(finding.ok for finding in findings if finding.required)
        if as_json:
            records = [asdict(finding) for finding in findings]
            terminal.print_json({"ok": healthy, "findings": records})
        else:
            terminal.print_findings(findings)
        if not healthy:
            leave("something that is required is missing")


@cache_app.command("info")
def cache_info(as_json: JsonOption = False) -> None:
    """Say where compiled kernels are kept, how many, and their size."""
    with ending():
        from cellgen.cli import terminal
        from cellgen.cli.doctor import size
        from cellgen.runtime.build import cache

        kernels = cache.info()
        if as_json:
            data = {"path": str(kernels.path), "kernels": kernels.entries, "bytes": kernels.bytes}
            terminal.print_json(data)
        else:
            typer.echo(f"{kernels.path}: {kernels.entries} kernels, {size(kernels.bytes)}")


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove every compiled kernel; they are compiled again when they are needed."""
    with ending():
        from cellgen.cli.doctor import size
        from cellgen.runtime.build import cache

        before = cache.clear()
        typer.echo(f"removed {before.entries} kernels, {size(before.bytes)} from {before.path}")
