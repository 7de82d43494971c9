"""Write prebuilt kernels for C and C++: an archive with headers, pkg-config's file and CMake's.

Input: ``Compiled`` objects of one machine, sources of the cells. Output: the bytes of a tar.gz. The
dynamic linker of glibc (2.33 and newer) takes the highest level that the processor has, from
``glibc-hwcaps``; others take the lowest. Equal input gives equal bytes.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence

import cellgen
from cellgen.errors import UsageError
from cellgen.runtime.abi import Interface
from cellgen.runtime.build.sources import SourceFiles, included
from cellgen.wheel.levels import MACHINES, ProcessorLevel
from cellgen.wheel.objects import Compiled
from cellgen.wheel.pack import Naming

PC = """prefix=${{pcfiledir}}/../..
Name: cellgen-{name}
Description: Prebuilt kernels of {cells}, by cellgen {version}
Version: {release}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -l{name} -Wl,-rpath,${{prefix}}/lib
"""
CONFIG = """# find_package(cellgen-{name}), target cellgen::{name}
get_filename_component(_root "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
if(NOT TARGET cellgen::{name})
    add_library(cellgen::{name} SHARED IMPORTED)
    set_target_properties(cellgen::{name} PROPERTIES
        IMPORTED_LOCATION "${{_root}}/lib/lib{name}.so"
        IMPORTED_SONAME "lib{name}.so"
        INTERFACE_INCLUDE_DIRECTORIES "${{_root}}/include")
endif()
"""
CONFIG_VERSION = """set(PACKAGE_VERSION "{release}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
    if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
        set(PACKAGE_VERSION_EXACT TRUE)
    endif()
endif()
"""


def archive(
    naming: Naming,
    cells: Sequence[tuple[Interface, SourceFiles]],
    objects: Sequence[Compiled],
) -> tuple[str, bytes]:
    """The file name of an archive for one machine, and its bytes."""
    name, machine = naming.name, objects[0].level.machine
    root = f"{name}-{naming.release}"
    said = {
        "name": name,
        "release": naming.release,
        "version": cellgen.__version__,
        "cells": ", ".join(interface.name for interface, _ in cells),
    }
    package = f"lib/cmake/cellgen-{name}/cellgen-{name}-config"
    files = {f"include/{file}": text.encode() for file, text in _headers(cells).items()}
    files |= _libraries(name, objects)
    files[f"lib/pkgconfig/cellgen-{name}.pc"] = PC.format(**said).encode()
    files[f"{package}.cmake"] = CONFIG.format(**said).encode()
    files[f"{package}-version.cmake"] = CONFIG_VERSION.format(**said).encode()
    return f"{root}-linux-{machine}.tar.gz", _packed(root, files)


def require_lowest(levels: Sequence[ProcessorLevel]) -> None:
    """Refuse an archive without the lowest level, which any processor runs. Raises UsageError."""
    if levels[0].number != 1:
        lowest = MACHINES[levels[0].machine][0].name
        raise UsageError(
            f"--c needs the level {lowest}, for programs on any processor; add it to --levels"
        )


def _libraries(name: str, objects: Sequence[Compiled]) -> dict[str, bytes]:
    """The lowest level stands in ``lib``, others where glibc looks for them, AMX beside them."""
    lowest, *others = objects
    files = {f"lib/lib{name}.so": lowest.data}
    for one in others:
        folder = f"glibc-hwcaps/{one.level.hwcaps}" if one.level.hwcaps else one.level.name
        files[f"lib/{folder}/lib{name}.so"] = one.data
    return files


def _headers(cells: Sequence[tuple[Interface, SourceFiles]]) -> dict[str, str]:
    """Headers of cells, and what these include."""
    headers: dict[str, str] = {}
    for interface, sources in cells:
        texts = dict(sources.files)
        todo = [f"{interface.name}.h"]
        while todo:
            name = todo.pop()
            base = name.removeprefix("include/")
            if base not in headers:
                headers[base] = texts[name]
                todo += [f"include/{n}" for n in included(texts[name]) if f"include/{n}" in texts]
    return headers


def _packed(root: str, files: Mapping[str, bytes]) -> bytes:
    """An archive of files, sorted, of one date and one owner."""
    memory = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=memory, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive_,
    ):
        for path in sorted(files):
            entry = tarfile.TarInfo(f"{root}/{path}")
            entry.size, entry.mode = len(files[path]), 0o755 if path.endswith(".so") else 0o644
            archive_.addfile(entry, io.BytesIO(files[path]))
    return memory.getvalue()
