r"""The program of a chunk of a memory: products of matrices in place of steps.

For rows t of a chunk let G be the running sum of the logarithms of decays, Gx = G - g that before
the step, and X(a, b)[t, i] = sum_k a[t, k] b[i, k] exp(G'[t, k] - G[i, k]) for i below t, or up to
it, with G' one of the two:

    M    = X(a_e, k_j) c_je', summed over j
    u    = (I + M)^-1 (a exp(Gx) S^T + X(a, k_j) v_j)
    nu_j = v_j - c_je u_e
    o    = q exp(G) S^T + X(q, k_j) nu_j
    S'   = S exp(G_C) + nu_j^T (k_j exp(G_C - G))

Exponents are differences of sums of logarithms, at most 0. Where a decay is a number a key, X is
``decayed_nt``, exact for decays of any strength, or, ``factored``, the product of a exp(G') and
b exp(-G), which holds as long as no sum of a chunk falls below -60. Where one update and one erased
read are all there is, the inverse is pushed through: nu = (I + c X)^-1 (v - c a exp(Gx) S^T).
"""

from __future__ import annotations

import math

from sympy import Add, Expr, Integer, Rational

from cellgen.language.ops import exp, ge, le
from cellgen.language.value import Shape, Value
from cellgen.program.chunks.layers import Decay, Memory, Readout, Update
from cellgen.program.chunks.writer import ONE, Chunk, ChunkProgram

LIMIT = -60
"""Sums of logarithms in a chunk above which exp(-G) is a number of float32, with room to spare."""
HALF = Rational(1, 2)


def memory_program(chunk: Chunk, memory: Memory) -> ChunkProgram:
    """The program of a chunk of a memory; of keys that decay also that of plain products."""
    exact = _Writer(chunk, memory, is_factored=False)
    written = exact.written()
    if memory.decay is not Decay.KEY:
        return written
    again = Chunk(chunk.cell, chunk.length, chunk.gaps, chunk.initials)
    plain = _Writer(again, memory, is_factored=True)
    other = plain.written()
    safe = 0
    if memory.bound is not None and math.isfinite(memory.bound) and memory.bound < 0:
        safe = int(LIMIT / memory.bound)
    return ChunkProgram(
        memory,
        written.program,
        written.first,
        written.last,
        written.streams,
        written.formed,
        written.restart,
        factored=other.program,
        marks=plain.marks,
        safe_steps=safe,
    )


