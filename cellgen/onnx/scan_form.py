"""How many values a ``Scan`` takes and gives, along which axes and in which direction.

Input: a node and its attributes. Raises UsageError, naming the node, where they do not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto

from cellgen import accept
from cellgen.errors import UsageError


def require_counts(label: str, node: NodeProto, options: Mapping[str, Any]) -> None:
    """Refuse a node that has not what its body takes and gives."""
    body, count = options["body"], int(options["num_scan_inputs"])
    takes, gives = len(body.input), len(body.output)
    states = takes - count
    counts = len(node.input), len(node.output)
    if not 1 <= count <= takes or counts != (takes, gives) or gives < states:
        raise UsageError(
            f"{label}: {counts[0]} operands, of which {count} are sequences, and {counts[1]} "
            f"results; its body takes {takes} and gives {gives}"
        )
    for name, expected in (("input", count), ("output", gives - states)):
        for what in ("axes", "directions"):
            values = options.get(f"scan_{name}_{what}") or [0] * expected
            fits = what == "axes" or all(value in (0, 1) for value in values)
            if len(values) != expected or not fits:
                raise UsageError(
                    f"{label}: scan_{name}_{what} is {accept.quoted(values)}, expected {expected} "
                    f"{'axes' if what == 'axes' else 'numbers 0 or 1'}"
                )


def goes_back(label: str, options: Mapping[str, Any]) -> bool:
    """Whether all sequences go from the last step to the first. Raises UsageError for some."""
    body, count = options["body"], int(options["num_scan_inputs"])
    results = len(body.output) - (len(body.input) - count)
    inputs = options.get("scan_input_directions") or [0] * count
    outputs = options.get("scan_output_directions") or [0] * results
    ways = {int(way) for way in (*inputs, *outputs)}
    if len(ways) > 1:
        raise UsageError(
            f"{label}: some of its sequences go in reverse and some do not; a cell goes through "
            f"all of them in one direction"
        )
    return ways == {1}
