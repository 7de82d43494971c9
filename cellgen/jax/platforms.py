"""What there is for arrays of each platform of XLA: a target of its FFI, and how arrays go there.

``PLATFORMS`` is the table that lowerings ask; a new platform is a row. One jitted function has a
program for each platform, and runs where its arrays lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from cellgen.frameworks.on_devices import LACKING, lacking
from cellgen.jax.errors import ArrayError
from cellgen.runtime.call.stored import STORED
from cellgen.runtime.options import Options

TARGET = "cellgen_call"
"""The target of every call in a program of XLA, which ``jax.export`` wants to be allowed."""


def dtype_of_numbers(dtype: Any) -> Any:
    """The type of scalars that do not learn: 16 bits would round them."""
    return jnp.dtype("float32") if dtype.name in STORED else dtype


@dataclass(frozen=True)
class Platform:
    """A platform: the target of calls there; here that of CPUs, which take every option."""

    target: str = TARGET
    is_device: bool = False

    def operand(self, name: str, array: Any, like: Any) -> Any:
        """An operand as the kernel reads it; ``like`` is one that has steps."""
        return array

    def result_type(self, dtype: Any, like: Any) -> Any:
        """The type in which the kernel forms a result."""
        return dtype

    def attributes(self, label: str, options: Options, like: Any) -> dict[str, Any]:
        """What a call says beside its options. Raises ArrayError for those it does not have."""
        return {}


@dataclass(frozen=True)
class CudaPlatform(Platform):
    """Devices of CUDA: all arrays are of one type, scalars of that of its arithmetic.

    What has 16 bits here has them there, of whichever type it is. ``emulated``: on the CPU, to
    prove what a device computes.
    """

    is_device: bool = True
    emulated: bool = False

    def operand(self, name: str, array: Any, like: Any) -> Any:
        """An operand as the kernel reads it; ``like`` is one that has steps."""
        if name == "lengths":
            with jax.enable_x64(True):
                return jax.lax.convert_element_type(array, jnp.int64)
        if name in ("mask", "reset"):
            return array
        own = (
            dtype_of_numbers(like.dtype) if not array.ndim else self.result_type(array.dtype, like)
        )
        return array.astype(own)

    def result_type(self, dtype: Any, like: Any) -> Any:
        """The type in which the kernel forms a result."""
        return dtype if dtype.itemsize == like.dtype.itemsize else like.dtype

    def attributes(self, label: str, options: Options, like: Any) -> dict[str, Any]:
        """What a call says beside its options. Raises ArrayError for those it does not have."""
        name = lacking(options)
        if name:
            raise ArrayError(
                f"{label}: {name} is given, and arrays are on a device of CUDA, {LACKING[name]}; "
                f"leave it out"
            )
        return {"element": like.dtype.name}


PLATFORMS: dict[str, Platform] = {"cpu": Platform(), "cuda": CudaPlatform()}
"""By JAX's name of the platform. Tests put the emulation in the place of the CPU."""


def is_emulated() -> bool:
    """Whether the emulation is in the place of the CPU."""
    return getattr(PLATFORMS["cpu"], "emulated", False)
