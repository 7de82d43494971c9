"""The options of a call that are numbers, in the order of C; in a wheel the names stand here."""

from __future__ import annotations

from cellgen.runtime.numbers import NUMBERED

NAMES = tuple(option.name for option in NUMBERED)
