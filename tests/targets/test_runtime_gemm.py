"""The static runtime of the generated C: cellgen_gemm.h and cellgen_team.h, called by ctypes.

Every product is compared bit for bit with one chain of fused multiply-adds, k ascending, so that
tile shapes, packing, remainders and threads are all covered by one equality.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

INCLUDE = Path(__file__).parents[2] / "generated" / "include"
COMPILER = os.environ.get("CC", "cc")
FLAGS = ["-O1", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wconversion"]
FLAGS += ["-Wshadow", "-Werror"]
X86 = platform.machine() in ("x86_64", "AMD64")

SOURCE = r"""
#include "cellgen_gemm.h"
#include "cellgen_team.h"
#include <math.h>
#include <sys/mman.h>

#if defined(__FMA__) || defined(__aarch64__)
#define FMA_f32 fmaf
#define FMA_f64 fma
#else
#define FMA_f32(a, b, c) ((a) * (b) + (c))
#define FMA_f64(a, b, c) ((a) * (b) + (c))
#endif

/* everything a task needs to compute its partition of a product */
#define PRODUCT(S, REAL)                                                                           \
    typedef void (*product_##S)(int64_t, int64_t, int64_t, const REAL *, int64_t, const REAL *,    \
                                int64_t, REAL *, int64_t, int);                                    \
    typedef struct {                                                                               \
        product_##S product;                                                                       \
        int64_t M, N, K, lda, ldb, ldc, a_row, b_column;                                           \
        const REAL *a, *b;                                                                         \
        REAL *c;                                                                                   \
        int by_columns;                                                                            \
    } partition_##S;                                                                               \
    static void task_##S(int thread, int threads, void *context)                                   \
    {                                                                                              \
        const partition_##S *s = (const partition_##S *)context;                                   \
        int64_t begin, end;                                                                        \
        cellgen_team_partition(s->by_columns ? s->N : s->M, 3, thread, threads, &begin, &end);     \
        if (s->by_columns)                                                                         \
            s->product(s->M, end - begin, s->K, s->a, s->lda, s->b + begin * s->b_column, s->ldb,  \
                       s->c + begin, s->ldc, 0);                                                   \
        else                                                                                       \
            s->product(end - begin, s->N, s->K, s->a + begin * s->a_row, s->lda, s->b, s->ldb,     \
                       s->c + begin * s->ldc, s->ldc, 0);                                          \
    }                                                                                              \
    void split_##S(cellgen_team *team, int kind, int by_columns, int64_t M, int64_t N, int64_t K,  \
                   const REAL *a, int64_t lda, const REAL *b, int64_t ldb, REAL *c, int64_t ldc)   \
    {                                                                                              \
        partition_##S s = {kind == 0   ? cellgen_gemm_nn_##S                                       \
                       : kind == 1 ? cellgen_gemm_nt_##S                                           \
                                   : cellgen_gemm_tn_##S,                                          \
                       M, N, K, lda, ldb, ldc, kind == 2 ? 1 : lda, kind == 1 ? ldb : 1,           \
                       a, b, c, by_columns};                                                       \
        cellgen_team_run(team, task_##S, &s);                                                      \
    }                                                                                              \
    void nn_##S(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t lda, const REAL *b,        \
                int64_t ldb, REAL *c, int64_t ldc, int accumulate)                                 \
    {                                                                                              \
        cellgen_gemm_nn_##S(M, N, K, a, lda, b, ldb, c, ldc, accumulate);                          \
    }                                                                                              \
    void nt_##S(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t lda, const REAL *b,        \
                int64_t ldb, REAL *c, int64_t ldc, int accumulate)                                 \
    {                                                                                              \
        cellgen_gemm_nt_##S(M, N, K, a, lda, b, ldb, c, ldc, accumulate);                          \
    }                                                                                              \
    void tn_##S(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t lda, const REAL *b,        \
                int64_t ldb, REAL *c, int64_t ldc, int accumulate)                                 \
    {                                                                                              \
        cellgen_gemm_tn_##S(M, N, K, a, lda, b, ldb, c, ldc, accumulate);                          \
    }                                                                                              \
    /* three products of two left and two right operands, rows from `begin` on */                  \
    void outers_##S(int64_t M1, int64_t M2, int64_t N1, int64_t N2, int64_t K, const REAL *a1,     \
                    const REAL *a2, int64_t more, const REAL *b1, const REAL *b2, REAL *c11,       \
                    REAL *c21, REAL *c12, int accumulate, REAL *packed1, REAL *packed2,            \
                    int64_t begin1, int64_t end1, int64_t begin2, int64_t end2)                    \
    {                                                                                              \
        const cellgen_left_##S lefts[] = {{begin1, end1, a1, M1 + more, packed1},                  \
                                          {begin2, end2, a2, M2, packed2}};                        \
        const cellgen_right_##S rights[] = {{N1, b1, N1 + more}, {N2, b2, N2}};                    \
        const cellgen_outer_##S outers[] = {{0, 0, c11, N1 + 1, accumulate},                       \
                                            {0, 1, c12, N2, !accumulate},                          \
                                            {1, 0, c21, N1, accumulate}};                          \
        cellgen_gemm_outers_##S(lefts, 2, rights, 2, outers, 3, K);                                \
    }                                                                                              \
    void chain_##S(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t lda, const REAL *b,     \
                   int64_t ldb, REAL *c, int64_t ldc, int accumulate)                              \
    {                                                                                              \
        for (int64_t row = 0; row < M; ++row)                                                      \
            for (int64_t column = 0; column < N; ++column) {                                       \
                REAL sum = accumulate ? c[row * ldc + column] : (REAL)0;                           \
                for (int64_t k = 0; k < K; ++k)                                                    \
                    sum = FMA_##S(a[row * lda + k], b[k * ldb + column], sum);                     \
                c[row * ldc + column] = sum;                                                       \
            }                                                                                      \
    }                                                                                              \
    int64_t panels_size_##S(int64_t K, int64_t slots, int64_t units, int64_t vectors)              \
    {                                                                                              \
        return cellgen_panels_size_##S(K, slots, units, vectors);                                  \
    }                                                                                              \
    void pack_panels_##S(int64_t K, const REAL *w, int64_t ldw, int transposed, int64_t slots,     \
                         int64_t units, int64_t slot_stride, int64_t vectors, REAL *out,           \
                         int64_t block_stride)                                                     \
    {                                                                                              \
        cellgen_pack_panels_##S(K, w, ldw, transposed, slots, units, slot_stride, vectors, out,    \
                                block_stride);                                                     \
    }                                                                                              \
    void tile_##S(int64_t rows, int64_t vectors, int64_t K, const REAL *a, int64_t lda,            \
                  const REAL *panel, REAL *c, int64_t ldc, int accumulate)                         \
    {                                                                                              \
        const int64_t half = K / 2, wide = vectors * (CELLGEN_VECTOR_BYTES / (int64_t)sizeof *a);  \
        const char *const from = (const char *)a;                                                  \
        cellgen_prefetch prefetch = {2, 0, 9, 0, 81, 3, {from, from + 8}, {64, 17}}; \
        const cellgen_term_##S terms[] = {                                                         \
            {half, a, lda, 1, panel, wide, {panel, 64}, rows % 4 == 1 ? &prefetch : 0}, \
            {K - half, a + half, lda, 1, panel + half * wide, wide, {panel, 0}, &prefetch}}; \
        if (rows % 2) /* in two terms; what is fetched meanwhile changes nothing */                \
            cellgen_tile_of_##S(rows, vectors, terms, 2, c, ldc, accumulate);                      \
        else                                                                                       \
            cellgen_tile_##S(rows, vectors, K, a, lda, panel, c, ldc, accumulate);                 \
    }                                                                                              \
    void gemm_panels_##S(int64_t M, int64_t N, int64_t K, const REAL *a, int64_t lda,              \
                         const REAL *panels, int64_t vectors, int64_t stride, REAL *c,             \
                         int64_t ldc, int accumulate)                                              \
    {                                                                                              \
        cellgen_gemm_panels_##S(M, N, K, a, lda, panels, vectors, stride, c, ldc, accumulate);     \
    }
