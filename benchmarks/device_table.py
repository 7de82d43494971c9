"""Print what ``device.py`` measured as tables for a page.

python benchmarks/device_table.py benchmarks/results/cuda_h100.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Record = Mapping[str, object]
MODES = ("f_ms", "fb_ms", "f_graph_ms", "fb_graph_ms")
HEAD = ("forward", "with backward", "forward, a graph", "with backward, a graph")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def beside_cudnn(bench: Sequence[Record]) -> Iterator[str]:
    """Times of cuDNN's layers as multiples of ours, for the same shape and element type."""
    ours = {_key(r): r for r in bench if r.get("who") == "cellgen" and r.get("input_product")}
    rows = []
    for peer in bench:
        own = ours.get(_key(peer))
        if peer.get("who") != "torch" or "cell" not in peer or peer.get("tf32") or own is None:
            continue
        times = [f"{own[m]:.2f} ({peer[m] / own[m]:.2f})" for m in MODES]  # type: ignore[operator]
        rows.append([str(peer["cell"]), _shape(peer), str(peer["dtype"]), *times])
    yield from table(("layer", "T, B, H = I", "elements", *HEAD), rows)


def scans(bench: Sequence[Record]) -> Iterator[str]:
    """Times of minGRU's scan, and their multiples of a copy of as many bytes."""
    rows = [
        [
            _shape(r),
            str(r["dtype"]),
            f"{r['f_ms']:.2f} ({r['f_to_copy']:.1f})",
            f"{r['fb_ms']:.2f} ({r['fb_to_copy']:.1f})",
        ]
        for r in bench
        if "f_to_copy" in r
    ]
    yield from table(("T, B, H", "elements", *HEAD[:2]), rows)


def proofs(check: Sequence[Record]) -> Iterator[str]:
    """Largest errors by element type and by what is asked, over all cells."""
    rows = []
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        for what in ("over time", "step", "layouts"):
            found = [r for r in check if r.get("dtype") == dtype and r["what"] == what]
            if found:
                worst = max(float(r["error"]) for r in found)  # type: ignore[arg-type]
                passed = sum(r["ok"] is True for r in found)
                rows.append([dtype, what, f"{passed} of {len(found)}", f"{worst:.1e}"])
    yield from table(("elements", "what", "cells that pass", "largest error"), rows)


def chosen(tiers: Sequence[Record]) -> Iterator[str]:
    """Milliseconds of every tier, and what the model's choice takes more than the best."""
    rows = []
    for r in tiers:
        figures = [f"{r[t]:.3f}" if t in r else "" for t in ("steps", "whole", "fragments", "auto")]
        head = [str(r["cell"]), str(r["pass"]), _shape(r), str(r["dtype"])]
        rows.append([*head, *figures, f"{r['regret']:.2f}"])
    times = ("steps", "whole", "fragments", "auto", "to best")
    yield from table(("cell", "pass", "T, B, H", "elements", *times), rows)


def _key(record: Record) -> tuple[object, ...]:
    return str(record.get("cell")).lower(), str(record.get("shape")), record.get("dtype")


def _shape(record: Record) -> str:
    return ", ".join(map(str, record["shape"]))  # type: ignore[call-overload]


PARTS = {"check": (proofs,), "bench": (beside_cudnn, scans), "tiers": (chosen,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    report = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    print(f"{report['device']}, {report['date']}: `{report['command']}`")
    for part, printers in PARTS.items():
        for printer in printers if part in report else ():
            print()
            print("\n".join(printer(report[part])))


if __name__ == "__main__":
    main()
