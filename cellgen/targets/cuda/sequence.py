"""Spell the functions over time for CUDA: hoisted and deferred products, a loop over steps.

Input: ``SequenceSchedule``, the same as C's. Output: ``FunctionContext`` for ``cell.cu.j2``.
What only a GPU needs is decided here: the sums of a group lie side by side, over all steps where an
input reaches them, so that one product serves every step at once; adjoints that the deferred part
reads lie side by side, so that the products with them are one; the deferred part runs once, over
the rows of all steps.
Not supported: what ``kernels`` and ``products`` do not spell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from cellgen.errors import DerivationError
from cellgen.language.names import Names
from cellgen.language.value import Value
from cellgen.program.over_time import StateLink
from cellgen.runtime.abi import Function as Signature
from cellgen.runtime.abi import c_dim
from cellgen.runtime.names import LOCALS, c_member
from cellgen.schedule import Buffer, Function, Kind, Loop, Product, Routine
from cellgen.schedule.groups import Group, GroupedStage, Term, Weight
from cellgen.schedule.lower.rows import leaves_out_rows
from cellgen.schedule.over_time import Part, SequenceSchedule, Storage
from cellgen.schedule.stage import View, flat
from cellgen.targets.c.printer import c_axis, c_factor
from cellgen.targets.cuda.kernels import (
    KernelContext,
    Over,
    Place,
    address,
    factor,
    spell_loop,
)
from cellgen.targets.cuda.memory import Memory
from cellgen.targets.cuda.options import OverTime
from cellgen.targets.cuda.products import (
    Column,
    Neighbours,
    Packing,
    Run,
    gemm,
    gemm_heads,
    outer_products,
    stack,
    summed_over_steps,
)
from cellgen.targets.cuda.step import (
    FunctionContext,
    element_count,
    not_rendered,
    operands_of,
    required_arrays,
    row_stride,
    spell_function,
    spell_routine,
)
from cellgen.targets.cuda.tiers import (
    Carried,
    Choice,
    Passed,
    StepItem,
    StepLoop,
    StepProduct,
    choose,
)

_WORD = re.compile(r"\w+")

STEP = "step * nB"
"""Rows before the current step."""


def sequence_functions(
    schedule: SequenceSchedule, signatures: tuple[Signature, ...]
) -> list[FunctionContext]:
    """Return the contexts of the two functions over time.

    Raises:
        DerivationError: with code ``cuda.loop`` or ``cuda.stage``, for what is not rendered.
    """
    forward, backward = signatures
    return [_forward(schedule, forward), _backward(schedule, backward)]


def tier_choices(
    schedule: SequenceSchedule, signatures: tuple[Signature, ...]
) -> dict[str, Choice]:
    """The kernel over all steps of each function over time, or why it has none."""
    contexts = sequence_functions(schedule, signatures)
    return {context.name: context.choice for context in contexts if context.choice is not None}


@dataclass
class _Host:
    """One host function while it is spelled."""

    schedule: SequenceSchedule
    signature: Signature
    memory: Memory
    packing: Packing
    kernels: list[KernelContext]
    own: dict[Value, Place]
    """What the prologue computes, and the totals that the epilogue reads."""
    options: OverTime

    @staticmethod
    def begin(schedule: SequenceSchedule, signature: Signature) -> _Host:
        programs = schedule.programs
        values = [v for program in programs.all for v in program.values]
        memory = Memory(Names([*LOCALS, *(str(v.name) for v in values)]))
        own = {}
        for value in (*programs.fixed, *programs.totals):
            buffer = Buffer(value, Kind.RESULT)
            name = memory.add(f"{value.name}_once", "store", element_count(buffer))
            own[value] = Place(name, row_stride(buffer), "store")
        links = programs.links
        if signature.name != "sequence_forward":
            read = {*programs.reverse.arguments, *programs.deferred.arguments}
            links = tuple(link for link in links if link.previous in read)
        options = OverTime(programs, signature, memory, links)
        return _Host(schedule, signature, memory, Packing(memory.add), [], own, options)

    def once(self, function: Function | None) -> list[str]:
        """Host lines for what runs once a sequence, on weights alone."""
        if function is None:
            return []
        operands = operands_of(function)
        places = {}
        for buffer in function.buffers:
            stride = row_stride(buffer)
            if buffer.value in self.own:
                places[buffer] = self.own[buffer.value]
            elif buffer.kind is Kind.WORKSPACE:
                element = "store" if buffer in operands else "real"
                name = self.memory.add(
                    f"{function.name}_{buffer.name}", element, element_count(buffer)
                )
                places[buffer] = Place(name, stride, element)
            else:
                places[buffer] = Place(f"args->{c_member(buffer.name)}", stride, "store")
        stem = f"{self.cell}_{self.signature.name}_{function.name}"
        spelled = spell_function(function, stem, places, self.memory)
        self.kernels += spelled.kernels
        return spelled.launches

    @property
    def cell(self) -> str:
        return self.schedule.programs.definition.name

    def context(
        self, first: Iterable[str], lines: Iterable[str], choice: Choice
    ) -> FunctionContext:
        placed = self.options.begin()
        spelled = [*first, *self.packing.lines, *lines]
        strides = self.options.strides().items()
        read = set(_WORD.findall("\n".join(spelled)))
        spelled_all = [*placed, *spelled]
        words = set(_WORD.findall("\n".join(spelled_all)))
        return FunctionContext(
            name=self.signature.name,
            text=self.signature.text,
            dims=[c_dim(dim) for dim in self.signature.dims],
            required=required_arrays(self.signature),
            kernels=self.kernels,
            memory=[array for array in self.memory.arrays if array.name in words],
            lines=spelled,
            tiers=[choice.kernel] if choice.kernel else [],
            choice=choice,
            over_time=True,
            arrays=len(self.options.places),
            moves=self.options.moves(),
            placed=placed,
            strides=[(name, text) for name, text in strides if name in read],
            spared=[] if self.options.is_backward else [a.name for a in self.options.made],
        )


def _indented(lines: Iterable[str]) -> list[str]:
    return ["    " + line.replace("\n", "\n    ") for line in lines]


def _either(choice: Choice, steps: str, body: Sequence[str]) -> list[str]:
    """All steps in one launch where the host chooses so, else one after the other."""
    loop = [f"for ({steps}) {{", *_indented(body), "}"]
    tier = choice.kernel
    if tier is None:
        return loop
    if tier.kind == "stream":
        units = tier.widest[0]
        launch = f"CELLGEN_STREAM(&run, CELLGEN_CUDA_NAME({tier.name}), nB, {units}, {tier.call});"
        chosen = "!guarded && args->tier != CELLGEN_TIER_STEPS"
        head = [f"if ({chosen}) {{ /* {_WHOLE[tier.kind]} */"]
    else:
        widest = "0"
        for units in tier.widest:
            widest = f"cellgen_larger({widest}, {units})"
        heads = tier.heads or "1"
        sizes = f"nT, nB, {heads}, {widest}, {tier.shared}, {tier.fragments}, {len(tier.items)}"
        name = f"CELLGEN_CUDA_NAME({tier.name})"
        launch = f"CELLGEN_IN_BLOCKS(&run, ({name}<{{}}>), blocks, {tier.call});"
        head = [
            "cellgen_blocks blocks;",
            f"const int way = guarded ? CELLGEN_ONE_BY_ONE : cellgen_choose_blocks<store>("
            f"&run, args->tier, {sizes}, &blocks);",
            f"if (way == CELLGEN_BY_FRAGMENT) {{ /* {_WHOLE['head' if tier.heads else 'block']},"
            " with matrix units */",
            "    " + launch.format("cellgen_matrix_units<store>::way"),
            "} else if (way == CELLGEN_BY_THREAD) { /* without them */",
        ]
        launch = launch.format("cellgen_by_thread")
    return [*head, f"    {launch}", "} else {", *_indented(loop), "}"]


_WHOLE = {
    "stream": "a thread takes a unit through all steps",
    "block": "a block takes rows through all steps",
    "head": "a block takes rows of one head through all steps",
}


def _forward(schedule: SequenceSchedule, signature: Signature) -> FunctionContext:
    host = _Host.begin(schedule, signature)
    states = {link.next: _state_over_time(host, link) for link in schedule.programs.links}
    first = host.once(schedule.prologue)
    part = _Steps(host, "forward", schedule.forward, states, Neighbours())
    ahead, body = part.lines()
    choice = part.choice()
    settled = [host.options.settle(link, part.made(link)) for link in schedule.programs.links]
    body += ["if (guarded) {", *_indented(settled), "}"] if settled else []
    loop = _either(choice, "int64_t step = 0; step < nT; ++step", body)
    last = [_last(host, link, states[link.next]) for link in schedule.programs.links]
    return host.context(first, [*ahead, *loop, *last, *host.options.end()], choice)


@dataclass(frozen=True)
class _State:
    """Where a state lies after each step: over time, or in two places by turns.

    ``apart`` names the strides of an array of the caller.
    """

    base: str
    width: str
    is_pair: bool = False
    apart: tuple[str, str] | None = None

    def after(self, step: str) -> Place:
        """Its place after a step, given as C text."""
        inner = f"({step})" if " " in step else step
        if self.apart is not None:
            between_steps, between_rows = self.apart
            return Place(self.base, between_rows, "store", steps=f"{inner} * {between_steps}")
        turn = " % 2" if self.is_pair else ""
        return Place(self.base, self.width, "store", rows=f"{inner}{turn} * nB")


def _state_over_time(host: _Host, link: StateLink) -> _State:
    name, width = str(link.next.name), c_factor(_width(link.next))
    if link.next in host.schedule.programs.outputs:
        return _State(f"args->{c_member(name)}", width, apart=host.options.apart[name])
    pair = host.memory.add(f"{name}_pair", "store", f"2 * nB * {width}")
    return _State(pair, width, is_pair=True)


def _last(host: _Host, link: StateLink, state: _State) -> str:
    """Copy the state after the last step, or the initial one of an empty sequence."""
    name, width = str(link.next.name), c_axis(_width(link.next))
    made = _saved_or(host, link.next, state, "nT - 1")
    now = host.options.before[link.previous]
    source = (
        f"guarded ? {now} : nT > 0 ? {made.pointer} : args->{c_member(str(link.previous.name))}"
    )
    stride = width
    if state.apart is not None:
        stride = f"!guarded && nT > 0 ? {made.stride} : {width}"
    return (
        f"cg_copy(&run, nB, {width}, cg_rows(args->{c_member(f'{name}_last')}, {width}), "
        f"cg_in({source}, {stride}));"
    )


def _saved_or(host: _Host, value: Value, state: _State, step: str) -> Place:
    """A state that is no output lies where it is saved, if it is."""
    own = state.after(step)
    if not state.is_pair or value not in host.schedule.programs.saved:
        return own
    argument = f"args->{c_member(str(value.name))}"
    saved = _State(argument, state.width).after(step)
    return Place(f"({argument} ? {saved.pointer} : {own.pointer})", state.width, "store")


def _backward(schedule: SequenceSchedule, signature: Signature) -> FunctionContext:
    host = _Host.begin(schedule, signature)
    programs = schedule.programs
    states = {
        link.next: _State(
            f"args->{c_member(str(link.next.name))}",
            c_factor(_width(link.next)),
            apart=host.options.apart.get(str(link.next.name)),
        )
        for link in programs.links
    }
    first = host.once(schedule.prologue)
    kept = _Kept.plan(host)
    reverse = _Steps(host, "reverse", schedule.reverse, states, kept.neighbours(schedule.reverse))
    reverse.kept = kept
    ahead, body = reverse.lines()
    begin = [reverse.carry_line(link, "begin") for link in programs.links]
    choice = reverse.choice()
    settled = [reverse.settle(link) for link in programs.links]
    if kept.order:
        at = f"{kept.memory} + step * nB * {kept.stride}"
        settled.append(host.options.leave_out(at, kept.stride))
    body += ["if (guarded) {", *_indented(settled), "}"] if settled else []
    cuts = [reverse.cut(link) for link in programs.links]
    body += ["if (cellgen_cuts(args->window, step)) {", *_indented(cuts), "}"] if cuts else []
    loop = _either(choice, "int64_t step = nT - 1; step >= 0; --step", body)
    end = [reverse.carry_line(link, "end") for link in programs.links]
    deferred = _Deferred(host, schedule.deferred, kept).lines()
    epilogue = host.once(schedule.epilogue)
    lines = [*begin, *ahead, *loop, *end, *deferred, *epilogue, *host.options.end()]
    return host.context(first, lines, choice)


@dataclass(frozen=True)
class _Kept:
    """What the deferred part reads of the loop, side by side in one array over time."""

    order: tuple[Value, ...]
    memory: str
    stride: str

    @staticmethod
    def plan(host: _Host) -> _Kept:
        order = host.schedule.programs.kept
        if not order:
            return _Kept((), "", "")
        total = sum((_width(v) for v in order[1:]), start=_width(order[0]))
        memory = host.memory.add("adjoints", "store", f"nT * nB * {c_factor(total)}")
        return _Kept(order, memory, c_factor(total))

    def place(self, value: Value, step: str = "") -> Place:
        before = self.order[: self.order.index(value)]
        start = sum((_width(v) for v in before), start=Integer(0))
        column = c_axis(start) if start != 0 else ""
        return Place(self.memory, self.stride, "store", rows=step, column=column)

    def neighbours(self, part: Part) -> Neighbours:
        buffers = {buffer.value: buffer for buffer in part.storage}
        views = []
        for value in self.order:
            if value in buffers:
                shape = buffers[value].shape
                views.append(View(buffers[value], tuple(Integer(0) for _ in shape), shape))
        return Neighbours(views)


class _Steps:
    """Spells the stages of a part that runs step by step: ``forward`` or ``reverse``."""

    kept: _Kept | None = None

    def __init__(
        self,
        host: _Host,
        name: str,
        part: Part,
        states: dict[Value, _State],
        neighbours: Neighbours,
    ) -> None:
        self.host, self.name, self.part, self.states = host, name, part, states
        self.neighbours = neighbours
        self.operands = _operands(part.stages)
        self.read = _read_by_stages(part.stages)
        self.carries: dict[Value, str] = {}
        self.columns: dict[Buffer, Column] = {}
        self.sums: dict[str, tuple[str, bool]] = {}
        self.items: list[StepItem] = []
        self.own: dict[Buffer, Place] = {}
        for link in host.schedule.programs.links if name == "reverse" else ():
            width = c_factor(_width(link.passed))
            self.carries[link.passed] = host.memory.add(
                f"{link.passed.name}_pair", "real", f"2 * nB * {width}"
            )

    # --- lines ---

    def lines(self) -> tuple[list[str], list[str]]:
        """Host lines that run once before the loop over steps, and in each step."""
        ahead: list[str] = []
        body: list[str] = []
        for index, stage in enumerate(self.part.stages, start=1):
            stem = f"{self.name}_{index}"
            if isinstance(stage, Group):
                once, each = self._group(stem, stage)
                ahead += once
                body += each
                for name, loop in _named(stem, stage.loops):
                    body += self._loop(name, loop, stem)
            elif isinstance(stage, Loop):
                body += self._loop(stem, stage)
            elif isinstance(stage, Routine):
                body += spell_routine(stage, "nB", self.place)
                self.items.append(stage)
            else:
                raise not_rendered(self.host.cell, stage)
        return ahead, body

    def _loop(self, stem: str, loop: Loop, group: str = "") -> list[str]:
        spelled = spell_loop(f"{self.host.cell}_{stem}", loop, self.place, self.host.memory.add)
        self.host.kernels += spelled.kernels
        self.items.append(StepLoop(stem, loop, group))
        return spelled.launches

    def choice(self) -> Choice:
        """The kernel that runs all steps at once, if there is one."""
        definition = self.host.schedule.programs.definition
        return choose(
            f"{definition.name}_{self.name}",
            f"{definition.name}_cuda_{self.host.signature.name}_args",
            self.host.signature,
            self.items,
            self.place_in_tier,
            [self._carried(link) for link in self.host.schedule.programs.links],
            [
                self._passed(k)
                for k in self.host.schedule.programs.links
                if k.passed in self.carries
            ],
            self.host.memory.arrays,
            self.host.options.strides(),
        )

    def _carried(self, link: StateLink) -> Carried:
        if self.name == "forward":
            width = c_axis(_width(link.previous))
            member = c_member(str(link.previous.name))
            first = f"cg_load(cg_in(args->{member}, {width}), row, unit)"
            return Carried(link.previous, link.next, first, "", True)
        width, pair = c_factor(_width(link.passed)), self.carries[link.passed]
        first = f"cg_load(cg_in({pair} + nT % 2 * nB * {width}, {width}), row, unit)"
        last = f"cg_store(cg_rows({pair}, {width}), row, unit, {link.carry.name})"
        return Carried(link.carry, link.passed, first, last, False)

    def made(self, link: StateLink) -> str:
        """Where the current step leaves a state."""
        return self._state_place(link.next, "step").pointer

    def cut(self, link: StateLink) -> str:
        """Let no gradient go on to the step before."""
        passed = self._passed(link)
        rows = f"cg_rows({passed.pointer}, {passed.stride})"
        return f"cg_clear(&run, nB, {c_axis(_width(link.passed))}, {rows});"

    def _passed(self, link: StateLink) -> Passed:
        """Where the current step leaves the gradient for the step before."""
        width, stride = c_axis(_width(link.passed)), c_factor(_width(link.passed))
        pointer = f"{self.carries[link.passed]} + step % 2 * nB * {stride}"
        return Passed(pointer, stride, width)

    def settle(self, link: StateLink) -> str:
        """Put the gradient for the step before right where this one does not count."""
        at = f"{self.carries[link.passed]} + {{}} % 2 * nB * {c_factor(_width(link.passed))}"
        return self.host.options.settle_gradient(link, at.format("step"), at.format("(step + 1)"))

    def carry_line(self, link: StateLink, when: str) -> str:
        """Take the gradient of the last state in, or hand that of the initial one out."""
        width, pair = c_axis(_width(link.passed)), self.carries[link.passed]
        if when == "begin":
            target = f"cg_rows({pair} + nT % 2 * nB * {factor(width)}, {width})"
            source = f"cg_in(args->{c_member(f'd_{link.next.name}_last')}, {width})"
        else:
            target = f"cg_rows(args->{c_member(str(link.passed.name))}, {width})"
            source = f"cg_in({pair}, {width})"
        return f"cg_copy(&run, nB, {width}, {target}, {source});"

    # --- products ---

    def _group(self, stem: str, group: Group) -> tuple[list[str], list[str]]:
        """The products of a group: those for all steps at once, those of a step."""
        over_time = self.name == "forward" and any(self._is_input(t.operand) for t in group.terms)
        self._place_slots(stem, group, over_time)
        columns = [self._column(slot.view) for slot in group.slots]
        inputs = [t for t in group.terms if over_time and self._is_input(t.operand)]
        others = [t for t in group.terms if t not in inputs]
        ahead: list[str] = []
        body: list[str] = []
        ordered = replace(group, terms=(*inputs, *others))
        covered: set[int] = set()
        for number, run in enumerate(stack(ordered, columns, self.neighbours), start=1):
            hoisted = run.terms[0] in inputs and self._lies_over_time(group, run)
            line = self._product(f"{stem}_weights_{number}", group, run, hoisted)
            (ahead if hoisted else body).extend(line)
            covered |= set(run.slots) if hoisted else set()
        return ahead, body

    def _lies_over_time(self, group: Group, run: Run) -> bool:
        """Whether the columns that a run forms have a place of their own at every step."""
        slot = group.slots[run.slots[0]]
        memory = self._column(slot.view).memory
        if memory in self.sums:
            return self.sums[memory][1]
        value = slot.view.buffer.value
        return value in self.host.schedule.programs.outputs

    def _product(self, name: str, group: Group, run: Run, hoisted: bool) -> list[str]:
        weights, stride, turned = self.host.packing.panel(name, run, self.place)
        operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
        a, c = self.place(operand.buffer), self.place(target.buffer)
        rows = "nB"
        if hoisted:
            self.host.options.whole |= {operand.buffer.name, target.buffer.name}
            a, c, rows = self._at_all_steps(operand), self._at_all_steps(target), "nT * nB"
        inner = sum((t.inner for t in run.terms[1:]), start=run.terms[0].inner)
        width = group.units * len(run.slots)
        terms = zip(run.terms, run.weights, strict=True)
        comment = "; ".join(_term_comment(t, w) for t, w in terms)
        routine = "nt" if turned else "nn"
        matrices = (
            (address(operand, a), a.stride),
            (weights, stride),
            (address(target, c), c.stride),
        )
        heads, units = run.heads(group), group.units
        if heads is None:
            call = gemm(routine, (rows, c_axis(width), c_axis(inner)), *matrices, run.onto)
        else:
            units = group.units / heads
            sizes = (rows, c_axis(units), c_axis(inner))
            call = gemm_heads(routine, len(run.slots), heads, sizes, *matrices, run.onto)
        if not hoisted:
            in_tier = self.place_in_tier(operand.buffer)
            self.items.append(
                StepProduct(
                    comment,
                    len(run.slots),
                    c_axis(units),
                    c_axis(inner),
                    (address(operand, in_tier), in_tier.stride),
                    (weights, stride),
                    turned,
                    matrices[2],
                    run.onto,
                    name.rpartition("_weights_")[0],
                    "" if heads is None else c_factor(heads),
                    c_axis(group.units),
                )
            )
        return [f"/* {comment}{', all steps at once' if hoisted else ''} */", call]

    def _at_all_steps(self, view: View) -> Place:
        """Where a matrix over all steps begins: one row follows the other."""
        place = replace(self.place(view.buffer), rows="", steps="")
        if view.buffer.name in self.host.options.places:
            return replace(place, stride=row_stride(view.buffer))
        return place

    def _is_input(self, view: View) -> bool:
        buffer = view.buffer
        return buffer.kind is Kind.ARGUMENT and self.part.storage[buffer] is Storage.TIME

    def _place_slots(self, stem: str, group: Group, over_time: bool) -> None:
        """Let the sums of a group lie side by side, where nothing fixes their place."""
        chosen: list[Buffer] = []
        for slot in group.slots:
            buffer = slot.view.buffer
            is_free = self.part.storage[buffer] is Storage.SCRATCH and buffer not in self.operands
            if is_free and buffer not in chosen and buffer not in self.columns:
                chosen.append(buffer)
        if not chosen:
            return
        total = sum((b.shape[-1] for b in chosen[1:]), start=chosen[0].shape[-1])
        count = f"{'nT * ' if over_time else ''}nB * {c_factor(total)}"
        memory = self.host.memory.add(f"{stem}_sums", "real", count)
        self.sums[memory] = (c_factor(total), over_time)
        start = Integer(0)
        for buffer in chosen:
            self.columns[buffer] = Column(memory, start, buffer.shape[-1])
            start = start + buffer.shape[-1]

    def _column(self, view: View) -> Column:
        """Where a slot lies: columns of a group's sums, or of its own buffer."""
        at = self.columns.get(view.buffer)
        start, width = view.start[-1], view.shape[-1]
        if at is None:
            return Column(view.buffer.name, start, width)
        return Column(at.memory, at.start + start, width)

    # --- places ---

    def place(self, buffer: Buffer) -> Place:
        """Where a buffer lies in the current step."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        if buffer in self.columns:
            return self._sum_place(self.columns[buffer])
        storage, stride = self.part.storage[buffer], row_stride(buffer)
        argument = f"args->{c_member(buffer.name)}"
        if storage is Storage.CARRY_IN or storage is Storage.CARRY_OUT:
            return self._carry(buffer, storage)
        if storage is Storage.PREVIOUS:
            return self._previous(buffer)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.TIME:
            return self._time(buffer, argument, stride)
        return Place(argument, stride, "store", optional=buffer.kind is Kind.OPTIONAL)

    def place_in_tier(self, buffer: Buffer) -> Place:
        """The same in a kernel over all steps, which runs where every step counts."""
        if self.part.storage[buffer] is Storage.PREVIOUS and buffer.value not in self.host.own:
            return self._previous(buffer, guarded=False)
        return self.place(buffer)

    def _previous(self, buffer: Buffer, guarded: bool = True) -> Place:
        """A state before the current step: a copy where steps may not count."""
        link = self._link_of(buffer.value)
        before = self._state_place(link.next, "step - 1")
        stride = row_stride(buffer)
        pointer = f"step ? {before.pointer} : args->{c_member(buffer.name)}"
        if guarded:
            copy = self.host.options.before[buffer.value]
            step = f" + {STEP} * {stride}" if self.name == "reverse" else ""
            pointer = f"guarded ? {copy}{step} : {pointer}"
        if before.stride != stride:
            dense = "guarded || step == 0" if guarded else "step == 0"
            stride = f"({dense} ? {stride} : {before.stride})"
        return Place(f"({pointer})", stride, "store")

    def _sum_place(self, column: Column) -> Place:
        stride, over_time = self.sums[column.memory]
        start = c_axis(column.start) if column.start != 0 else ""
        rows = STEP if over_time else ""
        return Place(column.memory, stride, "real", rows=rows, column=start)

    def _carry(self, buffer: Buffer, storage: Storage) -> Place:
        links = self.host.schedule.programs.links
        link = next(k for k in links if buffer.value in (k.carry, k.passed))
        rows = "(step + 1) % 2 * nB" if storage is Storage.CARRY_IN else "step % 2 * nB"
        return Place(self.carries[link.passed], row_stride(buffer), "real", rows=rows)

    def _time(self, buffer: Buffer, argument: str, stride: str) -> Place:
        value, programs = buffer.value, self.host.schedule.programs
        if self.kept is not None and value in self.kept.order:
            return self.kept.place(value, STEP)
        over_time = Place(argument, stride, "store", rows=STEP)
        if buffer.name in self.host.options.places:
            between_steps, between_rows = self.host.options.apart[buffer.name]
            steps = f"step * {between_steps}"
            over_time = Place(argument, between_rows, "store", steps=steps)
        if buffer.kind is Kind.OPTIONAL:
            return _nullable(argument, over_time)
        is_made = self.name == "forward" and buffer.kind is Kind.RESULT
        if not is_made or value in programs.outputs:
            return over_time
        if value in self.states:
            return self._state_place(value, "step")
        if value not in programs.saved:
            return self._scratch(buffer)
        if buffer not in self.read:
            return _nullable(argument, over_time)
        own = self._scratch(buffer)
        return Place(f"({argument} ? {over_time.pointer} : {own.pointer})", stride, "store")

    def _state_place(self, value: Value, step: str) -> Place:
        if self.name == "reverse":
            return self.states[value].after(step)
        return _saved_or(self.host, value, self.states[value], step)

    def _scratch(self, buffer: Buffer) -> Place:
        if buffer not in self.own:
            is_result = buffer.kind is Kind.RESULT
            element = "store" if buffer in self.operands or is_result else "real"
            name = self.host.memory.add(
                f"{self.name}_{buffer.name}", element, element_count(buffer)
            )
            self.own[buffer] = Place(name, row_stride(buffer), element)
        return self.own[buffer]

    def _link_of(self, state: Value) -> StateLink:
        return next(k for k in self.host.schedule.programs.links if k.previous == state)


class _Deferred:
    """Spells the deferred part: every stage once, over the rows of all steps."""

    def __init__(self, host: _Host, part: Part, kept: _Kept) -> None:
        self.host, self.part, self.kept = host, part, kept
        self.neighbours = kept.neighbours(part)
        self.operands = _operands(part.stages)
        self.own: dict[Buffer, Place] = {}

    def lines(self) -> list[str]:
        lines: list[str] = []
        waiting: list[Product] = []
        for index, stage in enumerate(self.part.stages, start=1):
            if isinstance(stage, Product):
                waiting.append(stage)
                continue
            lines += self._products(waiting)
            waiting = []
            stem = f"deferred_{index}"
            if isinstance(stage, Loop):
                lines += self._loop(stem, stage)
                continue
            if isinstance(stage, Routine):
                lines += self._routine(stage)
                continue
            lines += self._group(stem, stage)
            for name, loop in _named(stem, stage.loops):
                lines += self._loop(name, loop)
        return [*lines, *self._products(waiting), *self._contexts()]

    def _contexts(self) -> list[str]:
        """Add up the steps' shares in the gradients of what is constant over time."""
        contexts = self.host.schedule.programs.contexts
        counts = f"guarded ? {self.host.options.counts} : nullptr"
        lines = []
        for buffer in (b for b in self.part.storage if b.value in contexts):
            shares, stride = self.place(buffer), row_stride(buffer)
            lines.append(
                f"cg_add_steps(&run, nB, {stride}, nT, cg_in({shares.pointer}, {stride}), "
                f"{counts}, cg_rows(args->{c_member(buffer.name)}, {stride}));"
            )
        return lines

    def _loop(self, stem: str, loop: Loop) -> list[str]:
        spelled = spell_loop(
            f"{self.host.cell}_{stem}",
            loop,
            self.place,
            self.host.memory.add,
            steps="nT",
            counts=f"guarded ? {self.host.options.counts} : nullptr"
            if leaves_out_rows(loop)
            else "",
        )
        self.host.kernels += spelled.kernels
        return spelled.launches

    def _routine(self, stage: Routine) -> list[str]:
        if stage.walk[0] and self.place(stage.a.buffer).over is not Over.ROWS:
            raise not_rendered(self.host.cell, stage)
        return spell_routine(stage, "nT * nB", self.place)

    def _products(self, products: Sequence[Product]) -> list[str]:
        """Weight gradients: one product for each left operand and run of adjoints."""
        lines: list[str] = []
        for run in outer_products(products, self.neighbours):
            lines.append("/* " + "; ".join(f"{p.target} = {p.a}.T @ {p.b}" for p in run) + " */")
            lines += self._outer(run)
        return lines

    def _outer(self, run: tuple[Product, ...]) -> list[str]:
        first = run[0]
        rows = c_axis(first.target.shape[0])
        a = (first.a, self.place(first.a.buffer))
        b = (first.b, self.place(first.b.buffer))
        if len(run) == 1:
            target = self.place(first.target.buffer)
            c = (address(first.target, target), target.stride)
            shape = first.target.shape if first.heads is None else first.weights
            return summed_over_steps((c_axis(shape[0]), c_axis(shape[1])), a, b, c, first.heads)
        widths = [product.target.shape[1] for product in run]
        total = sum(widths[1:], start=widths[0])
        name = f"{first.a.buffer.name}_products"
        joint = self.host.memory.add(name, "real", f"{factor(rows)} * {c_factor(total)}")
        lines = summed_over_steps((rows, c_axis(total)), a, b, (joint, c_axis(total)))
        start: Expr = Integer(0)
        for product, width in zip(run, widths, strict=True):
            target = self.place(product.target.buffer)
            at = joint if start == 0 else f"{joint} + {c_axis(start)}"
            lines.append(
                f"cg_copy(&run, {rows}, {c_axis(width)}, "
                f"cg_rows({address(product.target, target)}, {target.stride}), "
                f"cg_in({at}, {c_axis(total)}));"
            )
            start = start + width
        return lines

    def _group(self, stem: str, group: Group) -> list[str]:
        columns = [
            Column(slot.view.buffer.name, slot.view.start[-1], slot.view.shape[-1])
            for slot in group.slots
        ]
        lines = []
        for number, run in enumerate(stack(group, columns, self.neighbours), start=1):
            weights, stride, turned = self.host.packing.panel(
                f"{stem}_weights_{number}", run, self.place
            )
            operand, target = run.terms[0].operand, group.slots[run.slots[0]].view
            a, c = self.place(operand.buffer), self.place(target.buffer)
            if a.over is not Over.ROWS:
                raise DerivationError(
                    f"{self.host.cell}: `{operand} @ ...` over all steps is not rendered for CUDA "
                    f"yet, because {operand} lies in {a.over.value}",
                    code="cuda.stage",
                )
            inner = sum((t.inner for t in run.terms[1:]), start=run.terms[0].inner)
            width, heads = group.units * len(run.slots), run.heads(group)
            terms = zip(run.terms, run.weights, strict=True)
            lines.append("/* " + "; ".join(_term_comment(t, w) for t, w in terms) + " */")
            routine = "nt" if turned else "nn"
            matrices = (
                (address(operand, a), a.stride),
                (weights, stride),
                (address(target, c), c.stride),
            )
            if heads is None:
                sizes = ("nT * nB", c_axis(width), c_axis(inner))
                lines.append(gemm(routine, sizes, *matrices, run.onto))
            else:
                sizes = ("nT * nB", c_axis(group.units / heads), c_axis(inner))
                slots = len(run.slots)
                lines.append(gemm_heads(routine, slots, heads, sizes, *matrices, run.onto))
        return lines

    def place(self, buffer: Buffer) -> Place:
        """Where a buffer lies, from its first step on."""
        if buffer.value in self.host.own:
            return self.host.own[buffer.value]
        storage, stride = self.part.storage[buffer], row_stride(buffer)
        argument = f"args->{c_member(buffer.name)}"
        optional = buffer.kind is Kind.OPTIONAL
        self.host.options.whole.add(buffer.name)
        if storage is Storage.SCRATCH:
            return self._scratch(buffer)
        if storage is Storage.PREVIOUS:
            link = next(k for k in self.host.schedule.programs.links if k.previous == buffer.value)
            self.host.options.whole.add(str(link.next.name))
            copy = self.host.options.before[buffer.value]
            made = f"(guarded ? {copy} + nB * {stride} : args->{c_member(str(link.next.name))})"
            first = f"(guarded ? {copy} : {argument})"
            return Place(made, stride, "store", over=Over.PREVIOUS, initial=first)
        if buffer.value in self.kept.order:
            return self.kept.place(buffer.value)
        is_row = storage is Storage.CONSTANT and buffer.value.is_batched
        over = Over.BATCH if is_row else Over.ROWS
        return Place(argument, stride, "store", optional=optional, over=over)

    def _scratch(self, buffer: Buffer) -> Place:
        if buffer not in self.own:
            element = "store" if buffer in self.operands else "real"
            count = f"nT * {element_count(buffer)}"
            name = self.host.memory.add(f"deferred_{buffer.name}", element, count)
            self.own[buffer] = Place(name, row_stride(buffer), element)
        return self.own[buffer]


