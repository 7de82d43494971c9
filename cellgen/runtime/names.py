"""How the names of a cell are spelled in C, and which names are taken.

Input: a name as its author wrote it. Output: the names that stand for it in generated C. An
author's name is kept in Python, NumPy, messages, text and LaTeX. In C, Greek
letters are spelled out, and a name that the generated code, its runtime headers or C itself has a
use for gets an underscore behind it: no name of an author's own, of a template or of a header ends
in one, so that the two never meet.
"""

from __future__ import annotations

import keyword
import re
from functools import cache

from cellgen.runtime.options import TABLE

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

_RESERVED = {
    **dict.fromkeys([*keyword.kwlist, *keyword.softkwlist], "Python"),
    **dict.fromkeys(_MACROS.split(), "common C macros"),
    **dict.fromkeys(_C.split(), "C"),
    **dict.fromkeys(_CXX.split(), "C++"),
    **dict.fromkeys(_CUDA.split(), "CUDA"),
}

OPTIONS = ("out", *(option.name for option in TABLE), "stream", "tier", "graph")
"""Keywords of the calls of a kernel: no argument of a cell can have these names."""

PLAN_KEYWORDS = ("self", "threads", "constants", "dtype", "initial")
"""Keywords of ``plan(...)`` and ``init(...)``, which take dimensions by name."""

_HEADERS = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar
wchar wctype pthread sched unistd fcntl cuda cuda_runtime
"""
HEADERS = frozenset(_HEADERS.split())
"""Headers that a cell's header, named after the cell, would hide."""

_LOCALS = """
real row unit step args out workspace threads team zeros needed begin block blocks blocks_of_head
by_units chunk_rows prefetch context deep depths end first fitting head here high hoist inside keeps
later lefts memory next outers unpacked pace panel part parts pass rights row_begin row_end rows
partition partitions slots steps stop term thread tile tile_number tiles top units vectors weights
width window_rows window_steps store run status turn memcpy memset
block_rows call way my shared given own how ordered guarded
frame entry chunk nest_rows strip last turns past ahead now held axes1 axes2
group in_cluster first_state next_state resets shown owns sum sums sums_rows
same_step step_ahead group_ahead goes_on soon works products
"""

_MEMBERS = """
workspace workspace_bytes team options stream tier blas strides nothing real store
"""
"""Members that the argument structs of C and CUDA have beside an author's and those of options, and
their types."""

LOCALS = frozenset(_LOCALS.split())
"""Variables and types of the templates."""

_MEMBER_NAMES = frozenset(_MEMBERS.split())

_GENERATED = re.compile(
    r"(cg|cellgen|CELLGEN)_|(terms|inverse|axis|tile_|shared_|forward_|reverse_|deferred_)\d"
    r"|(channel_|held_|told_|upstream_|ahead_|read_|next_)\d|n[A-Z]"
    r"|\w+(_pair|_time)\Z|(u?int\d+|u?intptr|ptrdiff|size)_t\Z"
)
"""How names begin or end that templates and runtime headers make: counted ones, dimensions, types,
places of a value over time."""

RUNTIME = re.compile(r"(cg|cellgen|CELLGEN)_")

_WORDS = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
    *("lambda", "mu", "nu", "xi", "omicron", "pi", "rho", "sigma", "sigma", "tau", "upsilon"),
    *("phi", "chi", "psi", "omega"),
)
GREEK = {
    **dict(zip("αβγδεζηθικλμνξοπρςστυφχψω", _WORDS, strict=True)),
    **{
        letter: word.capitalize()
        for letter, word in zip("ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ", dict.fromkeys(_WORDS), strict=True)
    },
}
"""Greek letters, which Python and papers have in names, and how C spells them."""

_SPELLED = str.maketrans(GREEK)
_LETTER = f"A-Za-z{''.join(GREEK)}"
IDENTIFIER = re.compile(rf"[{_LETTER}](_?[{_LETTER}0-9])*\Z")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*[A-Z][A-Z0-9_]*\Z|M_[A-Z0-9]|SYS_")
"""Two capitals and nothing small: how C writes macros (``W1`` and ``W_z`` are fine)."""


def reserved_by(name: str) -> str | None:
    """Return which language reserves a name, or None."""
    if _CAPITALS.match(name) or name.startswith("pthread_"):
        return "C for macros and threads"
    return _RESERVED.get(name)


_GRADIENT = "d_"


def state_of(value: str) -> str:
    """Name the state that holds a value from one step to the next.

    So a state has to be declared. Here alone the three names are spelled that functions over time
    derive of others; what a name is of, an interface says (``of``, ``follows``, ``role``).

    >>> state_of("h"), final_of("h"), gradient_of(final_of("h"))
    ('h_prev', 'h_last', 'd_h_last')
    """
    return f"{value}_prev"


def final_of(value: str) -> str:
    """Name the final state of a value: what it is behind the last step."""
    return f"{value}_last"


def gradient_of(value: str) -> str:
    """Name the gradient of an argument or a result."""
    return f"{_GRADIENT}{value}"


def of_gradient(name: str) -> str | None:
    """Return whose gradient has a name, which no declared one can have; None: no gradient.

    >>> of_gradient("d_h_last"), of_gradient("h_last")
    ('h_last', None)
    """
    return name[len(_GRADIENT) :] if name.startswith(_GRADIENT) else None


@cache
def spelled(name: str) -> str:
    """Spell a name in ASCII; equal for two spellings of one name.

    >>> spelled("α_prev"), spelled("lambda_"), spelled("λ"), spelled("d_lambda__last")
    ('alpha_prev', 'lambda', 'lambda', 'd_lambda_last')
    """
    return name.translate(_SPELLED).replace("__", "_").rstrip("_")


def c_name(name: str) -> str:
    """Spell a value's name as a variable of generated C; of different names, differently.

    >>> c_name("h_prev"), c_name("tile"), c_name("Σ"), c_name("int_")
    ('h_prev', 'tile_', 'Sigma', 'int_')
    """
    name = spelled(name)
    taken = name in LOCALS or _GENERATED.match(name) or not _is_free_in_c(name)
    return f"{name}_" if taken else name


@cache
def c_member(name: str) -> str:
    """Spell a value's name as a member of an argument struct: the author's, unless C needs it.

    >>> c_member("h_prev"), c_member("row"), c_member("options")
    ('h_prev', 'row', 'options_')
    """
    name = spelled(name)
    taken = name in _MEMBER_NAMES or RUNTIME.match(name) or not _is_free_in_c(name)
    return f"{name}_" if taken else name


def _is_free_in_c(name: str) -> bool:
    """Whether neither C nor C++ nor CUDA needs a name; words of Python alone are free."""
    return reserved_by(name) in (None, "Python")
