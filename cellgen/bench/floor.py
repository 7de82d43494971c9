"""The machine's limit: how fast it multiplies matrices and moves bytes, measured in the same run.

floor = max(operations of all matrix products / best rate of a large product,
            bytes of every argument and result once / rate of a copy of as many bytes)

The rate of the product is the best of a whole run, or that of one round: a shared machine is not
equally fast throughout, and only what was timed side by side can be compared.
The copy is warm, as the contestants' arrays are: what fits into a cache is copied within it.
Elementwise work is not counted, so that 1.00 means that it is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellgen.bench.process import Worker

SGEMM_SIZE = 2048
COPY_BYTES = 128 << 20
"""Larger than last-level caches."""

ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """What a number of threads reaches on this machine.

    Operations per second of a large product by library, bytes per second of a copy that no cache
    holds.
    """

    threads: int
    sgemm: Mapping[str, float]
    copy: float

    @property
    def best(self) -> float:
        """Operations per second of the fastest library."""
        return max(self.sgemm.values())

    @property
    def library(self) -> str:
        """Whose product was the fastest."""
        return max(self.sgemm, key=lambda name: self.sgemm[name])


@dataclass(frozen=True)
class Floor:
    """Seconds below which a computation cannot come, and what bounds it.

    ``copy`` in bytes per second.
    """

    flops: int
    bytes: int
    copy: float
    seconds: float
    bound: str

    def at(self, sgemm: float) -> float:
        """Seconds where a large product runs at ``sgemm`` operations per second."""
        return max(self.flops / sgemm, self.bytes / self.copy)


def measure_rates(
    workers: Sequence[Worker], threads: int, size: int = SGEMM_SIZE, count: int = COPY_BYTES
) -> Rates:
    """Take the best of several interleaved rounds of those that offer a product.

    Raises:
        WorkerError: a product fails.
    """
    best: dict[str, float] = {}
    copy = 0.0
    for _ in range(ROUNDS):
        for worker in workers:
            rate = worker.sgemm(size)
            if rate is not None:
                best[worker.peer.name] = max(best.get(worker.peer.name, 0.0), rate)
            worker.settle()
        copy = max(copy, workers[0].copy(count))
    return Rates(threads, best, copy)


def best_of(first: Rates, second: Rates) -> Rates:
    """Join two measurements of one run."""
    sgemm = {name: max(rate, second.sgemm[name]) for name, rate in first.sgemm.items()}
    return Rates(first.threads, sgemm, max(first.copy, second.copy))


def floor_of(flops: int, count: int, copy: float, rates: Rates) -> Floor:
    """Apply the rates to the work; ``copy`` is the rate at its number of bytes."""
    products, moves = flops / rates.best, count / copy
    bound = "products" if products >= moves else "memory"
    return Floor(flops, count, copy, max(products, moves), bound)
