"""Structs of C that Python fills are as C has them: each member at its place."""

from __future__ import annotations

from pathlib import Path

import _cffi_backend

from cellgen.runtime.build import library
from tests.in_c import places

STRUCTS = {kind.cname: kind for kind in library.STRUCTS}


def test_members_lie_where_c_has_them(tmp_path: Path) -> None:
    ffi, own = _cffi_backend.FFI(), []
    for kind in STRUCTS.values():
        own += [ffi.sizeof(kind), *(field.offset for _, field in kind.fields)]
    names = {name: [member for member, _ in kind.fields] for name, kind in STRUCTS.items()}
    assert own == places(names, tmp_path)
