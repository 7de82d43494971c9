"""What a stream is saved as: ids and states in an .npz, and whose they are."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.npz import write_npz
from cellgen.runtime.results import Array

FORMAT = 1
HEAD = "stream"
"""The entry that says whose states these are, as JSON."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The states of a stream by layer and name, (rows, ...), the ids of the rows, and the cell."""

    cell: str
    digest: str
    ids: tuple[str | int, ...]
    states: tuple[Mapping[str, Array], ...]


def write(file: str | Path | IO[bytes], content: bytes) -> None:
    """Write bytes to a file, which stays as it was where writing fails. Raises OSError."""
    if not isinstance(file, str | Path):
        file.write(content)
        return
    path = Path(file)
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_bytes(content)
        whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)


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
            f"{label}: the source is {accept.shown(source)}, expected a path, a file or bytes"
        )
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(arrays.pop(HEAD).tobytes())
        layers = [dict[str, Array]() for _ in range(head["layers"])]
        for name, array in arrays.items():
            number, _, state = name.partition("/")
            layers[int(number)][state] = array
        if not all(type(name) in (str, int) for name in head["ids"]):
            raise ValueError("ids that are no texts and no numbers")
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}, this cellgen reads {FORMAT}")
        return Snapshot(head["cell"], head["digest"], tuple(head["ids"]), tuple(layers))
    except (ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile) as fault:
        raise ArgumentError(
            f"{label}: the source is no saved stream ({accept.reason(fault)}), expected what save "
            f"or to_bytes gave; save again"
        ) from fault


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
    kinds, expected = _kinds(snapshot), _kinds(own)
    if kinds != expected:
        raise ArgumentError(
            f"{label}: the states are {kinds}, expected {expected}, by layer; restore them into a "
            f"stream of the same weights"
        )
    for states in snapshot.states:
        for name, array in states.items():
            if len(array) != len(snapshot.ids):
                raise ArgumentError(
                    f"{label}: {name} has {len(array)} rows, expected {len(snapshot.ids)}, one for "
                    f"each id; save again"
                )


def _kinds(snapshot: Snapshot) -> str:
    """Names, shapes of one row and dtypes of all states, as a message says them."""
    layers = [
        ", ".join(f"{n} {a.shape[1:]} of {a.dtype}" for n, a in states.items())
        for states in snapshot.states
    ]
    return "; ".join(layers)
