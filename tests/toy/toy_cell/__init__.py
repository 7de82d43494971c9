"""toy_cell, written by hand in the form of a generated cell; its equations are in toy_cell.h."""

from pathlib import Path

from cellgen.runtime.abi import Argument, Function, Interface
from cellgen.runtime.kernel import Kernel

interface = Interface(
    name="toy_cell",
    digest="0123456789ab",
    functions=(
        Function(
            name="forward",
            dims=("B", "I", "H"),
            arguments=(
                Argument("x", ("B", "I"), "input"),
                Argument("h_prev", ("B", "H"), "previous state"),
                Argument("w", ("I", "H"), "input weights"),
                Argument("b", ("2*H",), "bias and decay"),
                Argument("alpha", (), "scale of the input", default=1.0),
            ),
            results=(Argument("h", ("B", "H"), "state"), Argument("s", ("B", "H"), "sum")),
            workspace=True,
            text="Run one step.",
        ),
        Function(
            name="backward",
            dims=("B", "I", "H"),
            arguments=(
                Argument("x", ("B", "I"), "input", used=False),
                Argument("h_prev", ("B", "H"), "previous state", used=False),
                Argument("w", ("I", "H"), "input weights"),
                Argument("b", ("2*H",), "bias and decay"),
                Argument("s", ("B", "H"), "sum, as forward returned it", used=False),
                Argument("alpha", (), "scale of the input", default=1.0),
                Argument("d_h", ("B", "H"), "gradient of h", optional=True),
                Argument("d_s", ("B", "H"), "gradient of s", optional=True),
            ),
            results=(
                Argument("d_x", ("B", "I"), "gradient of x"),
                Argument("d_h_prev", ("B", "H"), "gradient of h_prev"),
            ),
            workspace=True,
            text="Differentiate one step.",
        ),
        Function(
            name="weight_gradients",
            dims=("B", "I", "H"),
            arguments=(
                Argument("x", ("B", "I"), "input"),
                Argument("d_s", ("B", "H"), "gradient of s"),
            ),
            results=(Argument("d_w", ("I", "H"), "gradient of w"),),
            workspace=False,
        ),
    ),
)
kernel = Kernel(interface, Path(__file__).parent)
kernel.build()
forward = kernel.forward
backward = kernel.backward
weight_gradients = kernel.weight_gradients
