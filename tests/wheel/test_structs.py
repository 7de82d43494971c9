"""Structs of C that a wheel fills without cellgen are as C has them; so are its numbers."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from cellgen.runtime import abi
from cellgen.runtime.host import threads
from cellgen.runtime.numbers import USUAL
from cellgen.runtime.options import BF16, FULL, INT8
from cellgen.runtime.paths import include_folder
from cellgen.wheel.packed import kernels, options, structs
from cellgen.wheel.packed.options import CallOptions
from tests.in_c import places

STRUCTS = {
    "cellgen_value": structs.ValueRecord,
    "cellgen_signature": structs.SignatureRecord,
    "cellgen_array": structs.ArrayRecord,
    "cellgen_scalar": structs.ScalarRecord,
    "cellgen_numbers": structs.NumbersRecord,
    "cellgen_request": structs.RequestRecord,
    "cellgen_fault": structs.FaultRecord,
    "cellgen_engine": structs.EngineRecord,
    "cellgen_cell": structs.CellRecord,
}


def test_members_lie_where_c_has_them(tmp_path: Path) -> None:
    own = []
    for kind in STRUCTS.values():
        places_of = [getattr(kind, name).offset for name, *_ in kind._fields_]
        own += [ctypes.sizeof(kind), *places_of]
    names = {name: [member for member, *_ in kind._fields_] for name, kind in STRUCTS.items()}
    assert own == places(names, tmp_path)


def test_a_call_that_says_nothing_says_the_usual_numbers() -> None:
    """But for products, which the type of its arrays tells."""
    numbers = CallOptions().numbers("elman.sequence_forward")
    said = {name: getattr(numbers, name) for name, _ in numbers._fields_}
    assert said == {**USUAL, "products": -1}


def test_numbers_that_a_wheel_states_for_itself_are_those_of_their_one_place() -> None:
    """A wheel stands without cellgen; its modules say again what headers and runtime say."""
    files = ("cellgen.h", "cellgen_descriptor.h", "cellgen_engine.h")
    texts = [(include_folder() / name).read_text(encoding="utf-8") for name in files]
    stated = {name: int(n) for name, n in re.findall(r"CELLGEN_(\w+) = (\d+)", "".join(texts))}
    own = {
        **{f"VALUE_{name}": getattr(kernels, name) for name in ("OPTIONAL", "SAVED", "WRITTEN")},
        **{f"ROLE_{name}": getattr(kernels, name) for name in ("SCALAR", "UPSTREAM", "GRADIENT")},
        **{f"STORED_{name}": getattr(kernels, name) for name in ("REAL", "BF16", "F16")},
        **{f"REASON_{name}": getattr(kernels, name) for name in ("GAPS", "UNBOUND")},
        "RUNS": kernels.FITS,
        "NOTHING": kernels.NOTHING,
    }
    assert own == {name: stated[name] for name in own}
    reasons_of_arrays = {stated[f"REASON_{name}"] for name in ("GAPS", "RANK", "LENGTH", "SHAPE")}
    assert kernels.FIXES.keys() == reasons_of_arrays
    assert options.PRODUCTS == (FULL, BF16, INT8)
    assert options.MOST_THREADS == threads.MAX_THREADS
    assert kernels.ALIGNMENT == abi.WORKSPACE_ALIGNMENT
    assert set(kernels.ERRORS) < set(abi.ERROR_CODES)
    assert structs.NO_GAPS == abi.NO_GAPS
    assert f"CELLGEN_VALUE_AXES {structs.AXES - 1} " in texts[1]