PRODUCT(f32, float)
PRODUCT(f64, double)

int depth(void) { return CELLGEN_DEPTH; }
int slice(void) { return CELLGEN_SLICE; }
int lanes_f32(void) { return CELLGEN_LANES_F32; }
int lanes_f64(void) { return CELLGEN_LANES_F64; }
int tile_rows(int vectors) { return (int)cellgen_tile_rows(vectors); }

/* memory whose last byte is followed by an unreadable page */
void *guarded(int64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t size = ((size_t)bytes + page - 1) / page * page;
    char *p = (char *)mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                           -1, 0);
    if (p == (char *)MAP_FAILED || mprotect(p + size, page, PROT_NONE) != 0)
        return NULL;
    return p + size - bytes;
}

cellgen_team *team_create(int threads) { return cellgen_team_create(threads); }
void team_destroy(cellgen_team *team) { cellgen_team_destroy(team); }
int team_size(const cellgen_team *team) { return cellgen_team_size(team); }

/* each round every thread publishes a number and, after a barrier, adds up all of them */
typedef struct {
    cellgen_team *team;
    int rounds, wrong;
    int64_t published[64], totals[64];
} meeting;
static void meet(int thread, int threads, void *context)
{
    meeting *m = (meeting *)context;
    for (int round = 0; round < m->rounds; ++round) {
        m->published[thread] = round * (thread + 1);
        cellgen_team_barrier(m->team, thread);
        int64_t total = 0;
        for (int other = 0; other < threads; ++other)
            total += m->published[other];
        m->totals[thread] += total;
        cellgen_team_barrier(m->team, thread);
    }
}
int64_t team_meet(cellgen_team *team, int rounds)
{
    meeting m = {team, rounds, 0, {0}, {0}};
    cellgen_team_run(team, meet, &m);
    for (int thread = 1; thread < cellgen_team_size(team); ++thread)
        if (m.totals[thread] != m.totals[0])
            return -1;
    return m.totals[0];
}
void partition(int64_t total, int64_t granularity, int thread, int threads, int64_t *range)
{
    cellgen_team_partition(total, granularity, thread, threads, range, range + 1);
}
"""


@dataclass(frozen=True)
class Runtime:
    """A build of the headers for one instruction set."""

    library: ctypes.CDLL
    path: Path

    def call(self, name: str, *arguments: object) -> None:
        self.library[name](*[_c(x) for x in arguments])


def _c(x: object) -> object:
    if isinstance(x, np.ndarray):
        return ctypes.c_void_p(x.ctypes.data)
    return ctypes.c_int64(x) if isinstance(x, int) and not isinstance(x, bool) else x


def _instruction_sets() -> list[str | ParameterSet]:
    """Each time this machine's and the oldest; AVX2 is in wheels, whose bits are compared."""
    if not X86:
        return ["default"]
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    has_avx2 = {"avx2", "fma", "bmi2"} <= set(flags)
    return ["native", "x86-64", *[pytest.param("haswell", marks=pytest.mark.slow)] * has_avx2]


