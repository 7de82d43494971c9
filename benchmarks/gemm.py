"""GFLOP/s of the runtime's products and tiles beside NumPy's BLAS, in one interleaved run.

    python benchmarks/gemm.py [--f64] [--quick]

Each figure is the best of several rounds; a round measures every contender once, so that clock
changes and neighbours hit all of them. Operands are warm, as in a step; `team` splits the output
over two threads.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

from cellgen.runtime.build.compiler import compiler

INCLUDE = Path(__file__).parent.parent / "generated" / "include"

SOURCE = r"""
#include "cellgen_gemm.h"
#include "cellgen_team.h"
typedef void (*product)(int64_t, int64_t, int64_t, const REAL *, int64_t, const REAL *, int64_t,
                        REAL *, int64_t, int);
static const product products[] = {GEMM(nn), GEMM(nt), GEMM(tn)};
typedef struct {
    int kind;
    int64_t M, N, K;
    const REAL *a, *b;
    REAL *c;
} job;
static void work(int thread, int threads, void *context)
{
    const job *j = (const job *)context;
    int64_t begin, end;
    const int64_t lda = j->kind == 2 ? j->M : j->K, ldb = j->kind == 1 ? j->K : j->N;
    if (j->M >= 16 * threads) {
        cellgen_team_partition(j->M, 1, thread, threads, &begin, &end);
        products[j->kind](end - begin, j->N, j->K, j->a + begin * (j->kind == 2 ? 1 : lda), lda,
                          j->b, ldb, j->c + begin * j->N, j->N, 0);
    } else {
        cellgen_team_partition(j->N, 64, thread, threads, &begin, &end);
        products[j->kind](j->M, end - begin, j->K, j->a, lda,
                          j->b + begin * (j->kind == 1 ? ldb : 1), ldb, j->c + begin, j->N, 0);
    }
}
void multiply(cellgen_team *team, int kind, int64_t M, int64_t N, int64_t K, const REAL *a,
              const REAL *b, REAL *c)
{
    job j = {kind, M, N, K, a, b, c};
    cellgen_team_run(team, work, &j);
}
/* one tile row over `blocks` panels, `repeats` times */
void tiles(int64_t rows, int64_t vectors, int64_t K, const REAL *a, const REAL *panels,
           int64_t blocks, REAL *c, int64_t repeats)
{
    const int64_t width = vectors * LANES;
    while (repeats-- > 0)
        for (int64_t block = 0; block < blocks; ++block)
            TILE(rows, vectors, K, a, K, panels + block * K * width, c, width, 0);
}
int tile_rows(int vectors) { return (int)cellgen_tile_rows(vectors); }
int lanes(void) { return LANES; }
cellgen_team *team_create(int threads) { return cellgen_team_create(threads); }
static void nothing(int thread, int threads, void *context)
{
    (void)thread, (void)threads, (void)context;
}
typedef struct {
    cellgen_team *team;
    int64_t count;
} meeting;
static void meet(int thread, int threads, void *context)
{
    const meeting *m = (const meeting *)context;
    (void)threads;
    for (int64_t i = 0; i < m->count; ++i)
        cellgen_team_barrier(m->team, thread);
}
void barriers(cellgen_team *team, int64_t count)
{
    meeting m = {team, count};
    cellgen_team_run(team, meet, &m);
}
void regions(cellgen_team *team, int64_t count)
{
    while (count-- > 0)
        cellgen_team_run(team, nothing, NULL);
}
"""

SHAPES = [
    ("nn", 1, 512, 256),
    ("nn", 8, 512, 256),
    ("nn", 32, 512, 128),
    ("nn", 32, 512, 384),
    ("nn", 64, 2048, 1024),
    ("nn", 512, 512, 512),
    ("nn", 2048, 2048, 2048),
    ("nt", 1, 512, 256),
    ("nt", 32, 512, 384),
    ("nt", 64, 2048, 1024),
    ("nt", 2048, 2048, 2048),
    ("tn", 384, 1024, 3200),
    ("tn", 384, 512, 1024),
    ("tn", 2048, 2048, 2048),
]


def build(folder: Path, suffix: str) -> ctypes.CDLL:
    real = {"f32": "float", "f64": "double"}[suffix]
    names = [
        f"-DREAL={real}",
        f"-DGEMM(kind)=cellgen_gemm_##kind##_{suffix}",
        f"-DTILE=cellgen_tile_{suffix}",
        f"-DLANES=CELLGEN_LANES_{suffix.upper()}",
    ]
    (folder / "gemm.c").write_text(SOURCE)
    info = compiler()
    command = [*info.command, *info.flags, "-fvisibility=default", *names, f"-I{INCLUDE}", "-fPIC"]
    command += ["-shared", "gemm.c", "-o", "gemm.so", "-lpthread"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "gemm.so"))
    library.team_create.restype = ctypes.c_void_p
    return library


def pointer(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def aligned(shape: tuple[int, ...], dtype: type, random: np.random.Generator) -> np.ndarray:
    """Random values that start at a multiple of 64 bytes."""
    bytes_ = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = np.zeros(bytes_ + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    x = buffer[start : start + bytes_].view(dtype).reshape(shape)
    x[...] = random.standard_normal(shape, dtype)
    return x


def interleaved(contenders: list[Callable[[], object]], once: float, rounds: int) -> list[float]:
    """Best seconds per call of each contender; `once` is a guess of one call."""
    repeats = max(1, int(2e-3 / once))
    best = [float("inf")] * len(contenders)
    for _ in range(rounds):
        for number, call in enumerate(contenders):
            call()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[number] = min(best[number], (time.perf_counter() - start) / repeats)
    return best


def products(library: ctypes.CDLL, dtype: type, rounds: int) -> None:
    random = np.random.default_rng(0)
    team = ctypes.c_void_p(library.team_create(2))
    print(f"{'':4}{'M':>6}{'N':>6}{'K':>6}{'own':>9}{'BLAS':>9}{'ratio':>8}{'team of 2':>11}")
    for kind, M, N, K in SHAPES:
        a = aligned((K, M) if kind == "tn" else (M, K), dtype, random)
        b = aligned((N, K) if kind == "nt" else (K, N), dtype, random)
        c = aligned((M, N), dtype, random)
        number = ctypes.c_int(("nn", "nt", "tn").index(kind))
        dims = [ctypes.c_int64(x) for x in (M, N, K)]
        arguments = [number, *dims, pointer(a), pointer(b), pointer(c)]
        A, B = (a.T if kind == "tn" else a), (b.T if kind == "nt" else b)
        contenders = [
            lambda x=arguments: library.multiply(None, *x),
            lambda A=A, B=B, c=c: np.dot(A, B, out=c),
            lambda x=arguments: library.multiply(team, *x),
        ]
        flops = 2 * M * N * K
        own, blas, both = interleaved(contenders, flops / 1e11, rounds if flops < 1e9 else 5)
        print(
            f"{kind:4}{M:6}{N:6}{K:6}{flops / own / 1e9:9.1f}{flops / blas / 1e9:9.1f}"
            f"{blas / own:8.2f}{flops / both / 1e9:11.1f}",
            flush=True,
        )
    count = 20000
    for name in ("barriers", "regions"):
        call = library[name]
        seconds = interleaved([lambda c=call: c(team, ctypes.c_int64(count))], 1.0, rounds)[0]
        print(f"{name[:-1]} of 2 threads: {seconds / count * 1e9:.0f} ns")


def tiles(library: ctypes.CDLL, dtype: type, rounds: int) -> None:
    """All tile shapes, weights in L2 (256 KB) and in L3 (8 MB)."""
    random = np.random.default_rng(0)
    K, lanes = 256, library.lanes()
    memory = aligned(((8 << 20) // np.dtype(dtype).itemsize,), dtype, random)
    a, c = aligned((16, K), dtype, random), aligned((16, 8 * lanes), dtype, random)
    for name, size in (("L2", 256 << 10), ("L3", 8 << 20)):
        print(f"tiles, weights in {name}, GFLOP/s by rows 1, 2, ...")
        for vectors in range(1, 9):
            panel = K * vectors * lanes
            blocks = max(1, size // np.dtype(dtype).itemsize // panel)
            contenders = []
            for rows in range(1, library.tile_rows(vectors) + 1):
                numbers = [ctypes.c_int64(x) for x in (rows, vectors, K)]
                tail = [ctypes.c_int64(blocks), pointer(c), ctypes.c_int64(1)]
                arguments = [*numbers, pointer(a), pointer(memory), *tail]
                contenders.append(lambda x=arguments: library.tiles(*x))
            seconds = interleaved(contenders, blocks * panel * 8 / 1e11, rounds)
            rates = [2 * (rows + 1) * blocks * panel / t / 1e9 for rows, t in enumerate(seconds)]
            print(f"  {vectors} vectors:" + "".join(f"{rate:7.1f}" for rate in rates), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--f64", action="store_true", help="double precision")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    suffix, dtype = ("f64", np.float64) if options.f64 else ("f32", np.float32)
    rounds = 8 if options.quick else 30
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder), suffix)
        products(library, dtype, rounds)
        tiles(library, dtype, rounds)


if __name__ == "__main__":
    main()
