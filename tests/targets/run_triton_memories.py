"""Errors of memories' kernels in Triton's interpreter, by cells and their cases."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cellgen.cells import SHIPPED
from tests.program.test_chunk_programs import OWN
from tests.quick_interpreter import quickly
from tests.targets.triton_memories import Case, Sizes, errors

CELLS = {one.definition.name: one for one in (*SHIPPED, *OWN)}


@contextmanager
def nothing_unwritten_is_read() -> Iterator[None]:
    """New tensors are NaN in the body; one thread is enough for tensors of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def errors_of(
    cases_of: Mapping[str, Sequence[Mapping[str, Any]]], folder: Path
) -> list[dict[str, float]]:
    """Errors of each result and gradient, a case of a cell after the other."""
    found = []
    with quickly(), nothing_unwritten_is_read(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # products of marked rows overflow, and are done again
        for name, cases in cases_of.items():
            for case in cases:
                sizes = Sizes(**case.get("sizes", {}))
                found.append(errors(CELLS[name], Case(**{**case, "sizes": sizes}), folder))
    return found
