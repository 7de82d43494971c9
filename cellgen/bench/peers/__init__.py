"""Who takes part: a table of contestants, one module each.

A contestant's module is imported in a process of its own. It has ``prepare(problem, mode,
threads)``, which returns a ``Prepared``; it may have ``sgemm(n, threads)``, which returns a call
that multiplies two (n, n) matrices. A new contestant is a row here and a module.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from cellgen.bench.problem import Arrays, Mode
from cellgen.errors import UsageError

BOTH = (Mode.FORWARD, Mode.BOTH)
LAYERS = ("lstm", "gru", "gru_reset_before")


@dataclass(frozen=True)
class Prepared:
    """``run`` is what is timed; ``results`` names what a run returned as the cell does."""

    run: Callable[[], object]
    results: Callable[[object], Arrays]


@dataclass(frozen=True)
class Peer:
    """A contestant: ``requires`` are modules that must be there, ``package`` how pip calls them.

    ``extra`` is that of cellgen which brings them.
    ``cells`` None means every cell; ``lacks`` names gradients that it cannot compute, so that it
    does less work; ``note`` says what else differs. A ``yardstick`` computes something else to
    measure by, the cell ``instead`` or what its module does: it is timed but not compared.
    """

    name: str
    module: str
    requires: tuple[str, ...] = ()
    package: str = ""
    cells: tuple[str, ...] | None = LAYERS
    modes: tuple[Mode, ...] = BOTH
    lacks: tuple[str, ...] = ()
    note: str = ""
    yardstick: bool = False
    instead: str = ""
    extra: str = ""

    @property
    def bringer(self) -> str:
        """What pip installs to have it."""
        return f"'cellgen-compiler[{self.extra}]'" if self.extra else self.package

    @property
    def installed(self) -> bool:
        """Whether the modules that it needs are installed."""
        return all(importlib.util.find_spec(module) is not None for module in self.requires)

    def takes(self, cell: str, mode: Mode) -> bool:
        """Whether it has a cell, in a mode."""
        return mode in self.modes and (self.cells is None or cell in self.cells)


OWN = Peer("cellgen", "cellgen.bench.peers.own", cells=None)

PEERS = (
    Peer(
        "torch",
        "cellgen.bench.peers.pytorch",
        ("torch",),
        "torch",
        note="nn.LSTM, nn.GRU; reset-before: a Python loop",
        extra="torch",
    ),
    Peer(
        "jax", "cellgen.bench.peers.jax_scan", ("jax",), "jax", note="jit of lax.scan", extra="jax"
    ),
    Peer(
        "onnxruntime",
        "cellgen.bench.peers.onnx_session",
        ("onnxruntime", "onnx"),
        "onnxruntime onnx",
        modes=(Mode.FORWARD,),
        note="operators LSTM, GRU; forward only",
        extra="onnx",
    ),
    Peer(
        "tensorflow",
        "cellgen.bench.peers.tensorflow_ops",
        ("tensorflow",),
        "tensorflow-cpu",
        note="BlockLSTM and its gradient; keras.layers.GRU",
        extra="tensorflow",
    ),
    Peer(
        "mygrad",
        "cellgen.bench.peers.mygrad_gru",
        ("mygrad", "numba"),
        "mygrad numba",
        cells=("gru_reset_before",),
        lacks=("d_h_prev",),
        note="nnet.layers.gru; no gradient of the initial state",
    ),
    Peer(
        "epynn",
        "cellgen.bench.peers.epynn_gru",
        ("epynn",),
        "EpyNN",
        cells=("gru_reset_before",),
        note="GRU, in float64 as it computes",
    ),
    Peer("numpy", "cellgen.bench.peers.by_hand", note="written by hand for this benchmark"),
)


def parse_peers(text: str, peers: tuple[Peer, ...] = PEERS) -> tuple[Peer, ...]:
    """Read ``torch,jax``; all peers where the text is empty, none for ``none``.

    Raises:
        UsageError: a name that no peer has.
    """
    if text.strip() == "none":
        return ()
    known = {peer.name: peer for peer in peers}
    names = [name for name in text.replace(",", " ").split() if name]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--against: no peer is named {name!r}; known: {', '.join(known)}, or none"
            )
    return tuple(known[name] for name in dict.fromkeys(names)) or peers
