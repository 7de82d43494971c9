"""Learn a text in PyTorch: in the script of a layer of ``torch.nn`` only the import changes.

Data: the licence that comes with Python. Three models learn its next characters for 200 updates,
each twice, from the same weights on the same characters: once in torch's own terms, once on
cellgen's kernels. The largest difference of the two losses is printed, and the seconds of both.

- ``layer``: an LSTM, of ``torch.nn`` and of ``cellgen.torch``: the model is one function of the
  class, and nothing else differs;
- ``own``: a minimal gated unit, declared in five lines, and as a loop of torch's functions;
- ``penalty``: a GRU whose loss has the norm of its gradient by the input in it, as critics of
  generative networks have. It needs second derivatives, which cuDNN's layers do not have; torch's
  side is a loop.

    python examples/torch_text.py
    python examples/torch_text.py --model penalty --updates 20
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

try:
    import torch
    from torch import Tensor

    import cellgen.torch
    from cellgen import Bias, Cell, H, I, Input, State, Weight, sigmoid, tanh
except ImportError as missing:
    needed = "pip install 'cellgen-compiler[torch]'"
    print(f"examples/torch_text.py: {missing}; {needed}", file=sys.stderr)
    raise SystemExit(2) from None

from characters import licence

STEPS, ROWS, WIDTH = 16, 8, 32
CLOSE = 1e-6
"""By how much losses in float64 may differ: rounding of 1e-16, which updates let grow."""


class MGU(Cell, name="mgu_of_the_example"):
    """Minimal gated unit (Zhou, Wu, Zhang & Zhou 2016, arXiv:1603.09420), one matrix a gate."""

    x, h_prev = Input(I), State(H)
    w_f, u_f, b_f = Weight(I, H), Weight(H, H), Bias(H)
    w_c, u_c, b_c = Weight(I, H), Weight(H, H), Bias(H)

    f = sigmoid(x @ w_f + h_prev @ u_f + b_f)
    c = tanh(x @ w_c + (f * h_prev) @ u_c + b_c)
    h = (1 - f) * h_prev + f * c


class MGULoop(torch.nn.Module):
    """The same unit as a loop of torch's functions, with the parameters of a layer of cellgen."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        for name, value in layer.state_dict().items():
            self.register_parameter(name, torch.nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, over_time = x.new_zeros(x.shape[1], WIDTH), []
        for now in x:
            f = torch.sigmoid(now @ self.w_f + h @ self.u_f + self.b_f)
            c = torch.tanh(now @ self.w_c + (f * h) @ self.u_c + self.b_c)
            h = (1 - f) * h + f * c
            over_time.append(h)
        return torch.stack(over_time), h


class GRULoop(torch.nn.Module):
    """``torch.nn.GRU`` as a loop of torch's functions, with its parameters."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        for name, value in layer.state_dict().items():
            self.register_parameter(name, torch.nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, over_time = x.new_zeros(x.shape[1], WIDTH), []
        for now in x:
            r_x, z_x, n_x = (now @ self.weight_ih_l0.T + self.bias_ih_l0).chunk(3, 1)
            r_h, z_h, n_h = (h @ self.weight_hh_l0.T + self.bias_hh_l0).chunk(3, 1)
            r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
            h = (1 - z) * torch.tanh(n_x + r * n_h) + z * h
            over_time.append(h)
        return torch.stack(over_time), h


class Reader(torch.nn.Module):
    """Embed characters, read them with a layer, tell the next one."""

    def __init__(self, letters: int, layer: torch.nn.Module) -> None:
        super().__init__()
        self.embed, self.layer = torch.nn.Embedding(letters, WIDTH), layer
        self.tell = torch.nn.Linear(WIDTH, letters)

    def loss(self, characters: Tensor, penalty: float) -> Tensor:
        x = self.embed(characters[:-1])
        guesses = self.tell(self.layer(x)[0])
        loss = torch.nn.functional.cross_entropy(guesses.flatten(0, 1), characters[1:].flatten())
        if penalty:
            (slope,) = torch.autograd.grad(guesses.logsumexp(-1).sum(), x, create_graph=True)
            loss = loss + penalty * (slope.flatten(2).norm(dim=2) - 1).pow(2).mean()
        return loss


def layers(model: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """torch's layer and cellgen's, with equal parameters."""
    if model == "own":
        mine = cellgen.torch.module(MGU, WIDTH, WIDTH)
        return MGULoop(mine), mine
    if model == "penalty":
        mine = cellgen.torch.GRU(WIDTH, WIDTH)
        return GRULoop(mine), mine
    peer, mine = torch.nn.LSTM(WIDTH, WIDTH), cellgen.torch.LSTM(WIDTH, WIDTH)
    mine.load_state_dict(peer.state_dict())
    return peer, mine


def stretches(text: Tensor, updates: int) -> Iterator[Tensor]:
    """Rows of characters (T + 1, B) from places that a seed draws."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(updates):
        first = torch.randint(len(text) - STEPS - 1, (ROWS,), generator=draw)
        yield text[first + torch.arange(STEPS + 1)[:, None]]


def train(layer: torch.nn.Module, text: Tensor, updates: int, penalty: float) -> list[float]:
    """Return the loss of every update."""
    torch.manual_seed(1)
    model = Reader(int(text.max()) + 1, layer).double()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for characters in stretches(text, updates):
        optimizer.zero_grad()
        loss = model.loss(characters, penalty)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def timed(run: Callable[[], list[float]]) -> tuple[list[float], float]:
    """Return what a run gives, and its seconds."""
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def compare(model: str, updates: int) -> bool:
    """Train both, print a line, and tell whether their losses agree."""
    letters = licence()
    order = {letter: place for place, letter in enumerate(sorted(set(letters)))}
    text = torch.tensor([order[letter] for letter in letters])
    penalty = 0.01 if model == "penalty" else 0.0
    torch.manual_seed(0)
    peer, mine = layers(model)
    train(mine, text, 1, penalty)  # compiles what it needs
    torch.manual_seed(0)
    peer, mine = layers(model)
    wanted, theirs = timed(lambda: train(peer, text, updates, penalty))
    found, ours = timed(lambda: train(mine, text, updates, penalty))
    apart = max(abs(one - two) for one, two in zip(wanted, found, strict=True))
    print(
        f"{model:8s} {updates} updates: loss {found[0]:.3f} to {found[-1]:.3f}, largest difference "
        f"from torch's {apart:.0e}; torch {theirs:.1f} s, cellgen {ours:.1f} s"
    )
    return apart < CLOSE


def main() -> int:
    """Return 0 if every pair of losses agrees."""
    parser = argparse.ArgumentParser(description="Learn a text in PyTorch, on cellgen's kernels.")
    parser.add_argument("--model", choices=["layer", "own", "penalty"], help="all if left out")
    parser.add_argument("--updates", type=int, default=200)
    options = parser.parse_args()
    models = [options.model] if options.model else ["layer", "own", "penalty"]
    agree = [compare(model, options.updates) for model in models]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    raise SystemExit(main())