def _width(value: Value) -> Expr:
    """Elements of a row: the units of all heads."""
    return flat(value.shape)[-1]


def _named(stem: str, loops: Sequence[Loop]) -> list[tuple[str, Loop]]:
    """Names for the loops of a group: the group's own where there is one."""
    many = len(loops) > 1
    return [(f"{stem}_{n}" if many else stem, loop) for n, loop in enumerate(loops, start=1)]


def _operands(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """Buffers that products read: they hold ``store``."""
    found = set()
    for stage in stages:
        if isinstance(stage, Group):
            found |= {term.operand.buffer for term in stage.terms}
        elif isinstance(stage, Product):
            found |= {stage.a.buffer, stage.b.buffer}
    return found


def _read_by_stages(stages: Iterable[GroupedStage]) -> set[Buffer]:
    """Buffers that some stage reads from memory."""
    found = _operands(stages)
    for stage in stages:
        loops = stage.loops if isinstance(stage, Group) else (stage,)
        for loop in loops:
            if isinstance(loop, Loop):
                found |= {load.view.buffer for load in loop.loads}
            elif isinstance(loop, Routine):
                found.add(loop.a.buffer)
    return found


def _nullable(argument: str, place: Place) -> Place:
    """An array that may be left out."""
    pointer = f"({argument} ? {place.pointer} : nullptr)"
    return Place(pointer, place.stride, place.element, optional=True)


def _term_comment(term: Term, weights: Sequence[Weight]) -> str:
    listed = ", ".join(f"{w.view}{'.T' if w.transposed else ''}" for w in weights)
    return f"{term.operand} @ [{listed}]"