@pytest.fixture(scope="module", params=_instruction_sets())
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C compiler ({COMPILER})")
    folder = tmp_path_factory.mktemp(f"gemm_{request.param}")
    (folder / "shim.c").write_text(SOURCE)
    machine = [] if request.param == "default" else [f"-march={request.param}"]
    command = [COMPILER, *FLAGS, *machine, f"-I{INCLUDE}", "shim.c", "-o", "shim.so"]
    command += ["-lm", "-lpthread"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "shim.so"))
    library.team_create.restype = ctypes.c_void_p
    library.guarded.restype = ctypes.c_void_p
    library.team_meet.restype = ctypes.c_int64
    for name in ("panels_size_f32", "panels_size_f64"):
        library[name].restype = ctypes.c_int64
    return Runtime(library, folder / "shim.so")


PRECISIONS = [("f32", np.float32), ("f64", np.float64)]
EXTENTS = [0, 1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33, 64, 65, 100, 129, 260]


def poisoned(x: np.ndarray, pad: int) -> np.ndarray:
    """A copy whose rows are `pad` elements longer, filled with NaN."""
    wide = np.full((x.shape[0], x.shape[1] + pad), np.nan, x.dtype)
    wide[:, : x.shape[1]] = x
    return wide


def chain(runtime: Runtime, suffix: str, A: np.ndarray, B: np.ndarray, C: np.ndarray, seed: int):
    (M, K), N = A.shape, B.shape[1]
    out = C.copy()
    a, b = np.ascontiguousarray(A), np.ascontiguousarray(B)
    runtime.call(f"chain_{suffix}", M, N, K, a, K, b, N, out, N, seed)
    return out


