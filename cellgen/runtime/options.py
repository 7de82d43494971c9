"""The options of functions over time: one row each.

Output: ``Options``, what a call chooses, and ``TABLE``, a row for every keyword. Keywords, help and
signatures, the members of the options in C and for CUDA, what ``Layers`` passes on, what names an
argument of a cell cannot have, and what ``cellgen check`` tries are read from these rows. A new
option is a field of ``Options`` here, and code where its meaning is.
Imports neither SymPy nor Jinja2, and nothing else of cellgen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellgen.runtime.call.packed import Packed

FORWARD, BACKWARD = "sequence_forward", "sequence_backward"
SWITCH, STEPS, CHOICE = "switch", "steps", "choice"
BY_ROW, NAMES, OTHER = "by row", "names", "other"
"""Kinds: on or off; a number of steps; one of a few values; an array by row of the batch; names of
results; what another module checks."""
ALL_LAYERS, LAST_LAYER = "all", "last"
SEGMENTS = "segments"
"""What ``parallel`` may be: segments of time side by side."""
FULL, BF16, INT8 = "full", "bf16", "int8"
"""What operands of products over time are: the arrays as they are, rounded to bfloat16, or weights
rounded to int8."""
BY_TYPE = ""
"""In their place, of calls of frameworks: bf16 of bfloat16 arrays, else full."""


@dataclass(frozen=True)
class Member:
    """A member of the options in C: its name, its type, what is said of it there."""

    name: str
    c_type: str
    text: str

    @property
    def declared(self) -> str:
        """The declaration."""
        return f"{self.c_type}{'' if self.c_type.endswith('*') else ' '}{self.name};"


@dataclass(frozen=True)
class Option:
    """One row: a keyword of functions over time.

    ``functions`` are those that take it. ``axes`` and ``dtypes`` are those of an array.
    ``c`` are the members that it sets; with ``inverted`` the one is 1 where the option is off. Of
    ``choices`` the member is the number of the one chosen; of names, 1 where some are left out.
    ``forward_choices`` are those that a forward pass alone takes.
    ``on_device`` says whether kernels of CUDA have it. ``layers`` says which layers of a stack get
    it: all, the last one, or none. With ``of_run`` the saved arrays of a forward run
    say it to the backward pass; ``of_call``: which may take another one. ``fewest`` is the least
    number of steps, ``least`` says so in messages. ``tried`` are values by the number of the case
    of ``cellgen check`` that tries them.
    """

    name: str
    text: str
    default: object = None
    kind: str = OTHER
    functions: tuple[str, ...] = (FORWARD, BACKWARD)
    axes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    c: tuple[Member, ...] = ()
    inverted: bool = False
    choices: tuple[object, ...] = ()
    forward_choices: tuple[object, ...] = ()
    on_device: bool = False
    layers: str = ""
    of_run: bool = False
    of_call: bool = False
    least: str = ""
    fewest: int = 0
    tried: Mapping[int, object] = field(default_factory=dict)

    @property
    def numbered(self) -> bool:
        """Whether it is a number in C, and so in operators of torch and programs of XLA."""
        return bool(self.c) and self.kind in (SWITCH, STEPS, CHOICE, NAMES)

    def choices_in(self, function: str) -> tuple[object, ...]:
        """The choices that a function takes, each in the place of its number."""
        if function == FORWARD:
            return self.choices
        return tuple(choice for choice in self.choices if choice not in self.forward_choices)

    def default_in(self, function: str) -> object:
        """The default of the keyword: a backward pass asks the run that saved."""
        return None if self.of_run and function == BACKWARD else self.default


def _row(text: str, **columns: object) -> Mapping[str, Any]:
    """The columns of a field of ``Options``."""
    return {"text": text, **columns}


_FLAGS: Mapping[str, Any] = {
    "kind": BY_ROW,
    "axes": ("T", "B"),
    "dtypes": ("bool", "uint8"),
    "on_device": True,
}
_SHARED: Mapping[str, Any] = {"layers": ALL_LAYERS, "of_run": True}


@dataclass(frozen=True)
class Options:
    """Which steps of a sequence are valid, which are shown, and how arrays lie in memory.

    A masked step leaves the state as it is; nothing of the inputs is read there, no reset happens
    there, and outputs beyond a length are zeros. Upstream gradients count where outputs do: at a
    step that repeats an output, they are added to those of the step that made it. Final states do
    not depend on which outputs are shown. The text of each row says what it does.
    """

    lengths: object = field(
        default=None,
        metadata=_row(
            "(B) integers; steps of each row, from the first on, 0 to T; later ones are masked",
            kind=BY_ROW,
            axes=("B",),
            dtypes=("int64",),
            on_device=True,
            c=(
                Member(
                    "lengths",
                    "const int64_t *",
                    "(B): steps of a row, later ones are masked; NULL: T",
                ),
            ),
            **_SHARED,
        ),
    )
    mask: object = field(
        default=None,
        metadata=_row(
            "(T, B) bool; False: the step is masked and keeps the states",
            c=(Member("mask", "const unsigned char *", "(T, B): 0 leaves a step out; NULL: none"),),
            **_FLAGS,
            **_SHARED,
        ),
    )
    reset: object = field(
        default=None,
        metadata=_row(
            "(T, B) bool; True: states start anew before the step",
            c=(Member("reset", "const unsigned char *", "(T, B): not 0 starts states anew"),),
            **_FLAGS,
            **_SHARED,
        ),
    )
    reverse: bool = field(
        default=False,
        metadata=_row(
            "from the last step to the first",
            kind=SWITCH,
            c=(Member("reverse", "int64_t", "1: from the last step to the first"),),
            on_device=True,
            **_SHARED,
        ),
    )
    batch_first: bool = field(
        default=False,
        metadata=_row(
            "arrays over time, mask and reset are (B, T, ...)",
            kind=SWITCH,
            on_device=True,
            of_call=True,
            tried={1: True},
            **_SHARED,
        ),
    )
    zero_output_for_mask: bool = field(
        default=False,
        metadata=_row(
            "outputs over time are zeros where mask leaves a step out, else the step before's",
            kind=SWITCH,
            c=(
                Member(
                    "hold", "int64_t", "outputs of steps that mask leaves out: 0 zeros, 1 as before"
                ),
            ),
            inverted=True,
            on_device=True,
            tried={2: True},
            **_SHARED,
        ),
    )
    last_only: bool = field(
        default=False,
        metadata=_row(
            "no outputs over time; final states, and other outputs (B, ...) as each row's last "
            "valid step gives them, zeros where none is",
            kind=SWITCH,
            functions=(FORWARD,),
            c=(
                Member(
                    "last", "int64_t", "forward, 1: outputs over time are not formed, may be NULL"
                ),
            ),
            on_device=True,
            layers=LAST_LAYER,
            tried={0: True},
        ),
    )
    outputs: object = field(
        default=None,
        metadata=_row(
            "names of the outputs over time that are wanted, such as ('h',): the others are None, "
            "and are not formed for all steps; None: all",
            kind=NAMES,
            functions=(FORWARD,),
            c=(Member("partial", "int64_t", "forward, 1: outputs that are NULL are not formed"),),
        ),
    )
    every: int = field(
        default=1,
        metadata=_row(
            "steps; outputs over time of every so many-th step alone, (T // every, B, ...): of "
            "h[every - 1 :: every]; 1: of all steps",
            kind=STEPS,
            c=(Member("every", "int64_t", "outputs of steps n * every - 1 alone; 0, 1: of all"),),
            on_device=True,
            layers=LAST_LAYER,
            of_run=True,
            of_call=True,
            least="1 for all or more",
            fewest=1,
            tried={1: 2, 2: 3},
        ),
    )
    window: int = field(
        default=0,
        metadata=_row(
            "steps; no gradient passes from a multiple of it to the step before; 0: all do",
            kind=STEPS,
            functions=(BACKWARD,),
            c=(
                Member(
                    "window", "int64_t", "backward: no gradient passes back from step n * window"
                ),
            ),
            on_device=True,
            least="or 0 for no limit",
            tried={1: 3, 2: 5},
        ),
    )
    gradients: object = field(
        default=None,
        metadata=_row(
            "names of the results that are wanted, such as ('d_x',): the others are None, and are "
            "not formed unless another gradient follows from them; None: all",
            kind=NAMES,
            functions=(BACKWARD,),
        ),
    )
    per_row: object = field(
        default=False,
        metadata=_row(
            "True: gradients of weights are those of each row, (B, *weight); 'norms': the sums of "
            "their squares, (B,)",
            kind=CHOICE,
            choices=(False, True, "norms"),
            functions=(BACKWARD,),
            c=(
                Member(
                    "per_row",
                    "int64_t",
                    "backward: 1: each row's gradients of weights, (B, ...); 2: sums of squares",
                ),
            ),
        ),
    )
    products: str = field(
        default=FULL,
        metadata=_row(
            "'bf16': operands of products over time are rounded to bfloat16, for float32 arrays; "
            "'int8': weights of products are, to int8 with a scale for each output, in a forward "
            "pass that does not save; sums, functions and states stay in float32; 'full': none is "
            "rounded",
            kind=CHOICE,
            choices=(FULL, BF16, INT8),
            forward_choices=(INT8,),
            c=(
                Member(
                    "products",
                    "int64_t",
                    "of float arrays; 1: operands of products are rounded to bfloat16; 2, forward: "
                    "weights of products to int8",
                ),
            ),
            layers=ALL_LAYERS,
        ),
    )
    plan: object = field(
        default=None,
        metadata=_row(
            "how to run, as plan(...) of this function gives it or with changes; results do not "
            "depend on it",
            c=(Member("plan", "const cellgen_plan *", "how to run; NULL: as ..._plan says"),),
        ),
    )
    checkpoint: int = field(
        default=0,
        metadata=_row(
            "steps; a run that saves keeps the states before every so many-th step alone, from "
            "which a backward pass computes the steps between once more, with the same bits; 0: "
            "it keeps what every step saves",
            kind=STEPS,
            functions=(FORWARD,),
            c=(
                Member(
                    "checkpoint", "int64_t", "states are kept before steps n * checkpoint; 0: none"
                ),
                Member(
                    "checkpoints",
                    "void *const *",
                    "where: for each state (.., B, units), then for outputs that are none where "
                    "steps may be masked",
                ),
            ),
            layers=ALL_LAYERS,
            least="or 0 to keep what every step saves",
            tried={0: 3, 1: 5, 2: 2},
        ),
    )
    memory_limit: object = field(
        default=None,
        metadata=_row(
            "bytes that a run which saves, and its backward pass, may take for what steps save: "
            "all of it where that fits, else checkpoints; None: all",
            functions=(FORWARD,),
            layers=ALL_LAYERS,
        ),
    )
    packed: Packed | None = field(
        default=None,
        metadata=_row(
            "weights as pack(...) of the kernel gives them; they need not be passed then",
            c=(
                Member("packed", "const void *", "what ..._pack made of the weights, or NULL"),
                Member("packed_bytes", "int64_t", "of it: at least ..._packed_size(...)"),
            ),
        ),
    )
    flush_denormals: bool = field(
        default=False,
        metadata=_row(
            "numbers below the smallest normal one count as zeros during the call, which may be "
            "ten times as fast where gradients or states die away",
            kind=SWITCH,
            c=(Member("flush", "int64_t", "1: denormal numbers count as zeros during the call"),),
            layers=ALL_LAYERS,
        ),
    )


OF_OPTIONS = tuple(Option(f.name, default=f.default, **f.metadata) for f in fields(Options))
"""The rows of the fields of ``Options``, in order."""

TABLES = {option.name: option.axes for option in OF_OPTIONS if option.kind == BY_ROW}
"""Arrays that say which steps are valid, in order, with their axes."""

TABLE = (
    Option("save", "form what sequence_backward reads, too", False, SWITCH, (FORWARD,)),
    Option(
        "saved",
        "what sequence_forward(..., save=True) gave as saved, with the options of that run; or a "
        "dict of arrays by name",
        functions=(BACKWARD,),
    ),
    Option("threads", "how many; None: CELLGEN_NUM_THREADS, else all processors"),
    *OF_OPTIONS,
    Option(
        "parallel",
        "'segments': segments of time run side by side, as rows, until the first state of each has "
        "the bits of the last one of the segment before; what is left after `sweeps` is run step "
        "by step; None: step by step",
        functions=(FORWARD,),
        layers=ALL_LAYERS,
    ),
    Option(
        "segments",
        "with parallel: how many; 0: as many as suit the shape",
        0,
        functions=(FORWARD,),
        layers=ALL_LAYERS,
    ),
    Option(
        "tolerance",
        "with parallel: how far a first state may be from the state before it, relative to its "
        "size and at least to 1; 0: results have the bits of step by step",
        0.0,
        functions=(FORWARD,),
        layers=ALL_LAYERS,
    ),
    Option(
        "sweeps",
        "with parallel: how often segments whose first state changed are run once more",
        4,
        functions=(FORWARD,),
        layers=ALL_LAYERS,
    ),
    Option(
        "bp_lim",
        "states that every term of the loss reaches; None: all",
        functions=(BACKWARD,),
        least="0 or more",
    ),
)
"""A row for every keyword of functions over time but ``out``, in the order of their signatures. No
array of a cell can have these names."""

ROWS = {option.name: option for option in TABLE}
NONE = Options()
SWITCHES = tuple(option.name for option in OF_OPTIONS if option.kind == SWITCH)
"""The options that are on or off."""

BESIDE = (
    Member("strides", "const int64_t *", "elements from step to step, row to row; NULL: no gaps"),
    Member("stop", "const int *", "not 0 there, at any time: the call ends early; NULL: it cannot"),
    Member("forward", "const void *", "backward, with checkpoints: arguments of the forward pass"),
    Member(
        "stored",
        "const unsigned char *",
        "float: of each member, what an array over time, or a weight that products alone read, "
        "holds (cellgen_stored); NULL: floats",
    ),
)
"""Members of the options in C that are no option of a call."""


def skips(options: Options) -> bool:
    """Whether a call may have steps that are left out, or start anew."""
    return not (options.lengths is None and options.mask is None and options.reset is None)


def with_tables(
    options: Options, lengths: object = None, mask: object = None, reset: object = None
) -> Options:
    """The same options with other tables of steps; a tenth of the time of ``replace``."""
    copy = object.__new__(Options)
    fields = options.__dict__.copy()
    fields["lengths"], fields["mask"], fields["reset"] = lengths, mask, reset
    object.__setattr__(copy, "__dict__", fields)
    return copy


def taken_by(function: str) -> tuple[Option, ...]:
    """The rows of one function's keywords."""
    return tuple(option for option in TABLE if function in option.functions)


def c_members() -> Iterator[Member]:
    """Every member of the options in C, in order."""
    for option in OF_OPTIONS:
        yield from option.c
    yield from BESIDE
