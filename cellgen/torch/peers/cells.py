"""The recurrences of the peers' functions as cells: inputs are what the functions take.

Axes: N heads, K units of a key, D units of a value. Gates are logarithms.
"""

from cellgen.language.cell import Cell, Input, State, Weight
from cellgen.language.ops import exp, expand_dims, outer
from cellgen.language.value import Dim

N, D, K = Dim("N"), Dim("D"), Dim("K")


class DecayByHead(Cell, name="fla_simple_gla"):
    """Linear attention whose memory decays by a number a head (arXiv:2307.08621, equation 6)."""

    q, k, v, g = Input(N, K), Input(N, K), Input(N, D), Input(N, 1)
    s_prev = State(N, K, D)
    s = expand_dims(exp(g), -1) * s_prev + outer(k, v)
    o = q @ s
    outputs = o, s


class DecayByKey(Cell, name="fla_gla"):
    """Linear attention whose memory decays by a number a key (arXiv:2312.06635, section 4)."""

    q, k, v, g = Input(N, K), Input(N, K), Input(N, D), Input(N, K)
    s_prev = State(N, K, D)
    s = expand_dims(exp(g), -1) * s_prev + outer(k, v)
    o = q @ s
    outputs = o, s


class DecayByBoth(Cell, name="fla_gla_by_both"):
    """The same with a decay of values beside that of keys."""

    q, k, v, g, g_v = Input(N, K), Input(N, K), Input(N, D), Input(N, K), Input(N, D)
    s_prev = State(N, K, D)
    s = outer(exp(g), exp(g_v)) * s_prev + outer(k, v)
    o = q @ s
    outputs = o, s


class Delta(Cell, name="fla_gated_delta_rule"):
    """The delta rule on a memory that decays by a number a head (arXiv:2412.06464, eq. 10)."""

    q, k, v, g, beta = Input(N, K), Input(N, K), Input(N, D), Input(N, 1), Input(N, 1)
    s_prev = State(N, K, D)
    r = expand_dims(exp(g), -1) * s_prev
    s = r + outer(k, beta * (v - k @ r))
    o = q @ s
    outputs = o, s


class DeltaByKey(Cell, name="fla_kda"):
    """The delta rule on a memory that decays by a number a key (arXiv:2510.26692, eq. 1)."""

    q, k, v, g, beta = Input(N, K), Input(N, K), Input(N, D), Input(N, K), Input(N, 1)
    s_prev = State(N, K, D)
    r = expand_dims(exp(g), -1) * s_prev
    s = r + outer(k, beta * (v - k @ r))
    o = q @ s
    outputs = o, s


class DeltaByValue(Cell, name="fla_delta_rule_by_value"):
    """The delta rule with a rate for each value."""

    q, k, v, beta = Input(N, K), Input(N, K), Input(N, D), Input(N, D)
    s_prev = State(N, K, D)
    s = s_prev + outer(k, beta * (v - k @ s_prev))
    o = q @ s
    outputs = o, s


class Bonus(Cell, name="fla_rwkv6"):
    """Decay by key, and a bonus u of the present key (arXiv:2404.05892, section 4.2)."""

    q, k, v, g, u = Input(N, K), Input(N, K), Input(N, D), Input(N, K), Weight(N, K)
    s_prev = State(N, K, D)
    kv = outer(k, v)
    s = expand_dims(exp(g), -1) * s_prev + kv
    o = q @ (s_prev + expand_dims(u, -1) * kv)
    outputs = o, s


class LowRank(Cell, name="fla_rwkv7"):
    """A transition that is diagonal plus b a^T (arXiv:2503.14456, section 4.1)."""

    q, k, v, g = Input(N, K), Input(N, K), Input(N, D), Input(N, K)
    a, b, s_prev = Input(N, K), Input(N, K), State(N, K, D)
    s = expand_dims(exp(g), -1) * s_prev + outer(b, a @ s_prev) + outer(k, v)
    o = q @ s
    outputs = o, s


class SelectiveScan(Cell, name="mamba_selective_scan"):
    """K states for each of N groups of D channels (arXiv:2312.00752, algorithm 2)."""

    u, delta, b, c = Input(N, D), Input(N, D), Input(N, K), Input(N, K)
    a, s_prev = Weight(N, D, K), State(N, D, K)
    s = exp(expand_dims(delta, -1) * a) * s_prev + outer(delta * u, b)
    o = s @ c
    outputs = o, s
