"""Goldens: numbers that the peer libraries computed, and kernels beside them."""

from cellgen.proof.goldens.measure import (
    FLOAT64_BAR,
    PEERS,
    SMALL,
    Measurement,
    Standing,
    accuracy,
    folder,
    measure,
    peer_worst,
    read,
    run_tf_lstm,
    standings,
)

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
