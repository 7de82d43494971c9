"""Which gradients of a call its caller wants.

Input: the option ``gradients`` and the results of a function. Output: names that are left out.
"""

from __future__ import annotations

from collections.abc import Collection

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.abi import Function


class Wanted:
    """The results of one function, and which of them need not be formed where nobody wants them."""

    def __init__(self, label: str, function: Function) -> None:
        self._label = label
        self._names = tuple(item.name for item in function.results)
        self._has_gradients = any(item.role == "gradient" for item in function.results)
        self.on_request = frozenset(item.name for item in function.results if item.optional)

    def left_out(self, gradients: object) -> frozenset[str]:
        """The results that are not named; none where nothing is said.

        Raises ArgumentError for what is no collection of names of results.
        """
        if gradients is None:
            return frozenset()
        names = gradients if isinstance(gradients, tuple | list | set | frozenset) else None
        if names is None or not all(isinstance(n, str) and n in self._names for n in names):
            raise ArgumentError(
                f"{self._label}: gradients is {accept.quoted(gradients)}, expected a tuple of some "
                f"of {', '.join(self._names)}; name the results that are wanted"
            )
        return frozenset(self._names) - set(names)

    def unformed(self, gradients: object) -> frozenset[str]:
        """Those among the results left out from which nothing else follows."""
        return self.left_out(gradients) & self.on_request

    def refuse_all(self, gradients: object) -> None:
        """Raise ArgumentError where there are gradients, and none that can be left out."""
        if self._has_gradients:
            raise ArgumentError(
                f"{self._label}: gradients is {accept.quoted(gradients)}, expected nothing: it "
                f"names the results that are wanted, and this function always forms all of "
                f"{', '.join(self._names)}; leave gradients out"
            )

    def refuse(self, names: Collection[str], gradients: object) -> None:
        """Raise ArgumentError where ``out`` has a result that is left out."""
        unwanted = sorted(self.left_out(gradients) & set(names))
        if unwanted:
            them = "it" if len(unwanted) == 1 else "them"
            raise ArgumentError(
                f"{self._label}: out has {', '.join(unwanted)}, expected gradients that are "
                f"wanted; name {them} in gradients, or leave {them} out"
            )
