"""Models that are broken in one to three places, wherever a model may be.

A mutant is made of a model and a number: fields are cleared, doubled, swapped, or hold what another
field of that type holds, or numbers at the ends of their ranges.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from onnx import ModelProto

NUMBERS = (0, 1, -1, 2, 3, 7, 99, 2**31 - 1, -(2**31))
WIDE = (2**40, -(2**40), 2**62, -(2**63))
REALS = (0.0, -1.0, 1e39, float("nan"), float("inf"))
TEXTS = ("", "a\0b", "LSTM", "GRU", "Scan", "Loop", "If", "Identity", "Cast", "Constant", "x" * 300)
LARGE = ("raw_data", "doc_string", "metadata_props")
"""Fields that hold much and say little."""


def places(message: Message) -> Iterator[tuple[Message, Field, int]]:
    """Every field that is set, within others too; -1 for one that is not repeated."""
    for field, value in message.ListFields():
        if field.name in LARGE:
            continue
        single = isinstance(value, Message | str | bytes | int | float)
        for place, entry in enumerate([value] if single else value):
            yield message, field, -1 if single else place
            if isinstance(entry, Message):
                yield from places(entry)


def mutant(model: ModelProto, seed: int) -> ModelProto:
    """Break a copy of a model."""
    rng = np.random.default_rng(seed)
    broken = ModelProto()
    broken.CopyFrom(model)
    for _ in range(int(rng.integers(1, 4))):
        every = list(places(broken))
        if not every:
            break
        by_name: dict[str, list] = {}
        for entry in every:
            by_name.setdefault(f"{entry[0].DESCRIPTOR.name}.{entry[1].name}", []).append(entry)
        kind = list(by_name)[int(rng.integers(len(by_name)))]
        alike = by_name[kind]
        change(rng, *(alike[int(rng.integers(len(alike)))] for _ in range(2)))
    return broken


def change(rng, at, other) -> None:
    """Change one field; ``other`` is one of the same kind."""
    message, field, place = at
    way = int(rng.integers(4))
    if way == 0:
        message.ClearField(field.name) if place < 0 else getattr(message, field.name).pop(place)
    elif field.message_type is not None:
        exchange(message, field, place, other, way)
    else:
        value = drawn(rng, field, value_at(*other))
        try:
            if place < 0:
                setattr(message, field.name, value)
            elif way == 1:
                getattr(message, field.name).append(value)
            else:
                getattr(message, field.name)[place] = value
        except (ValueError, TypeError):  # a number that this field cannot hold
            message.ClearField(field.name)


def value_at(message: Message, field: Field, place: int):
    value = getattr(message, field.name)
    return value if place < 0 else value[place]


def exchange(message: Message, field: Field, place: int, other, way: int) -> None:
    """Let a message be a copy of another one, or stand twice."""
    copied = type(value_at(*other))()
    copied.CopyFrom(value_at(*other))
    if place >= 0 and way == 1:
        getattr(message, field.name).add().CopyFrom(copied)
    elif place >= 0 and way == 2:
        entries = list(getattr(message, field.name))
        message.ClearField(field.name)
        for entry in (*entries[:place], *entries[place + 1 :], entries[place]):
            getattr(message, field.name).add().CopyFrom(entry)
    else:
        value_at(message, field, place).CopyFrom(copied)


def drawn(rng, field: Field, other):
    """Another value of a field's type; that of a field alike in half of the cases."""
    if rng.integers(2):
        return other
    choices = {
        Field.CPPTYPE_INT32: NUMBERS,
        Field.CPPTYPE_INT64: NUMBERS + WIDE,
        Field.CPPTYPE_UINT64: NUMBERS + WIDE,
        Field.CPPTYPE_ENUM: tuple(range(25)),
        Field.CPPTYPE_FLOAT: REALS,
        Field.CPPTYPE_DOUBLE: REALS,
    }
    texts = TEXTS if field.type == Field.TYPE_STRING else tuple(t.encode() for t in TEXTS)
    options = choices.get(field.cpp_type, texts)
    return options[int(rng.integers(len(options)))]
