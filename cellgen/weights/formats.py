"""How a file of arrays is read, by its kind: one reader a row, no code of a file is run.

Input: the path of a file that is there and not empty. Output: arrays by name. Readers raise what
their library raises, and FormatError for what is known to go wrong.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from cellgen.weights.grids import Array, Arrays

_KERAS_NAMES = ("kernel", "recurrent_kernel", "bias")
"""Variables of a recurrent cell of Keras 3, whose files number them."""
_KERAS_VARIABLE = re.compile(r"(?P<cell>.*)/vars/(?P<number>\d+)")
_TORCH_CODE = re.compile(
    r"unsupported (?:global|class):? (?:GLOBAL )?(?P<code>[\w.]+)|TorchScript archive",
    re.IGNORECASE,
)
"""How torch says that a file holds code, and of which name."""
_TORCH_REASON = re.compile(
    r"WeightsUnpickler error: (?P<reason>.*?)(?: Check the documentation of torch\.load|$)"
)
"""Where torch says what it could not read."""

_A = TypeVar("_A")


class FormatError(Exception):
    """What is wrong of a file, and what to do."""


def required(module: str, extra: str) -> Any:
    """The library that reads or writes a kind of file. Raises FormatError."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise FormatError(
            f"such files need the package {package}, which is not installed: "
            f"pip install 'cellgen-compiler[{extra}]', or use .npz"
        ) from None


def _by_name(pairs: Iterable[tuple[str, _A]]) -> dict[str, _A]:
    """Arrays by name. Raises FormatError for a name that two of them have."""
    arrays: dict[str, _A] = {}
    for name, array in pairs:
        if name in arrays:
            raise FormatError(f"it holds two arrays of the name {name}; rename one")
        arrays[name] = array
    return arrays


def _npz(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            is_array = file.read(6) == b"\x93NUMPY"
        holds = "one array without a name, as .npy files do" if is_array else "no archive"
        raise FormatError(
            f"it holds {holds}, expected an .npz; write it with numpy.savez(path, **arrays)"
        )
    with np.load(path, allow_pickle=False) as held:
        members = _by_name((name, held[name]) for name in held.files)
    return {name: array for name, array in members.items() if isinstance(array, np.ndarray)}


def _safetensors(path: Path) -> Arrays:
    try:
        return dict(required("safetensors.numpy", "weights").load_file(path))
    except AttributeError as error:  # of a type of numbers that NumPy lacks
        raise FormatError(f"NumPy lacks its numbers ({error}); give one in float32") from None


def _pytorch(path: Path) -> Arrays:
    torch = required("torch", "torch")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        said = " ".join(str(error).split())
        code = _TORCH_CODE.search(said)
        if code:
            raise FormatError(
                f"it holds more than tensors, {code['code'] or 'TorchScript'}, which is code that "
                f"reading would run; save model.state_dict() in place of it, or convert "
                f"model.state_dict() in a program"
            ) from None
        reason = _TORCH_REASON.search(said)
        if not reason:
            raise
        raise FormatError(
            f"it is damaged, or no file of torch.save ({reason['reason']}); give a whole file"
        ) from None
    tensors = _by_name(_tensors(held, torch.Tensor))
    if "" in tensors:
        raise FormatError("it holds one tensor without a name, expected several by name")
    return {name: _from_torch(name, tensor, torch) for name, tensor in tensors.items()}


def _tensors(held: object, kind: type, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of nested dicts and lists, names joined with "/"."""
    if isinstance(held, kind):
        yield name, held
        return
    pairs: Iterable[tuple[object, object]] = ()
    if isinstance(held, Mapping | list | tuple):
        pairs = held.items() if isinstance(held, Mapping) else enumerate(held)
    for key, value in pairs:
        yield from _tensors(value, kind, f"{name}/{key}" if name else str(key))


def _from_torch(name: str, tensor: Any, torch: Any) -> Array:
    try:
        plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        array: Array = plain.detach().resolve_conj().resolve_neg().numpy()
        return array
    except (TypeError, RuntimeError) as error:  # sparse, quantised, of a type that NumPy lacks
        raise FormatError(
            f"{name} is {tensor.dtype}, {tensor.layout}, which NumPy cannot read ({error}); save "
            f"a dense one in float32"
        ) from None


def _hdf5(source: Path | IO[bytes]) -> Arrays:
    h5py, datasets = required("h5py", "weights"), dict[str, Array]()

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "fiub":
            return
        if item.external or item.is_virtual:
            raise FormatError(f"{name} lies in another file, expected arrays of this one")
        datasets[name] = item[()]

    with h5py.File(source, "r") as file:
        file.visititems(visit)
    return _by_name(_named_by_keras(datasets))


def _keras(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        return _hdf5(BytesIO(archive.read("model.weights.h5")))


def _named_by_keras(arrays: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Name the numbered variables of recurrent cells; ``gru/cell/vars/0`` is a kernel."""
    for name, array in arrays.items():
        part = _KERAS_VARIABLE.fullmatch(name)
        number = int(part["number"]) if part and len(part["number"]) == 1 else len(_KERAS_NAMES)
        if part and number < len(_KERAS_NAMES) and _is_recurrent(arrays, f"{part['cell']}/vars"):
            yield f"{part['cell']}/{_KERAS_NAMES[number]}", array
        else:
            yield name, array


def _is_recurrent(arrays: Mapping[str, Array], group: str) -> bool:
    """Whether variables are (I, n H), (H, n H) and perhaps biases, for 1, 3 or 4 gates."""
    shapes = [arrays[f"{group}/{k}"].shape for k in range(3) if f"{group}/{k}" in arrays]
    if len(shapes) < 2 or not len(shapes[0]) == len(shapes[1]) == 2:
        return False
    (_, width), (units, again), *biases = shapes
    of_gates = width == again and width in (units, 3 * units, 4 * units)
    return of_gates and all(shape[-1:] == (width,) for shape in biases)


READERS: Mapping[str, Callable[[Path], Arrays]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    **dict.fromkeys((".pt", ".pth", ".ckpt"), _pytorch),
    **dict.fromkeys((".h5", ".hdf5"), _hdf5),
    ".keras": _keras,
}
"""A reader for each ending of a file's name."""
