"""Make the stream of one kernel, or of layers of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cellgen import accept
from cellgen.errors import ArgumentError
from cellgen.runtime.call.owner import Owner
from cellgen.runtime.streams.part import FORWARD, StreamedArray, StreamedLayer
from cellgen.runtime.streams.rows import Id, checked_ids, checked_sizes
from cellgen.runtime.streams.stream import Stream


def stream_of(
    kernel: Owner,
    weights: Mapping[str, object],
    rows: int | Iterable[Id],
    room: int | None,
    block: int,
    *,
    output: str,
    products: str | None,
    sizes: Mapping[str, object],
) -> Stream:
    """Return the stream of one layer; ``Kernel.stream`` documents it."""
    label = f"{kernel.name}.stream"
    function = next((one for one in kernel.interface.functions if one.name == FORWARD), None)
    if function is None:
        raise ArgumentError(
            f"{label}: this cell has no {FORWARD}, expected one; `cellgen explain` says why not"
        )
    outputs = [item.name for item in function.results if item.over_time]
    chosen = outputs[0] if not output else accept.choice(label, "output", output, outputs)
    return stack_of(
        label,
        kernel,
        [accept.names(label, "weights", weights, "arrays")],
        rows,
        room,
        block,
        names=("", chosen),
        products=products,
        sizes=sizes,
    )


def stack_of(
    label: str,
    kernel: Owner,
    weights: Sequence[Mapping[str, object]],
    rows: int | Iterable[Id],
    room: int | None,
    block: int,
    *,
    names: tuple[str, str],
    products: str | None,
    sizes: Mapping[str, object],
) -> Stream:
    """Return the stream of layers, each reading what the one below gives.

    ``names`` are the input by which a layer reads that, and the output that it gives.
    """
    ids = checked_ids(label, rows)
    most = checked_sizes(label, ids, room, block)
    reads, output = names
    layers: list[StreamedLayer] = []
    for number, own in enumerate(weights):
        shared: dict[str, StreamedArray] = {}
        if layers:
            shared = {array.name: array for array in layers[0].inputs}
            shared[reads] = layers[-1].output
        place = label if len(weights) == 1 else f"{label}, layer {number}"
        layers.append(
            StreamedLayer(
                place, kernel, own, most, sizes, output=output, products=products, shared=shared
            )
        )
    return Stream(label, layers, most, ids)
