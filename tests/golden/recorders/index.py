"""Write index.json and accuracy.json from a full golden set of the peers' runs, a folder.

Keeps the entries of the files that are here, and the accuracy that their peers reached in float32,
as {op: {case: {array: [nrm, elt]}}}.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.golden.recorders import GOLDEN


def record(names: Sequence[str]) -> None:
    """Write both files from the folder that is named."""
    (full,) = map(Path, names)
    files = {path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/*.npz")}
    index = [row for row in json.loads((full / "index.json").read_text()) if row["file"] in files]
    assert {row["file"] for row in index} == files
    lines = ",\n".join(json.dumps(row) for row in index)
    (GOLDEN / "index.json").write_text(f"[\n{lines}\n]\n")
    cases: dict[str, dict[str, dict[str, list[float]]]] = {}
    stems = {Path(file).stem.removesuffix("_f32").removesuffix("_f64") for file in files}
    for peer in ("cells", "tf", "torch", "mygrad", "keras"):
        for row in json.loads((full / peer / "accuracy.json").read_text()):
            case = row["case"].removesuffix("_f32")
            if case in stems and f"{peer}/{case}" in {
                file.removesuffix(".npz").removesuffix("_f32") for file in files
            }:
                op = "mygrad gru" if peer == "mygrad" else row["op"]
                arrays = cases.setdefault(op, {}).setdefault(case, {})
                arrays[row["array"]] = [float(f"{row[key]:.5e}") for key in ("nrm", "elt")]
    blocks = []
    for op, by_case in cases.items():
        rows = ",\n".join(f'    "{case}": {json.dumps(a)}' for case, a in by_case.items())
        blocks.append(f'  "{op}": {{\n{rows}\n  }}')
    (GOLDEN / "accuracy.json").write_text("{\n" + ",\n".join(blocks) + "\n}\n")
