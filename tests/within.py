"""What the package keeps to itself and tests look at: the one place that knows these names."""

from __future__ import annotations

from typing import Any

from cellgen.runtime import kernel


def door_of(function: Any) -> Any:
    """What makes the calls of a function in C."""
    return function._door


def set_door(function: Any, door: Any) -> None:
    """Let something else make the calls of a function."""
    function._door = door


def kernel_behind(function: Any) -> Any:
    """The kernel that a function is of, or that a stack has."""
    return function._kernel


def engine_of(function: Any) -> Any:
    """What binds the calls of a function."""
    return function._engine


def lock_of(owner: Any) -> Any:
    """What a bound call holds while it runs, a kernel while it is built."""
    return owner._lock


def workspace_of(bound: Any) -> Any:
    """The memory that a bound call has of its thread's."""
    return bound._memory


def set_library(owner: Any, library: Any) -> None:
    """Let a kernel run what was compiled elsewhere."""
    owner._library = library


def turn_of(stream: Any) -> Any:
    """What lets one call at a time use a stream."""
    return stream._turn


def lose_token(stream: Any) -> None:
    """Take the token of a stream's turn away, as Ctrl-C does within a call."""
    turn_of(stream)._token.clear()


def has_token(stream: Any) -> bool:
    """Whether a stream's turn has its token."""
    return bool(turn_of(stream)._token)


def stack_of(layer: Any) -> Any:
    """What a layer of torch has planned of its calls."""
    return layer._stack


def forget_arrivals() -> None:
    """Let kernels that arrive be made anew."""
    kernel._arrived.cache_clear()
