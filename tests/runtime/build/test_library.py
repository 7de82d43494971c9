"""Structs of C that Python fills are as C has them: each member at its place."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import _cffi_backend
import pytest

from cellgen.runtime.build import library
from cellgen.runtime.paths import include_folder

STRUCTS = {
    "cellgen_array": library._ARRAY,
    "cellgen_scalar": library._SCALAR,
    "cellgen_request": library._REQUEST,
    "cellgen_engine": library._ENGINE,
    "cellgen_cell": library._CELL,
    "cellgen_numbers": library._NUMBERED,
}


def test_members_lie_where_c_has_them(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    ffi = _cffi_backend.FFI()
    own, lines = [], []
    for name, kind in STRUCTS.items():
        own.append(ffi.sizeof(kind))
        lines.append(f'printf("%zu ", sizeof({name}));')
        for member, field in kind.fields:
            own.append(field.offset)
            lines.append(f'printf("%zu ", offsetof({name}, {member}));')
    source, program = tmp_path / "places.c", tmp_path / "places"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "cellgen_engine.h"\n'
    source.write_text(f"{includes}int main(void) {{ {' '.join(lines)} return 0; }}\n")
    command = ["cc", f"-I{include_folder()}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    places = subprocess.run([program], capture_output=True, check=True, text=True).stdout
    assert own == [int(place) for place in places.split()]
