"""Goldens: numbers that the peer libraries computed, and kernels beside them."""

from cellgen.proof.goldens.files import accuracy, folder, peer_worst, read
from cellgen.proof.goldens.measure import FLOAT64_BAR, SMALL, Measurement, measure
from cellgen.proof.goldens.of_tensorflow import run_tf_lstm
from cellgen.proof.goldens.standing import Standing, standings
from cellgen.proof.goldens.table import PEERS

__all__ = [
    "FLOAT64_BAR",
    "PEERS",
    "SMALL",
    "Measurement",
    "Standing",
    "accuracy",
    "folder",
    "measure",
    "peer_worst",
    "read",
    "run_tf_lstm",
    "standings",
]
