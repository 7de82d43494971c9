"""Which names a cell may use: identifiers that survive into C, C++, CUDA, Python and NumPy."""

from __future__ import annotations

import keyword
import re

from cellgen.errors import DeclarationError

_C = """
auto break case char const continue default do double else enum extern float for goto if inline int
long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while bool complex imaginary true false nullptr noreturn thread_local alignas alignof
static_assert typeof asm main abs exit free malloc calloc realloc exp log sin cos tan tanh sqrt pow
erf floor ceil round fabs fma fmax fmin signbit isnan isinf isfinite
"""

_CXX = """
and and_eq bitand bitor catch class compl concept consteval constexpr constinit const_cast co_await
co_return co_yield decltype delete dynamic_cast explicit export friend mutable namespace new
noexcept not not_eq operator or or_eq private protected public reinterpret_cast requires
static_cast template this throw try typeid typename using virtual wchar_t xor xor_eq
"""

_CUDA = """
blockIdx blockDim threadIdx gridDim warpSize dim3 half bfloat16 cluster half2 float2 float4
"""

_MACROS = """
I linux unix i386 vax sun mips arm errno assert stdin stdout stderr math_errhandling
fpclassify isnormal issubnormal isgreater isgreaterequal isless islessequal islessgreater
isunordered offsetof alloca strdupa strndupa sigmask sched_priority sa_handler sa_sigaction
sigev_notify_function sigev_notify_attributes
si_addr si_addr_lsb si_arch si_band si_call_addr si_fd si_int si_lower si_overrun si_pid si_pkey
si_ptr si_status si_stime si_syscall si_timerid si_uid si_upper si_utime si_value
be16toh be32toh be64toh le16toh le32toh le64toh htobe16 htobe32 htobe64 htole16 htole32 htole64
"""

_CELLGEN = """
real row unit step args out save saved workspace workspace_bytes threads team lengths mask
reset zeros needed definition definition_owner replaced mro outputs gradients kernel interface
nT nB nI nH T B
"""

_LOCALS = """
begin block blocks blocks_of_head by_units chunk_rows coming context deep depths end first fitting
head here high hoist inside keeps later lefts memory next outers unpacked pace panel part parts
rights row_begin row_end rows share shares slots steps stop term thread tile tile_number tiles top
units vectors weights width window_rows window_steps store run status turn int64_t uint32_t size_t
memcpy memset
"""
"""Variables and types of the templates; a value of that name would hide them."""

_RESERVED = {
    **dict.fromkeys([*keyword.kwlist, *keyword.softkwlist], "Python"),
    **dict.fromkeys(_MACROS.split(), "common C macros"),
    **dict.fromkeys(_C.split(), "C"),
    **dict.fromkeys(_CXX.split(), "C++"),
    **dict.fromkeys(_CUDA.split(), "CUDA"),
    **dict.fromkeys([*_CELLGEN.split(), *_LOCALS.split()], "cellgen"),
}

_IDENTIFIER = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*\Z")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*[A-Z][A-Z0-9_]*\Z|M_[A-Z0-9]")
"""Two capitals and nothing small: how C writes macros (``W1`` and ``W_z`` are fine)."""

_NUMBERED = re.compile(r"(terms|inverse)\d+\Z")
"""Variables that templates and loops count."""


def reserved_by(name: str) -> str | None:
    """Return which language or system reserves a name, or None."""
    if name.startswith(("cg_", "cellgen_", "CELLGEN_")) or _NUMBERED.match(name):
        return "cellgen"
    if _CAPITALS.match(name) or name.startswith("pthread_"):
        return "C for macros and threads"
    return _RESERVED.get(name)


def check_identifier(name: str, what: str) -> None:
    """Accept what is an identifier in every language: C++ keeps ``a__b`` to itself, and names of
    derived values join with underscores, so none may stand at either end.

    Raises:
        DeclarationError: naming the rule.
    """
    if not _IDENTIFIER.match(name):
        raise DeclarationError(
            f"{what} {name!r} is no valid name: use ASCII letters, digits and single underscores "
            f"between them, starting with a letter",
            code="declaration.name",
        )


def check_name(name: str, what: str) -> None:
    """Accept a name that is a plain identifier, unreserved and outside the derived prefixes.

    Raises:
        DeclarationError: with the reason and a name that would do.
    """
    check_identifier(name, what)
    if name.startswith("d_"):
        raise DeclarationError(
            f"{what} {name!r} starts with d_, which names derived gradients; "
            f"rename it, for example to {name[2:] + '_value'!r}",
            code="declaration.name",
        )
    owner = reserved_by(name)
    if owner is not None:
        small = name.lower()
        other = next(o for o in (f"{small}_value", f"my_{small}") if reserved_by(o) is None)
        raise DeclarationError(
            f"{what} {name!r} is reserved by {owner}; rename it, for example to {other!r}",
            code="declaration.name",
        )


def snake_case(class_name: str) -> str:
    """Turn a class name into a cell name: ``GRUBlockCell`` is ``gru_block_cell``.

    >>> snake_case("GRUBlockCell"), snake_case("LSTM"), snake_case("MinimalGatedUnit2")
    ('gru_block_cell', 'lstm', 'minimal_gated_unit2')
    """
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", class_name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", spaced).lower()
