"""What streams take from outside: ids, files of any origin, several threads that save."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cellgen.errors import ArgumentError
from cellgen.runtime.streams.stream import Stream
from tests.runtime.streams.test_streams import gru, saved, some


def _npy(shape: str) -> bytes:
    """An array whose header says whatever, with nothing behind it."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def _forged(
    *,
    name: str = "0/h_prev.npy",
    data: bytes | None = None,
    head: bytes | None = None,
    method: int = 0,
    **said: object,
) -> bytes:
    """A saved stream of one row, with something else in one place."""
    with np.load(io.BytesIO(saved())) as archive:
        arrays = {n: archive[n] for n in archive.files}
    text = head or json.dumps({**json.loads(arrays["stream"].tobytes()), **said}).encode()
    state, first, memory = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(first, np.frombuffer(text, np.uint8))
    np.save(state, arrays["0/h_prev"])
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("stream.npy", first.getvalue())
        archive.writestr(name, state.getvalue() if data is None else data)
    content = bytearray(memory.getvalue())
    content[content.rindex(b"PK\x01\x02") + 10] = method
    return bytes(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": "a"}, "ids that are no texts and no numbers"),
        ({"ids": [True]}, "ids that are no texts and no numbers"),
        ({"ids": [1 << 2000]}, "ids that are no texts and no numbers"),
        ({"layers": 5000}, "5000 layers"),
        ({"layers": -1}, "-1 layers"),
        ({"name": "-1/h_prev.npy"}, "KeyError: '-1'"),
        ({"data": b"no array"}, "0/h_prev is no array"),
        ({"data": _npy(f"({2**40}, 4)")}, "MemoryError"),
        ({"method": 99}, "NotImplementedError"),
        ({"head": b"[" * 100_000}, "RecursionError"),
    ],
)
def test_a_file_of_any_origin_is_one_message(change: dict[str, object], said: str) -> None:
    stream = gru(rows=["a"], room=3)[2]
    with pytest.raises(ArgumentError, match=f"is no saved stream .*{said}"):
        stream.restore(_forged(**change))
    assert stream.ids == ("a",)
    stream.restore(_forged())
    assert stream.ids == (0,)


def test_true_is_no_id_and_numbers_of_numpy_are() -> None:
    stream = gru(rows=np.arange(2), room=3)[2]
    assert stream.ids == (0, 1)
    assert True not in stream
    for call in (stream.leave, stream.reset, stream.states):
        with pytest.raises(ArgumentError, match="True has no row"):
            call(True)
    with pytest.raises(ArgumentError, match="True has no row"):
        stream.step(some(1, 3), rows=[True])
    assert stream.join(np.int64(7)) == 2
    assert np.int32(7) in stream
    stream.leave(np.uint8(0))
    assert stream.ids == (7, 1)
    again = gru(room=3)[2]
    again.restore(stream.to_bytes())
    assert again.ids == (7, 1)


def test_threads_save_to_one_path(tmp_path: Path) -> None:
    streams, path, faults = [gru()[2] for _ in range(4)], tmp_path / "one.npz", []

    def save(stream: Stream) -> None:
        try:
            for _ in range(30):
                stream.save(path)
        except OSError as fault:
            faults.append(fault)

    threads = [threading.Thread(target=save, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert list(tmp_path.iterdir()) == [path]
    streams[0].restore(path)
