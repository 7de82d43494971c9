"""Signs of pointwise functions, from the signs of their arguments."""

from __future__ import annotations

from collections.abc import Sequence

from cellgen.language.ops.function import Sign


def not_negative(signs: Sequence[Sign]) -> Sign:
    """Never below 0."""
    return Sign.NOT_NEGATIVE


def sign_of_exp(signs: Sequence[Sign]) -> Sign:
    """At least 1 where the argument is not negative; it underflows elsewhere."""
    return Sign.POSITIVE if signs[0] else Sign.NOT_NEGATIVE


def sign_of_low_limit(signs: Sequence[Sign]) -> Sign:
    """The sign of the lower limit."""
    return signs[1]


def sign_of_branches(signs: Sequence[Sign]) -> Sign:
    """The weaker of the signs of the branches."""
    return min(signs[1:])


def sign_of_strong_product(signs: Sequence[Sign]) -> Sign:
    """No stronger than not negative."""
    return min(*signs, Sign.NOT_NEGATIVE)


def sign_as_whole(signs: Sequence[Sign]) -> Sign:
    """What is rounded may become 0."""
    return min(signs[0], Sign.NOT_NEGATIVE)


def sign_as_argument(signs: Sequence[Sign]) -> Sign:
    """The sign of the argument."""
    return signs[0]
