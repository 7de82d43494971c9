"""Which outputs over time a call forms.

Input: the interface of a function over time and the options of a call. Output: for each result
whether it is formed, and of which shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function
from cellgen.runtime.call.saved import is_on
from cellgen.runtime.options import Options


class Outputs:
    """The results over time of one function; ``stateless`` are those that are no states."""

    def __init__(self, where: str, function: Function) -> None:
        self._where = where
        kept = {item.name for item in function.results if not item.saved}
        self.names = frozenset(item.name for item in function.results if item.over_time)
        self.stateless = frozenset(n for n in self.names if f"{n}_last" not in kept)

    def when_saving(self, options: Options) -> Options:
        """A run that saves forms all outputs: a backward pass reads them."""
        return replace(options, last_only=False) if is_on(options.last_only) else options

    def is_formed(self, name: str, options: Options) -> bool:
        """Whether a call forms a result over all steps that it forms."""
        return not options.last_only or name not in self.names

    def is_of_last_step(self, name: str, options: Options) -> bool:
        """Whether a call gives a result (B, ...), as each row's last step shows it."""
        return bool(options.last_only) and name in self.stateless

    def refuse(self, given: Iterable[str], options: Options) -> None:
        """Raise ArgumentError where ``out`` has a result that a call does not form."""
        unformed = self.names & set(given) if options.last_only else ()
        if unformed:
            raise ArgumentError(
                f"{self._where}: out has {', '.join(sorted(unformed))}, expected final states "
                f"alone, since last_only forms no outputs over time; leave it out"
            )
