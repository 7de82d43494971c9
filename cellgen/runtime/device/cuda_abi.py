"""The interface of a cell's CUDA library as plain data: structs, symbols, cdef.

Input: the ``Interface`` that C has too. Output: the declarations that a ``.cu`` and cffi share.
Imports neither SymPy nor Jinja2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellgen.runtime.abi import Argument, Function, Interface, c_parameters, shape_comment
from cellgen.runtime.names import c_member
from cellgen.runtime.options import c_members


@dataclass(frozen=True)
class CudaStore:
    """A type of elements for CUDA: a row of ``cellgen_cuda_elements.cuh``.

    ``suffix`` is that of symbols, ``c_type`` what cffi sees behind pointers. ``on_units``: whether
    matrix units multiply it.
    """

    dtype: str
    suffix: str
    c_type: str
    on_units: bool = False


CUDA_STORES = (
    CudaStore("float32", "f32", "float"),
    CudaStore("float64", "f64", "double"),
    CudaStore("bfloat16", "bf16", "void", on_units=True),
    CudaStore("float16", "f16", "void", on_units=True),
)
"""Every type of elements that kernels of CUDA are made for."""
ON_UNITS = tuple(store.dtype for store in CUDA_STORES if store.on_units)
"""Those that matrix units multiply."""


def over_time(function: Function) -> tuple[Argument, ...]:
    """Arrays over time of the argument struct, in its order."""
    return tuple(a for a in (*function.struct_members, *function.results) if a.over_time)


def cuda_struct_lines(function: Function, element: str = "store") -> Iterator[tuple[str, str]]:
    """Yield (declaration, comment) of each member of a function's argument struct for CUDA."""
    for argument in function.struct_members:
        shape = shape_comment(argument) if argument.shape else "scalar"
        note = f"{shape}{', NULL counts as zero' if argument.optional else ''}"
        pointer = f"const {element} *"
        kind = "double " if argument.is_scalar else pointer
        yield f"{kind}{c_member(argument.name)};", note
    for result in function.results:
        note = ", NULL: not wanted" if result.saved else ""
        yield f"{element} *{c_member(result.name)};", shape_comment(result) + note
    yield "void *workspace;", "device memory"
    yield "int64_t workspace_bytes;", "at least ..._workspace_size(...)"
    yield "void *stream;", "a cudaStream_t"
    yield "void *blas;", "of cellgen_cuda_blas_open, NULL: products of the runtime header"
    yield "int64_t tier;", "of cellgen_cuda_tiers.cuh, 0: the model chooses"
    if function.team:
        yield "cellgen_options options;", "of cellgen_options.h; its tables are device memory"
        count = 2 * max(len(over_time(function)), 1)
        yield (
            f"int64_t strides[{count}];",
            "of arrays over time, as kernels have them; not the caller's",
        )


@dataclass(frozen=True)
class CudaSymbols:
    """The C names of one function for CUDA in one element type."""

    call: str
    struct: str
    workspace_size: str
    how: str


def cuda_symbols(interface: Interface, function: Function, suffix: str) -> CudaSymbols:
    """The C names of one function for CUDA in one element type."""
    stem = f"{interface.name}_cuda_{function.name}"
    return CudaSymbols(
        call=f"{stem}_{suffix}",
        struct=f"{stem}_args_{suffix}",
        workspace_size=f"{stem}_workspace_size_{suffix}",
        how=f"{stem}_how_{suffix}",
    )


CUDA_HOST = """
const char *cellgen_cuda_error_text(int code);
int cellgen_cuda_devices(int *count);
int cellgen_cuda_capability(int device, int *capability);
int cellgen_cuda_device_of(const void *address, int *device);
int cellgen_cuda_use(int device, int *before);
int cellgen_cuda_allocate(int device, int64_t bytes, void *stream, void **address);
int cellgen_cuda_write(void *address, const void *host, int64_t bytes, void *stream);
int cellgen_cuda_read(void *host, const void *address, int64_t bytes, void *stream);
int cellgen_cuda_free(void *address, void *stream);
int cellgen_cuda_blas_open(const char *path, void **blas);
void cellgen_cuda_blas_close(void *blas);
int cellgen_cuda_refused(int device);
void cellgen_cuda_refuse(int device, int code);
int cellgen_cuda_graph_begin(void *stream);
int cellgen_cuda_graph_end(void *stream, void **graph, int64_t *nodes);
int cellgen_cuda_graph_launch(void *graph, void *stream);
int cellgen_cuda_graph_destroy(void *graph);
int cellgen_cuda_capturing(void *stream, int *capturing);
int cellgen_cuda_stream_create(void **stream);
"""
"""What every cell's library exports beside its functions: ``cellgen_cuda.cuh``."""


CUDA_HALF = """
int cellgen_cuda_load(int device, int place, const void *image);
void cellgen_cuda_driver(const char *path);
"""
"""What a host's half exports as well: ``cellgen_cuda_driver.h``."""


CUDA_EMULATION = """
void cellgen_emulation_seed(uint64_t seed);
void cellgen_emulation_skip(int line);
void cellgen_emulation_refuse_capture(int refuse);
void cellgen_emulation_device(int processors, int shared_bytes);
void cellgen_emulation_machine(int devices, int device, int capability);
void cellgen_emulation_stream(void *stream, int device);
void cellgen_emulation_fail(const char *call, int error);
void cellgen_emulation_dry(int dry);
int64_t cellgen_emulation_told(double *figures, int64_t most);
int64_t cellgen_emulation_told_together(double *figures, int64_t most);
void cellgen_emulation_room(int at_once, int clusters);
int64_t cellgen_emulation_count(int what);
"""
"""What an emulated library exports as well."""


def cuda_cdef(interface: Interface) -> str:
    """The declarations of a cell's CUDA library, for cffi."""
    options = " ".join(member.declared for member in c_members())
    lines = [
        "typedef struct cellgen_plan cellgen_plan;",
        f"typedef struct {{ {options} }} cellgen_options;",
        *(CUDA_HOST, CUDA_HALF, CUDA_EMULATION),
    ]
    for store in CUDA_STORES:
        for function in interface.functions:
            names = cuda_symbols(interface, function, store.suffix)
            lined = cuda_struct_lines(function, store.c_type)
            members = " ".join(line for line, _ in lined)
            lines.append(f"typedef struct {{ {members} }} {names.struct};")
            dims = c_parameters(function)
            lines.append(f"int {names.call}({dims}, const {names.struct} *args);")
            size = "int with_blas, int64_t how" if function.team else "int with_blas"
            if function.team:
                lines.append(f"int64_t {names.how}({dims}, const {names.struct} *args);")
            lines.append(f"int64_t {names.workspace_size}({dims}, {size});")
    return "\n".join(lines) + "\n"
