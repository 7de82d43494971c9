"""cellgen's own kernels; a product and a copy by the code that they are made of."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cellgen
from cellgen.bench.peers import Prepared
from cellgen.bench.problem import Arrays, Mode, Problem
from cellgen.errors import BuildError
from cellgen.runtime import paths
from cellgen.runtime.build import compiler as build
from cellgen.runtime.kernel import Kernel, Results
from cellgen.views.find import find_one, is_file

LIMITS = r"""
#include <string.h>
#include "cellgen_gemm.h"
#include "cellgen_team.h"
typedef struct {
    int64_t n;
    const float *a, *b;
    float *c;
} product;
static void rows(int thread, int threads, void *context)
{
    const product *p = (const product *)context;
    int64_t begin, end;
    cellgen_team_partition(p->n, 1, thread, threads, &begin, &end);
    cellgen_gemm_nn_f32(end - begin, p->n, p->n, p->a + begin * p->n, p->n, p->b, p->n,
                        p->c + begin * p->n, p->n, 0);
}
#define EXPORTED __attribute__((visibility("default")))
EXPORTED void sgemm(void *team, int64_t n, const float *a, const float *b, float *c)
{
    product p = {n, a, b, c};
    cellgen_team_run((cellgen_team *)team, rows, &p);
}
typedef struct {
    int64_t bytes;
    const char *source;
    char *target;
} move;
static void bytes(int thread, int threads, void *context)
{
    const move *m = (const move *)context;
    int64_t begin, end;
    cellgen_team_partition(m->bytes, 64, thread, threads, &begin, &end);
    memcpy(m->target + begin, m->source + begin, (size_t)(end - begin));
}
EXPORTED void copy(void *team, int64_t count, const char *source, char *target)
{
    move m = {count, source, target};
    cellgen_team_run((cellgen_team *)team, bytes, &m);
}
EXPORTED void *team(int threads) { return cellgen_team_create(threads); }
"""


@cache
def kernel_of(selector: str) -> Kernel:
    """Return the kernel of a cell that ships, or of one in an author's file."""
    return cellgen.compile(find_one(selector)) if is_file(selector) else cellgen.load(selector)


def prepare(problem: Problem, mode: Mode, threads: int) -> Prepared:
    """Bind the compiled functions to the arrays, as ONNX Runtime's session is bound to its own.

    A forward pass finds its weights packed, as inference does; a training step packs them itself.
    """
    kernel, arrays = kernel_of(problem.selector), problem.draw()
    upstream = {name: arrays.pop(name) for name, _ in problem.upstream}

    how: dict[str, Any] = {"flush_denormals": True} if problem.flush_denormals else {}

    weights = {
        argument.name: arrays[argument.name]
        for argument in kernel.sequence_forward.function.arguments
        if argument.is_weight
    }
    inference: dict[str, Any] = {n: a for n, a in arrays.items() if n not in weights}
    if mode is Mode.FORWARD:
        inference["packed"] = kernel.pack(**weights)

    if mode is Mode.FORWARD:
        bound = kernel.sequence_forward.bind(**inference, threads=threads, **how)
        return Prepared(bound, lambda outcome: _compared(problem, mode, (outcome,)))
    taken = {argument.name for argument in kernel.sequence_backward.function.arguments}
    passed_on = [name for name, _ in problem.outputs if name in taken]

    forward = kernel.sequence_forward.bind(**arrays, threads=threads, save=True, **how)
    done: Any = forward.results
    backward = kernel.sequence_backward.bind(
        **arrays,
        **{name: getattr(done, name) for name in passed_on},
        **upstream,
        saved=done.saved,
        threads=threads,
        **how,
    )

    def both() -> tuple[Results, Results]:
        return forward(), backward()

    return Prepared(both, lambda outcome: _compared(problem, mode, outcome))


def _compared(problem: Problem, mode: Mode, outcome: Any) -> Arrays:
    """Name the arrays that peers have too."""
    named = {name: a for part in outcome for name, a in part._asdict().items()}
    return {name: named[name] for name in problem.compared[mode]}


def sgemm(n: int, threads: int) -> Callable[[], object]:
    """Multiply two (n, n) matrices with the GEMM that kernels are made of."""
    library, team = _compiled(), _team(threads)
    a, b, c = (np.full((n, n), value, np.float32) for value in (0.5, 0.25, 0))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, c)]

    def multiply(_kept: tuple[object, ...] = (a, b, c)) -> None:
        library.sgemm(team, ctypes.c_int64(n), *pointers)

    return multiply


def copy(count: int, threads: int) -> Callable[[], object]:
    """Move ``count`` bytes: read half as many, write half as many."""
    library, team = _compiled(), _team(threads)
    source, target = (np.full(count // 2, value, np.uint8) for value in (1, 0))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (source, target)]

    def move(_kept: tuple[object, ...] = (source, target)) -> None:
        library.copy(team, ctypes.c_int64(count // 2), *pointers)

    return move


@cache
def _team(threads: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(_compiled().team(threads) if threads > 1 else None)


@cache
def _compiled() -> ctypes.CDLL:
    """Compile ``LIMITS`` as kernels are compiled. Raises BuildError."""
    compiler = build.compiler()
    with tempfile.TemporaryDirectory() as folder:
        source, library_file = Path(folder, "limits.c"), Path(folder, "limits.so")
        source.write_text(LIMITS, encoding="utf-8")
        command = [
            *compiler.command,
            *compiler.flags,
            *build.link_flags(),
            f"-I{paths.include_folder()}",
        ]
        command += [str(source), "-o", str(library_file), "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the limits of the benchmark do not compile: {done.stderr[:500]}")
        library = ctypes.CDLL(str(library_file))
    library.team.restype = ctypes.c_void_p
    return library
