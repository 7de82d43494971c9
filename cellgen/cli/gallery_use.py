"""Write code that uses a cell: in NumPy, PyTorch and JAX.

Input: a ``Definition``. Output: Markdown. The three go on in one another's names, and run as they
stand.
"""

from __future__ import annotations

from cellgen.language.cell import Definition
from cellgen.language.value import Role

SIZES = {"I": 28, "H": 64, "N": 4, "D": 16, "K": 16, "M": 32, "P": 32, "R": 8}
"""Of dimensions by name; another one has ``ELSE``."""
ELSE = 16
INITIAL = {
    "gru_d": '{"x_mean": lambda rng, shape: np.zeros(shape)}',
    "lmu": '{"a": lambda rng, shape: -np.eye(*shape), "b": lambda rng, shape: np.ones(shape)}',
}
"""Numbers of an author's own: of what does not learn."""


def use(definition: Definition) -> str:
    """A section of a page: a run forward and back by each way to call the cell."""
    parts = (
        ("NumPy", _numpy(definition)),
        ("PyTorch", _torch(definition)),
        ("JAX", _jax(definition)),
    )
    blocks = [f"**{name}**\n\n```python\n{code}\n```" for name, code in parts]
    return "\n\n".join(["## Use", *blocks])


def _inputs(definition: Definition) -> list[str]:
    return [str(v.name) for role in (Role.INPUT, Role.STATIC) for v in definition.with_role(role)]


def _numpy(definition: Definition) -> str:
    name, first = definition.name, definition.outputs[0].name
    own = [str(dim) for dim in definition.dims if str(dim) != "B"]
    dims = ", ".join(f"{dim}={SIZES.get(dim, ELSE)}" for dim in own)
    initial = f", initial={INITIAL[name]}" if name in INITIAL else ""
    names = "".join(f'"{item}", ' for item in _inputs(definition)).rstrip(" ")
    return "\n".join(
        (
            "import cellgen",
            "import numpy as np",
            "",
            f'kernel, rng = cellgen.load("{name}"), np.random.default_rng(0)',
            f"sizes = dict(B=8, {dims})",
            f"start = kernel.init(rng, **sizes{initial})  # weights and states",
            "shapes = kernel.shapes(T=20, **sizes)",
            f"x = {{n: rng.random(shapes[n], np.float32) for n in ({names})}}",
            "y = kernel.sequence_forward(**start, **x, save=True)",
            f"print(y.{first}.shape)  # over time, rows of the batch, units",
        )
    )


def _torch(definition: Definition) -> str:
    first = definition.outputs[0].name
    layer = ""
    plain = {str(dim) for dim in definition.dims} == {"B", "I", "H"}
    if plain and _inputs(definition) == ["x"] and definition.name not in INITIAL:
        layer = (
            f'\n\nlayer = cellgen.torch.module("{definition.name}", 28, 64)  # a torch.nn.Module\n'
            "output, state = layer(torch.randn(20, 8, 28))  # (T, B, I)"
        )
    return (
        "import cellgen.torch\n"
        "import torch\n"
        "\n"
        "tensors = {n: torch.from_numpy(a).requires_grad_() for n, a in (start | x).items()}\n"
        f'cellgen.torch.function("{definition.name}")(**tensors).{first}.sum().backward()'
        f"{layer}"
    )


def _jax(definition: Definition) -> str:
    first = definition.outputs[0].name
    data = 'x["x"]' if _inputs(definition) == ["x"] else "x"
    return (
        "import cellgen.jax\n"
        "import jax\n"
        "\n"
        f'f = cellgen.jax.function("{definition.name}")\n'
        "params = {n: a for n, a in start.items() if n in f.params}\n"
        f"loss = lambda params: f(params, {data}).{first}.sum()\n"
        "gradients = jax.jit(jax.grad(loss))(params)"
    )
