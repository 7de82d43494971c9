"""What a stream is saved as: ids and states in an .npz, and whose they are."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.npz import write_npz
from cellgen.runtime.results import Array
from cellgen.runtime.streams.rows import id_of

FORMAT = 1
MOST_LAYERS = 4096
ZIP = b"PK"
"""How an .npz begins."""
HEAD = "stream"
"""The entry that says whose states these are, as JSON."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The states of a stream by layer and name, (rows, ...), the ids of the rows, and the cell."""

    cell: str
    digest: str
    ids: tuple[str | int, ...]
    states: tuple[Mapping[str, Array], ...]


def write(label: str, file: str | Path | IO[bytes], content: bytes) -> None:
    """Write bytes to a file, which stays as it was where writing fails.

    Raises ArgumentError for what is no file; OSError, which names the file that was asked for.
    """
    if hasattr(file, "write"):
        file.write(content)
        return
    if not isinstance(file, str | Path) or not Path(file).name:
        raise ArgumentError(
            f"{label}: file is {accept.quoted(file)}, expected a path, or a file open for bytes"
        )
    path = Path(file)
    if path.is_dir():
        raise ArgumentError(
            f"{label}: file is {accept.quoted(file)}, a folder, expected the path of a file; name "
            f"one in it"
        )
    whole = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        whole.write_bytes(content)
        whole.replace(path)
    except OSError as fault:  # it names the file beside it, which nobody asked for
        raise OSError(fault.errno, fault.strerror, str(path)) from fault
    finally:
        with suppress(OSError):
            whole.unlink()


def as_bytes(snapshot: Snapshot) -> bytes:
    """An .npz of a snapshot."""
    head = {
        "format": FORMAT,
        "cell": snapshot.cell,
        "digest": snapshot.digest,
        "ids": list(snapshot.ids),
    }
    text = np.frombuffer(json.dumps({**head, "layers": len(snapshot.states)}).encode(), np.uint8)
    arrays = {
        f"{number}/{name}": array
        for number, states in enumerate(snapshot.states)
        for name, array in states.items()
    }
    memory = io.BytesIO()
    write_npz(memory, {HEAD: text, **arrays})
    return memory.getvalue()


def read(label: str, source: str | Path | IO[bytes] | bytes) -> Snapshot:
    """Read a snapshot, of whatever cell. Raises ArgumentError, OSError."""
    if isinstance(source, bytes | bytearray):
        content = bytes(source)
    elif isinstance(source, str | Path):
        content = Path(source).read_bytes()
    elif hasattr(source, "read"):
        content = source.read()
    else:
        raise ArgumentError(
            f"{label}: the source is {accept.quoted(source)}, expected a path, a file or bytes"
        )
    try:
        return _parsed(content)
    except Exception as fault:  # whatever zipfile, numpy and json raise for bytes of any origin
        raise ArgumentError(
            f"{label}: the source is no saved stream ({accept.reason(fault)}), expected what save "
            f"or to_bytes gave; save again"
        ) from fault


def _parsed(content: bytes) -> Snapshot:
    """The snapshot that bytes are. Raises all kinds of errors where they are none."""
    if not content.startswith(ZIP):  # NumPy would speak of pickles
        raise ValueError(f"{len(content)} bytes of something else")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is no array")
    head = json.loads(arrays.pop(HEAD).tobytes())
    if head["format"] != FORMAT:
        raise ValueError(f"format {head['format']}, this cellgen reads {FORMAT}")
    ids, count = head["ids"], head["layers"]
    if type(ids) is not list or not all(type(i) in (str, int) and i == id_of(i) for i in ids):
        raise ValueError("ids that are no texts and no numbers")
    if type(count) is not int or not 1 <= count <= MOST_LAYERS:
        raise ValueError(f"{count} layers")
    layers = {str(number): dict[str, Array]() for number in range(count)}
    for name, array in arrays.items():
        number, _, state = name.partition("/")
        layers[number][state] = array
    return Snapshot(head["cell"], head["digest"], tuple(ids), tuple(layers.values()))


def require_same(label: str, snapshot: Snapshot, own: Snapshot, room: int) -> None:
    """Raise ArgumentError for states that are not of this stream's kind."""
    if (snapshot.cell, snapshot.digest) != (own.cell, own.digest):
        raise ArgumentError(
            f"{label}: the states are of {snapshot.cell}, equations {snapshot.digest}, expected "
            f"{own.cell}, equations {own.digest}; restore them into a stream of that cell"
        )
    if len(snapshot.ids) > room:
        raise ArgumentError(
            f"{label}: {len(snapshot.ids)} rows were saved, expected at most {room}; make the "
            f"stream with more room"
        )
    if len(set(snapshot.ids)) != len(snapshot.ids):
        raise ArgumentError(f"{label}: the saved ids are not all different; save again")
    if _kinds(snapshot) != _kinds(own):
        raise ArgumentError(
            f"{label}: the states are {_said(snapshot)}, expected {_said(own)}, by layer; "
            f"restore them into a stream of the same weights"
        )
    for states in snapshot.states:
        for name, array in states.items():
            if array.shape[:1] != (len(snapshot.ids),):
                raise ArgumentError(
                    f"{label}: {name} has the shape {array.shape}, expected "
                    f"{len(snapshot.ids)} rows, one for each id; save again"
                )


def _kinds(snapshot: Snapshot) -> list[list[tuple[str, tuple[int, ...], str]]]:
    """Names, shapes of one row and dtypes of all states, by layer."""
    return [
        [(name, array.shape[1:], str(array.dtype)) for name, array in states.items()]
        for states in snapshot.states
    ]


def _said(snapshot: Snapshot) -> str:
    """Its kinds as a message says them."""
    layers = [
        ", ".join(f"{name} {shape} of {dtype}" for name, shape, dtype in kinds)
        for kinds in _kinds(snapshot)
    ]
    return "; ".join(layers)