class _Writer:
    def __init__(self, chunk: Chunk, memory: Memory, is_factored: bool) -> None:
        self.chunk, self.memory, self.is_factored = chunk, memory, is_factored
        shape = memory.state.shape
        axes = (memory.value_axis, memory.key_axis)
        self.front: Shape = tuple(axis for n, axis in enumerate(shape) if n not in axes)
        self.keys = shape[memory.key_axis]
        self.values = ONE if memory.value_axis is None else shape[memory.value_axis]
        self.streams: dict[Value, Value] = {}
        self.marks: Value | None = None
        self.state = chunk.argument(f"{memory.state}_first", (*self.front, self.values, self.keys))
        self._declare()
        self.restart = chunk.flags("restart", len(self.front) + 2)
        self._sums()
        self._gaps()

    # --- streams and sums over the chunk ---

    def _declare(self) -> None:
        memory = self.memory
        by_key = self.keys if memory.decay is Decay.KEY else ONE
        widths: dict[Value, Expr] = {}
        if memory.log_decay is not None:
            widths[memory.log_decay] = by_key
        widths |= dict.fromkeys(memory.erasers, self.keys)
        for update in memory.updates:
            widths[update.key] = self.keys
            if update.value is not None:
                widths[update.value] = self.values
            if update.scale is not None:
                widths[update.scale] = ONE
            widths |= dict.fromkeys(update.erased.values(), ONE)
        widths |= {readout.query: self.keys for readout in memory.readouts}
        for stream, width in widths.items():
            shape = (*self.front, self.chunk.length, width)
            self.streams[stream] = self.chunk.argument(str(stream), shape)

    def _sums(self) -> None:
        """Sums of logarithms up to each step, before it, and over the chunk."""
        chunk, log_decay = self.chunk, self.memory.log_decay
        if log_decay is None:
            return
        g = self.streams[log_decay]
        self.after = chunk.apply("G", "cumsum", g, by=(ONE,))
        self.before = chunk.emit("G_before", self.after - g)
        self.total = chunk.apply("G_last", "last_row", self.after)
        if self.memory.decay is Decay.HEAD:
            self.turned = chunk.apply("G_turned", "transpose", self.after)
        elif self.is_factored:
            self.grown = chunk.emit("growth", exp(-self.after))
            self.marks = chunk.emit("marks", ge(LIMIT, self.total))

    def _gaps(self) -> None:
        """What a restart leaves: of a step its readers up to the next restart."""
        if self.restart is None:
            return
        chunk = self.chunk
        count = chunk.apply("restarts", "cumsum", self.restart, by=(ONE,))
        turned = chunk.apply("restarts_turned", "transpose", count)
        last = chunk.apply("restarts_last", "last_row", count)
        self.untouched = chunk.emit("untouched", le(count, HALF))
        self.same = chunk.emit("same", le(count - turned, HALF))
        self.to_last = chunk.emit("to_last", le(last - count, HALF))
        self.through = chunk.emit("through", le(last, HALF))

    # --- the program ---

    def written(self) -> ChunkProgram:
        """The program and its arguments and results."""
        news = self._news()
        formed = {r.value: self._readout(r, news) for r in self.memory.readouts}
        last = self._last(news)
        marks = [] if self.marks is None else [self.marks]
        function = "memory_factored" if self.is_factored else "memory"
        program = self.chunk.program(function, (*formed.values(), last, *marks))
        first = (self.state,)
        streams = self.streams
        return ChunkProgram(self.memory, program, first, (last,), streams, formed, self.restart)

    def _news(self) -> list[Value]:
        """The values that the chunk adds, one for each key, less what is erased."""
        memory, chunk = self.memory, self.chunk
        values = [self._value(update) for update in memory.updates]
        if memory.is_plain:
            return [value for value in values if value is not None]
        if len(memory.updates) == len(memory.erasers) == 1 and memory.updates[0].erased:
            return [self._corrected(memory.updates[0], values[0])]
        erased = self._erased(values)
        news = []
        for update, value in zip(memory.updates, values, strict=True):
            if value is not None and not update.erased:
                news.append(value)
                continue
            terms = [] if value is None else [value]
            terms += [-self.streams[c] * erased[e] for e, c in update.erased.items()]
            news.append(chunk.emit("nu", Add(*terms)))
        return news

    def _value(self, update: Update) -> Value | None:
        if update.value is None:
            return None
        value = self.streams[update.value]
        if update.scale is None:
            return value
        return self.chunk.emit(f"{update.value.name}_scaled", self.streams[update.scale] * value)

    def _corrected(self, update: Update, value: Value | None) -> Value:
        """One update, one erased read: ``nu = (I + c X)^-1 (v - c a exp(Gx) S^T)``."""
        chunk, (eraser,) = self.chunk, self.memory.erasers
        coefficient = self.streams[update.erased[0]]
        lower = chunk.emit("M", coefficient * self._scores(eraser, update.key, False))
        held = -coefficient * self._held(eraser, False)
        wanted = chunk.emit("wanted", held if value is None else value + held)
        return chunk.apply("nu", "unit_lower_solve", lower, wanted)

    def _erased(self, values: list[Value | None]) -> list[Value]:
        """What the memory holds for each erased read, at each step before it."""
        memory, chunk = self.memory, self.chunk
        rows: list[list[Value]] = []
        sums = []
        for eraser in memory.erasers:
            scores = [self._scores(eraser, update.key, False) for update in memory.updates]
            terms: list[Expr] = [self._held(eraser, False)]
            terms += [
                chunk.apply("added", "chunk_nn", x, value)
                for x, value in zip(scores, values, strict=True)
                if value is not None
            ]
            sums.append(chunk.emit("wanted", Add(*terms)))
            rows.append([self._weighed(scores, other) for other in range(len(memory.erasers))])
        if len(sums) == 1:
            return [chunk.apply("u", "unit_lower_solve", rows[0][0], sums[0])]
        block = chunk.apply("M", "stacked", *(chunk.apply("M", "stacked", *row) for row in rows))
        wanted = chunk.apply("wanted", "stacked", *sums)
        solved = chunk.apply("u", "unit_lower_solve", block, wanted)
        return [chunk.apply("u", "entry", solved, by=(Integer(n),)) for n in range(len(sums))]

    def _weighed(self, scores: list[Value], read: int) -> Value:
        """``X(a, k_j) c_je``, summed over the updates that erase by a read."""
        terms: list[Expr] = []
        for x, update in zip(scores, self.memory.updates, strict=True):
            if read in update.erased:
                coefficient = self.streams[update.erased[read]]
                turned = self.chunk.apply("c_turned", "transpose", coefficient)
                terms.append(x * turned)
        return self.chunk.emit("M", Add(*terms), scores[0].shape)

    def _readout(self, readout: Readout, news: list[Value]) -> Value:
        terms: list[Expr] = [self._held(readout.query, readout.after)]
        for update, value in zip(self.memory.updates, news, strict=True):
            scores = self._scores(readout.query, update.key, readout.after)
            terms.append(self.chunk.apply("added", "chunk_nn", scores, value))
        return self.chunk.emit(str(readout.value), Add(*terms))

    def _last(self, news: list[Value]) -> Value:
        chunk, memory = self.chunk, self.memory
        kept: Expr = self.state
        if memory.decay is not Decay.NONE:
            kept = kept * chunk.emit("decay", exp(self.total))
        if self.restart is not None:
            kept = kept * self.through
        terms = [kept]
        for update, value in zip(memory.updates, news, strict=True):
            key: Expr = self.streams[update.key]
            if memory.decay is not Decay.NONE:
                key = key * chunk.emit("decay_to_last", exp(self.total - self.after))
            if self.restart is not None:
                key = key * self.to_last
            reduced = chunk.emit(f"{update.key.name}_last", key)
            terms.append(chunk.apply("added", "chunk_tn", value, reduced))
        return chunk.emit(f"{memory.next}_last", Add(*terms))

    # --- rows of a query ---

    def _held(self, query: Value, after: bool) -> Value:
        """What a query reads of the state that the chunk starts from: ``q exp(G) S^T``."""
        row: Expr = self.streams[query]
        if self.memory.decay is not Decay.NONE:
            row = row * self._decay(after)
        if self.restart is not None:
            row = row * self.untouched
        seen = self.chunk.emit(f"{query.name}_seen", row)
        return self.chunk.apply("held", "chunk_nt", seen, self.state)

    def _decay(self, after: bool) -> Value:
        name, total = ("decay_after", self.after) if after else ("decay_before", self.before)
        return self.chunk.emit(name, exp(total))

    def _scores(self, query: Value, key: Value, after: bool) -> Value:
        """``X(q, k)``: what each step added, as a query of each later step finds it."""
        q, k = self.streams[query], self.streams[key]
        scores = self._pairs(q, k, after)
        return scores if self.restart is None else self.chunk.emit("X", scores * self.same)

    def _pairs(self, q: Value, k: Value, after: bool) -> Value:
        chunk, decay = self.chunk, self.memory.decay
        mask = "lower" if after else "strictly_lower"
        if decay is Decay.KEY and not self.is_factored:
            g = self.after if after else self.before
            return chunk.apply("X", "decayed_nt", q, k, g, self.after, by=(Integer(not after),))
        if decay is Decay.KEY:
            q = chunk.emit(f"{q.name}_decayed", q * self._decay(after))
            k = chunk.emit(f"{k.name}_grown", k * self.grown)
        scores = chunk.apply("X", mask, chunk.apply("X", "chunk_nt", q, k))
        if decay is not Decay.HEAD:
            return scores
        gap = chunk.emit("gap", (self.after if after else self.before) - self.turned)
        between = chunk.emit("between", exp(chunk.apply("gap", mask, gap)))
        return chunk.emit("X", scores * between)
