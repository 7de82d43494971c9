"""Is speed uniform? Times every cell that ships; prints and keeps the figures.

    python -m benchmarks.zoo --threads 2 --against jax --into benchmarks/results/zoo.json
    python -m benchmarks.zoo --threads 2 --parts loops,claims --against torch --into FILE
    python -m benchmarks.zoo --from FILE --docs docs/reference/every-cell.md

Libraries that an environment lacks are skipped: run it once in each, into one file.
"""

import argparse
import sys
from pathlib import Path

from cellgen.bench import claims, zoo
from cellgen.bench.problem import Mode
from cellgen.bench.shapes import parse_shapes
from cellgen.bench.table import summary
from cellgen.errors import CellgenError


def words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("cells", nargs="*", metavar="CELL", help="all that ship where none is named")
    made.add_argument("--parts", default="uniform,loops,claims", metavar="PART,...")
    loops = ", ".join(peer.name.replace(" ", "-") for peer in zoo.LOOPS)
    made.add_argument("--against", metavar="LOOP,...", help=f"of {loops}, or jax, torch; or none")
    made.add_argument("--shapes", action="append", default=[], metavar="W2|T,B,I,H")
    made.add_argument("--mode", default="", help="forward, forward+backward")
    made.add_argument("--threads", type=int, default=1, metavar="N")
    made.add_argument("--rounds", type=int, default=3, metavar="N")
    made.add_argument("--limit", type=float, default=zoo.LIMIT, metavar="S", help="for one answer")
    made.add_argument("--into", type=Path, metavar="FILE", help="add the runs to a JSON file")
    made.add_argument("--from", dest="saved", type=Path, metavar="FILE", help="time nothing")
    made.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document")
    return made


def chosen_loops(text: str | None) -> list[zoo.Peer]:
    """Loops whose name begins with a word: ``torch``, ``torch-loop``, ``jax``; all by default."""
    if text is None:
        return list(zoo.LOOPS)
    begins = tuple(word.replace("-", " ") for word in words(text))
    return [peer for peer in zoo.LOOPS if peer.name.startswith(begins)]


def measured(options: argparse.Namespace) -> zoo.Zoo:
    kept = zoo.read_zoo(options.into) if options.into else zoo.Zoo((), {})
    plans = zoo.plans(
        words(options.parts),
        options.cells,
        chosen_loops(options.against),
        options.threads,
        options.rounds,
        options.limit,
        parse_shapes(options.shapes) if options.shapes else (),
        [Mode(word) for word in words(options.mode)],
    )
    command = " ".join(["python -m benchmarks.zoo", *sys.argv[1:]])
    runs = zoo.run(
        plans,
        command,
        lambda text: print(f"{text:90}", end="\r", file=sys.stderr),
        lambda case: print(
            f"{f'{case.cell} {case.mode} {case.shape.name}: {summary(case)}':90}", file=sys.stderr
        ),
    )
    found = kept.with_runs(runs)
    if options.into:
        zoo.save_zoo(found, options.into)
    return found


def main() -> None:
    options = parser().parse_args()
    try:
        found = zoo.read_zoo(options.saved) if options.saved else measured(options)
        print(claims.markdown(found))
        if options.docs:
            text = options.docs.read_text(encoding="utf-8")
            options.docs.write_text(claims.in_document(text, found), encoding="utf-8")
    except CellgenError as error:
        sys.exit(f"zoo: {error}")


if __name__ == "__main__":
    main()