def product(
    runtime: Runtime, suffix: str, kind: str, A: np.ndarray, B: np.ndarray, C: np.ndarray,
    accumulate: int, pads: tuple[int, int, int] = (0, 0, 0),
) -> np.ndarray:  # fmt: skip
    """C (+)= A B by the runtime, with padded operands; checks that C's padding is untouched."""
    (M, K), N = A.shape, B.shape[1]
    a = poisoned(A.T if kind == "tn" else A, pads[0])
    b = poisoned(B.T if kind == "nt" else B, pads[1])
    c = np.full((M + 1, N + pads[2]), 777, A.dtype)
    c[:M, :N] = C
    runtime.call(
        f"{kind}_{suffix}", M, N, K, a, a.shape[1], b, b.shape[1], c, c.shape[1], accumulate
    )
    assert (c[:M, N:] == 777).all()
    assert (c[M:] == 777).all()
    return c[:M, :N].copy()


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_products_are_one_ascending_chain_of_fma(runtime, suffix, dtype):
    random = np.random.default_rng(1)
    for _ in range(120):
        M, N, K = (int(x) for x in random.choice(EXTENTS, 3))
        A = random.standard_normal((M, K)).astype(dtype)
        B = random.standard_normal((K, N)).astype(dtype)
        C = random.standard_normal((M, N)).astype(dtype)
        for accumulate in (0, 1):
            expected = chain(runtime, suffix, A, B, C, accumulate)
            for kind in ("nn", "nt", "tn"):
                pads = tuple(int(x) for x in random.integers(0, 4, 3))
                found = product(runtime, suffix, kind, A, B, C, accumulate, pads)
                np.testing.assert_array_equal(found, expected, err_msg=f"{kind} {M} {N} {K}")


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
@pytest.mark.parametrize("shape", [(600, 130, 300), (100, 1024, 70), (33, 512, 257), (3, 2048, 40)])
def test_large_products_agree_with_numpy(runtime, suffix, dtype, shape):
    M, N, K = shape
    random = np.random.default_rng(2)
    A = random.standard_normal((M, K)).astype(dtype)
    B = random.standard_normal((K, N)).astype(dtype)
    C = np.zeros((M, N), dtype)
    exact = A.astype(np.longdouble) @ B.astype(np.longdouble)
    # K roundings of at most eps/2 times the partial sum, which sum |a| |b| bounds
    bound = K * np.finfo(dtype).eps * (np.abs(A).astype(float) @ np.abs(B).astype(float))
    results = [product(runtime, suffix, kind, A, B, C, 0) for kind in ("nn", "nt", "tn")]
    assert (np.abs(results[0] - exact) <= bound).all()
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_a_row_does_not_depend_on_the_other_rows(runtime, suffix, dtype):
    random = np.random.default_rng(3)
    A = random.standard_normal((70, 90)).astype(dtype)
    B = random.standard_normal((90, 75)).astype(dtype)
    for kind in ("nn", "nt", "tn"):
        whole = product(runtime, suffix, kind, A, B, np.zeros((70, 75), dtype), 0)
        for first, last in [(0, 1), (3, 5), (10, 13), (20, 37), (0, 69)]:
            rows = product(
                runtime, suffix, kind, A[first:last], B, np.zeros((last - first, 75), dtype), 0
            )
            np.testing.assert_array_equal(rows, whole[first:last])


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_nothing_beyond_an_operand_is_read_or_written(runtime, suffix, dtype):
    """All operands end at an unreadable page: one element too far is a crash."""
    random = np.random.default_rng(4)

    def at_the_edge(values: np.ndarray) -> np.ndarray:
        address = runtime.library.guarded(ctypes.c_int64(values.nbytes))
        buffer = (ctypes.c_char * values.nbytes).from_address(address)
        x = np.frombuffer(buffer, values.dtype).reshape(values.shape)
        x[...] = values
        return x

    for M, N, K in [(1, 1, 1), (1, 37, 19), (2, 16, 8), (3, 33, 5), (5, 50, 13), (70, 45, 30)]:
        A = random.standard_normal((M, K)).astype(dtype)
        B = random.standard_normal((K, N)).astype(dtype)
        C = np.zeros((M, N), dtype)
        expected = chain(runtime, suffix, A, B, C, 0)
        for kind in ("nn", "nt", "tn"):
            a = at_the_edge(A.T.copy() if kind == "tn" else A)
            b = at_the_edge(B.T.copy() if kind == "nt" else B)
            c = at_the_edge(C)
            runtime.call(f"{kind}_{suffix}", M, N, K, a, a.shape[1], b, b.shape[1], c, N, 0)
            np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_nan_and_infinity_pass_and_stay_in_their_row_and_column(runtime, suffix, dtype):
    random = np.random.default_rng(5)
    A = random.standard_normal((20, 40)).astype(dtype)
    B = random.standard_normal((40, 37)).astype(dtype)
    A[3, 7] = np.nan
    A[11, 2] = np.inf
    B[2, :] = np.abs(B[2, :])
    B[2, 5] = 0
    for kind in ("nn", "nt", "tn"):
        found = product(runtime, suffix, kind, A, B, np.zeros((20, 37), dtype), 0)
        assert np.isnan(found[3]).all()
        assert np.isnan(found[11, 5])
        assert np.isposinf(np.delete(found[11], 5)).all()
        assert np.isfinite(np.delete(found, [3, 11], axis=0)).all()


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_tiles_over_packed_gates_equal_the_plain_chain(runtime, suffix, dtype):
    lanes = runtime.library[f"lanes_{suffix}"]()
    random = np.random.default_rng(6)
    shapes = [(1, 1), (1, 2), (1, 4), (2, 1), (3, 1), (4, 1), (2, 2), (6, 1), (3, 2)]
    for slots, vectors in [*shapes, (5, 1), (7, 1), (8, 1), (4, 2)]:
        for transposed in (0, 1):
            nv, width = slots * vectors, vectors * lanes
            units, K, rows = (int(x) for x in random.integers(1, 50, 3))
            stride = units + int(random.integers(0, 3))  # between the gates' columns
            rows = 2 * runtime.library.tile_rows(nv) + rows % 3
            A = random.standard_normal((rows, K)).astype(dtype)
            W = random.standard_normal((K, slots * stride)).astype(dtype)
            w = poisoned(W.T if transposed else W, 3)
            size = runtime.library[f"panels_size_{suffix}"](*map(_c, (K, slots, units, vectors)))
            panels = np.full(size, np.nan, dtype)
            step = K * nv * lanes
            runtime.call(
                f"pack_panels_{suffix}",
                *(K, w, w.shape[1], transposed, slots, units, stride, vectors, panels, step),
            )
            full = chain(runtime, suffix, A, W, np.zeros((rows, W.shape[1]), dtype), 0)
            for block in range(size // step):
                for count in (*range(1, runtime.library.tile_rows(nv) + 1), rows):
                    tile = np.full((count, nv * lanes + 5), 777, dtype)
                    head = K // 3  # two calls: [x; h] in one panel
                    panel = panels[block * step :]
                    runtime.call(
                        f"tile_{suffix}",
                        *(count, nv, head, A, K, panel, tile, tile.shape[1], 0),
                    )
                    runtime.call(
                        f"tile_{suffix}",
                        *(count, nv, K - head, A[:, head:], K, panel[head * nv * lanes :]),
                        *(tile, tile.shape[1], 1),
                    )
                    assert (tile[:, nv * lanes :] == 777).all()
                    for slot in range(slots):
                        here = min(units - block * width, width)
                        at = slot * stride + block * width
                        found = tile[:, slot * width : slot * width + width]
                        np.testing.assert_array_equal(found[:, :here], full[:count, at : at + here])
                        assert (found[:, here:] == 0).all()  # units beyond the end


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_many_rows_go_through_deep_panels_slice_by_slice(runtime, suffix, dtype):
    random = np.random.default_rng(8)
    lanes, slice_ = runtime.library[f"lanes_{suffix}"](), runtime.library.slice()
    for vectors, rows, K in [(4, 63, 2 * slice_ + 7), (2, 31, 5 * slice_), (1, 9, 3)]:
        A = random.standard_normal((rows, K)).astype(dtype)
        panel = random.standard_normal((K, vectors * lanes)).astype(dtype)
        for accumulate in (0, 1):
            C = random.standard_normal((rows, vectors * lanes)).astype(dtype)
            expected = chain(runtime, suffix, A, panel, C, accumulate)
            runtime.call(f"tile_{suffix}", rows, vectors, K, A, K, panel, C, C.shape[1], accumulate)
            np.testing.assert_array_equal(C, expected)


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_weight_gradients_of_shared_operands_add_up_from_the_last_row(runtime, suffix, dtype):
    """Some operands are packed in several blocks and depths, some not at all; one product of the
    four is not asked for."""
    random = np.random.default_rng(9)
    deepest, more = runtime.library.depth(), 3
    for *rows, N1, N2, K in [
        (600, 7, 130, 65, 2 * deepest + 5),
        (700, 500, 9, 200, 40),
        (259, 0, 128, 1, 40),
        (70, 1, 70, 2, deepest),
        (13, 300, 260, 12, 7),
        (40, 30, 64, 64, 20),
        (12, 9, 9, 300, 7),
        (5, 80, 140, 3, 0),
    ]:
        A = [random.standard_normal((M, K)).astype(dtype) for M in rows]
        B = [random.standard_normal((K, N)).astype(dtype) for N in (N1, N2)]
        pairs = [(0, 0), (1, 0), (0, 1)]
        C = [random.standard_normal((rows[i], (N1, N2)[j])).astype(dtype) for i, j in pairs]
        operands = poisoned(A[0].T, more), np.ascontiguousarray(A[1].T)
        rights = poisoned(B[0], more), B[1]
        split = [M // 3 for M in rows]  # two threads
        for accumulate in (0, 1):
            c = [poisoned(C[0], 1), C[1].copy(), C[2].copy()]
            packed = [np.full(M * min(K, deepest) + 16, 777, dtype) for M in rows]
            for begin, end in (([0, 0], split), (split, rows)):
                runtime.call(
                    f"outers_{suffix}",
                    *(*rows, N1, N2, K, *operands, more, *rights, *c, accumulate, *packed),
                    *(begin[0], end[0], begin[1], end[1]),
                )
            assert np.isnan(c[0][:, N1:]).all()
            found = c[0][:, :N1], c[1], c[2]
            for (i, j), old, new, other in zip(pairs, C, found, (0, 0, 1), strict=True):
                a, b = A[i][:, ::-1], B[j][::-1]
                plain = chain(runtime, suffix, a, b, old, accumulate ^ other)
                np.testing.assert_array_equal(new, plain, err_msg=f"{rows} {N1} {N2} {K}")
            for M, block in zip(rows, packed, strict=True):
                assert (block[M * min(K, deepest) :] == 777).all()


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_products_with_packed_panels_equal_the_plain_chain(runtime, suffix, dtype):
    random = np.random.default_rng(7)
    for M, N, K, vectors in [(1, 100, 30, 8), (17, 64, 9, 4), (40, 33, 50, 3), (5, 1, 1, 1)]:
        lanes = runtime.library[f"lanes_{suffix}"]()
        A = random.standard_normal((M, K)).astype(dtype)
        B = random.standard_normal((K, N)).astype(dtype)
        C = random.standard_normal((M, N)).astype(dtype)
        size = runtime.library[f"panels_size_{suffix}"](*map(_c, (K, 1, N, vectors)))
        panels = np.full(size, np.nan, dtype)
        step = K * vectors * lanes
        runtime.call(f"pack_panels_{suffix}", K, B, N, 0, 1, N, 0, vectors, panels, step)
        for accumulate in (0, 1):
            c = poisoned(C, 2)
            runtime.call(
                f"gemm_panels_{suffix}", M, N, K, A, K, panels, vectors, step, c, N + 2, accumulate
            )
            assert np.isnan(c[:, N:]).all()
            np.testing.assert_array_equal(c[:, :N], chain(runtime, suffix, A, B, C, accumulate))


# ---------------------------------------------------------------------------------------- threads


@pytest.fixture
def teams(runtime):
    """Create teams that are destroyed after the test."""
    made = []

    def create(threads: int) -> ctypes.c_void_p:
        made.append(ctypes.c_void_p(runtime.library.team_create(threads)))
        return made[-1]

    yield create
    for team in made:
        runtime.library.team_destroy(team)


def meeting_total(threads: int, rounds: int) -> int:
    return rounds * (rounds - 1) // 2 * threads * (threads + 1) // 2


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_barriers_publish_what_every_thread_wrote(runtime, teams, threads):
    team = teams(threads)
    assert runtime.library.team_size(team) == threads
    for rounds in (0, 1, 7, 200):
        assert runtime.library.team_meet(team, rounds) == meeting_total(threads, rounds)


def test_no_team_is_the_caller_alone(runtime):
    assert runtime.library.team_size(None) == 1
    assert runtime.library.team_meet(None, 10) == meeting_total(1, 10)
    runtime.library.team_destroy(None)


def test_a_sleeping_team_wakes_up(runtime, teams):
    team = teams(2)
    for _ in range(3):
        threading.Event().wait(0.02)  # the worker spins and yields for less than 1 ms
        assert runtime.library.team_meet(team, 3) == meeting_total(2, 3)


def test_host_threads_share_a_team_in_turn(runtime, teams):
    """Also from two shared objects, whose copies of the static functions differ."""
    twin = shutil.copy(runtime.path, runtime.path.with_name("twin.so"))
    library = ctypes.CDLL(str(twin))
    library.team_meet.restype = ctypes.c_int64
    team = teams(3)
    totals: list[int] = []

    def work(meet) -> None:
        for _ in range(20):
            totals.append(meet(team, 10))

    hosts = [threading.Thread(target=work, args=(x.team_meet,)) for x in (runtime.library, library)]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    assert totals == [meeting_total(3, 10)] * 40


@pytest.mark.parametrize(("suffix", "dtype"), PRECISIONS)
def test_products_split_over_threads_are_bitwise_equal(runtime, teams, suffix, dtype):
    random = np.random.default_rng(8)
    M, N, K = 41, 83, 60
    A = random.standard_normal((M, K)).astype(dtype)
    B = random.standard_normal((K, N)).astype(dtype)
    expected = chain(runtime, suffix, A, B, np.zeros((M, N), dtype), 0)
    for threads in (1, 2, 3, 5):
        team = teams(threads)
        for number, kind in enumerate(("nn", "nt", "tn")):
            a = np.ascontiguousarray(A.T if kind == "tn" else A)
            b = np.ascontiguousarray(B.T if kind == "nt" else B)
            for by_columns in (0, 1):
                c = np.full((M, N), np.nan, dtype)
                runtime.call(
                    f"split_{suffix}",
                    *(team, ctypes.c_int(number), ctypes.c_int(by_columns), M, N, K),
                    *(a, a.shape[1], b, b.shape[1], c, N),
                )
                np.testing.assert_array_equal(c, expected)


def test_partitions_cover_everything_once_in_whole_blocks(runtime):
    for total in (0, 1, 15, 16, 17, 100):
        for threads in (1, 2, 3, 7):
            ends = [0]
            for thread in range(threads):
                part = np.zeros(2, np.int64)
                runtime.call(
                    "partition", total, 16, ctypes.c_int(thread), ctypes.c_int(threads), part
                )
                assert part[0] == ends[-1]
                assert part[0] % 16 == 0 or part[0] == total
                ends.append(int(part[1]))
            assert ends[-1] == total


RACES = r"""
#include "cellgen_team.h"
static int values[8], wrong;
static cellgen_team *team;
static void task(int thread, int threads, void *context)
{
    for (int round = 0; round < *(int *)context; ++round) {
        values[thread] = round;
        cellgen_team_barrier(team, thread);
        for (int other = 0; other < threads; ++other)
            if (values[other] != round)
                __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED);
        cellgen_team_barrier(team, thread);
    }
}
static void *host(void *context)
{
    int rounds = 5;
    (void)context;
    for (int call = 0; call < 20; ++call) {
        cellgen_team *const now = cellgen_team_worth(team);
        if (now)
            cellgen_team_run(now, task, &rounds);
        if (call % 10 == 0)
            usleep(2000); /* long enough for the workers to sleep */
    }
    return NULL;
}
int main(void)
{
    pthread_t hosts[2];
    team = cellgen_team_create(3);
    for (int i = 0; i < 2; ++i)
        pthread_create(&hosts[i], NULL, host, NULL);
    for (int i = 0; i < 2; ++i)
        pthread_join(hosts[i], NULL);
    cellgen_team_destroy(team);
    return wrong;
}
"""


def test_thread_sanitizer_finds_no_race(tmp_path):
    def build_and_run(source: str, name: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / f"{name}.c").write_text(source)
        flags = ["-fsanitize=thread", "-g", "-O1", f"-I{INCLUDE}", "-lpthread"]
        built = subprocess.run(
            [COMPILER, f"{name}.c", "-o", name, *flags],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        if built.returncode:
            return built
        return subprocess.run([f"./{name}"], cwd=tmp_path, capture_output=True, text=True)

    if (
        shutil.which(COMPILER) is None
        or build_and_run("int main(void) { return 0; }", "no").returncode
    ):
        pytest.skip("no working -fsanitize=thread")
    done = build_and_run(RACES, "races")
    assert done.returncode == 0, done.stderr


LIGHT = r"""
#include "cellgen_compiler.h"
#define ADD(name) \
    void name(float *a, const float *b) { for (int k = 0; k < 4096; ++k) a[k] += b[k]; }
CELLGEN_BEGIN_LIGHT
ADD(light)
#include <immintrin.h>
__m256 tile;
void wide(const float *a) { tile = _mm256_loadu_ps(a); }
CELLGEN_END_LIGHT
ADD(full)
"""


@pytest.mark.skipif(not X86 or not shutil.which("gcc"), reason="GCC for x86-64 alone")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_what_is_compiled_lightly_has_no_loops_in_vectors_and_clears_upper_halves(
    level: str, tmp_path: Path
) -> None:
    (tmp_path / "light.c").write_text(LIGHT)
    command = ["gcc", level, "-mavx2", f"-I{INCLUDE}", "-S", "light.c", "-o", "light.s"]
    subprocess.run(command, cwd=tmp_path, check=True)
    text = (tmp_path / "light.s").read_text()
    body = {name: text.partition(f"\n{name}:")[2].partition(".size")[0] for name in NAMES}
    assert "vaddss" in body["light"]
    assert "vaddps" not in body["light"]
    if level == "-O3":
        assert "vaddps" in body["full"]
        assert "vzeroupper" in body["wide"]
    else:  # what is not optimised stays so
        assert len(body["light"].splitlines()) == len(body["full"].splitlines())


NAMES = ("light", "wide", "full")
