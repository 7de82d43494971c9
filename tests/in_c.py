"""Where C has the members of structs that Python fills."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from cellgen.runtime.paths import include_folder


def places(structs: Mapping[str, Iterable[str]], folder: Path) -> list[int]:
    """Of each struct its bytes, then the place of each of its members, as ``cc`` has them."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    sizes = []
    for name, members in structs.items():
        sizes += [f"sizeof({name})", *(f"offsetof({name}, {member})" for member in members)]
    lines = "\n".join(f'    printf("%zu ", {size});' for size in sizes)
    source, program = folder / "places.c", folder / "places"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "cellgen_engine.h"\n'
    source.write_text(f"{includes}int main(void) {{\n{lines}\n    return 0;\n}}\n")
    command = ["cc", f"-I{include_folder()}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    said = subprocess.run([program], capture_output=True, check=True, text=True).stdout
    return [int(place) for place in said.split()]
