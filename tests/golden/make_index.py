"""Write index.json and accuracy.json of this folder from a full golden set: ``make_index.py FULL``.

Keeps the entries of the files that are here, and the accuracy that their peers reached in float32,
as {op: {case: {array: [nrm, elt]}}}.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(full: Path) -> None:
    files = {path.relative_to(HERE).as_posix() for path in HERE.glob("*/*.npz")}
    index = [row for row in json.loads((full / "index.json").read_text()) if row["file"] in files]
    assert {row["file"] for row in index} == files
    lines = ",\n".join(json.dumps(row) for row in index)
    (HERE / "index.json").write_text(f"[\n{lines}\n]\n")
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
    (HERE / "accuracy.json").write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
