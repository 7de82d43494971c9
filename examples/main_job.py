"""The main job: build every cell that ships, prove each one, train a classifier with one of them.

    python examples/main_job.py

Three commands, one after the other; the first that fails ends the job with its exit status.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOB = (
    ("build every cell that ships", ("-m", "cellgen", "build")),
    ("prove each of them", ("-m", "cellgen", "check")),
    ("train on handwritten digits", ("examples/digits.py", "--seed", "0")),
)


def main() -> None:
    start = time.perf_counter()
    for number, (what, words) in enumerate(JOB, start=1):
        shown = " ".join(words).replace("-m cellgen", "cellgen")
        print(f"\n[{number}/{len(JOB)}] {what}: {shown}", flush=True)
        status = subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode
        if status:
            print(f"\nfailed: {shown} (exit {status})", file=sys.stderr)
            sys.exit(status)
    print(f"\ndone in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
