"""Write a wheel of prebuilt kernels: equal input gives equal bytes.

Input: ``Compiled`` objects of one machine, and the cells. Output: a wheel's name and bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import keyword
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cellgen
from cellgen import accept
from cellgen.errors import UsageError
from cellgen.runtime.abi import ABI_VERSION, Interface
from cellgen.wheel.objects import Compiled
from cellgen.wheel.packed import numbers
from cellgen.wheel.stub import wheel_stub

PACKED = Path(__file__).parent / "packed"
MODULES = ("structs", "options", "loader", "kernels", "torch", "jax")
NUMBERS = "numbers"
"""The module whose names are written into a wheel."""
RESERVED = ("level", "levels", NUMBERS, *MODULES)
TAKEN = ("cellgen", "numpy", "torch", "jax")
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every file: the earliest of the format."""
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)

INIT = '''"""Prebuilt kernels of {cells}, by cellgen {version}.

``level`` is the level of processors that is loaded, ``levels`` are those that are here.
"""

from pathlib import Path

from {name}.kernels import PrebuiltKernel
from {name}.loader import Objects
from {name}.options import KernelError

_objects = Objects(Path(__file__).parent)
level = _objects.level
levels = _objects.levels
{kernels}

__version__ = "{release}"
__all__ = {every!r}
'''
METADATA = """Metadata-Version: 2.1
Name: {distribution}
Version: {release}
Summary: Prebuilt kernels of {cells}, by cellgen {version}
Requires-Python: >=3.11
Requires-Dist: numpy>=1.26
"""


@dataclass(frozen=True)
class Naming:
    """What a wheel is called: the package that is imported, and its version.

    Raises UsageError: no name of a package, no version.
    """

    name: str
    release: str

    def __post_init__(self) -> None:
        """Hold both to what Python takes."""
        name = self.name
        is_name = name.isascii() and name.isidentifier() and name.strip("_")
        if not is_name or keyword.iskeyword(name):
            raise UsageError(
                f"--name {accept.quoted(name)}: expected a name that `import` takes, my_kernels"
            )
        if name.lower() in TAKEN:
            raise UsageError(f"--name {name} would hide the package of that name; choose another")
        if name in sys.stdlib_module_names:
            raise UsageError(f"--name {name} is a module of Python's own; choose another")
        if not VERSION.fullmatch(self.release):
            raise UsageError(f"--release {accept.quoted(self.release)}: expected one as 1.0.2")

    @property
    def distribution(self) -> str:
        """The name for package indexes."""
        return re.sub("_+", "-", self.name).strip("-").lower()


def require_names(interfaces: Sequence[Interface]) -> None:
    """Refuse cells whose names a package of kernels has for itself. Raises UsageError."""
    for interface in interfaces:
        if interface.name in RESERVED:
            raise UsageError(
                f"a package of kernels has a {interface.name!r} of its own; give the cell another "
                f'name: class ...(Cell, name="...")'
            )


def wheel(
    naming: Naming,
    interfaces: Sequence[Interface],
    objects: Sequence[Compiled],
    probe: bytes | None,
) -> tuple[str, bytes]:
    """The file name of a wheel for one machine, and its bytes."""
    machine, root = objects[0].level.machine, naming.name
    binaries = {f"{o.level.folder}/lib{root}.so": o.data for o in objects}
    if probe is not None:
        binaries[f"{machine}/level.so"] = probe
    tag = f"py3-none-manylinux_2_{max(o.glibc for o in objects)}_{machine}"
    manifest = _manifest(root, interfaces, objects, binaries, machine)
    cells = ", ".join(i.name for i in interfaces)
    said = {"cells": cells, "version": cellgen.__version__, "release": naming.release}
    info = f"{naming.distribution.replace('-', '_')}-{naming.release}.dist-info"
    own = {
        "__init__.py": _init(naming, interfaces, said),
        "manifest.json": json.dumps(manifest, indent=1, sort_keys=True),
        "__init__.pyi": wheel_stub(root, interfaces),
        "py.typed": "",
        f"{NUMBERS}.py": f'"""{numbers.__doc__}"""\n\nNAMES = {numbers.NAMES!r}\n',
        **{f"{module}.py": _copied(module, root) for module in MODULES},
    }
    files = {f"{root}/{path}": text.encode() for path, text in own.items()}
    files |= {f"{root}/{path}": data for path, data in binaries.items()}
    files[f"{info}/METADATA"] = METADATA.format(distribution=naming.distribution, **said).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: cellgen {cellgen.__version__}\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return f"{info.removesuffix('.dist-info')}-{tag}.whl", _zipped(files)


def _init(naming: Naming, interfaces: Sequence[Interface], said: Mapping[str, str]) -> str:
    names = [interface.name for interface in interfaces]
    kernels = "\n".join(f'{name} = PrebuiltKernel(_objects, "{name}")' for name in names)
    every = sorted([*names, "KernelError", "PrebuiltKernel", "level", "levels"])
    return INIT.format(name=naming.name, kernels=kernels, every=every, **said)


def _copied(module: str, root: str) -> str:
    text = (PACKED / f"{module}.py").read_text(encoding="utf-8")
    return text.replace("cellgen.wheel.packed", root)


def _manifest(
    root: str,
    interfaces: Sequence[Interface],
    objects: Sequence[Compiled],
    binaries: Mapping[str, bytes],
    machine: str,
) -> dict[str, object]:
    variants = [
        {
            "level": o.level.name,
            "machine": machine,
            "number": o.level.number,
            "needs": o.level.needs,
            "file": f"{o.level.folder}/lib{root}.so",
        }
        for o in objects
    ]
    probes = {machine: f"{machine}/level.so"} if f"{machine}/level.so" in binaries else {}
    return {
        "abi": ABI_VERSION,
        "cellgen": cellgen.__version__,
        "cells": {interface.name: interface.digest for interface in interfaces},
        "machines": {machine: variants},
        "probes": probes,
        "sha256": {path: hashlib.sha256(data).hexdigest() for path, data in binaries.items()},
    }


def _record(files: Mapping[str, bytes], own: str) -> bytes:
    def line(path: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{path},sha256={digest},{len(data)}"

    lines = [line(path, data) for path, data in sorted(files.items())]
    return "\n".join([*lines, f"{own},,", ""]).encode()


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """A wheel's files, sorted, of one date and one mode."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files, key=lambda path: (".dist-info/" in path, path)):
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, files[path], compresslevel=9)
    return memory.getvalue()
