"""A decoder that attends, learns in PyTorch and reads back what it wrote: one cell, one kernel.

Data: rows of symbols that a seed draws; the model writes each row backwards. An encoder, a
bidirectional GRU, reads a row; the decoder is a cell of one's own: at each step it reads a symbol,
attends over the encoder's outputs (statics over time, with gradients), and writes a symbol, which
is a state, so that the next step can read it. ``truth`` says at each step whether it reads the true
symbol (teacher forcing) or its own. A symbol is a row of zeros and a one: ``hardmax`` of scores,
with a gradient that goes straight through; with Gumbel noise it is a sample of their softmax.

The same decoder is a loop of torch's functions; losses of both are printed.

    python examples/torch_decoder.py
    python examples/torch_decoder.py --updates 20 --dtype float64
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

try:
    import numpy as np
    import torch
    from torch import Tensor
    from torch.nn.functional import cross_entropy, one_hot

    import cellgen.torch
    from cellgen import (
        Bias,
        Cell,
        Dim,
        H,
        Input,
        State,
        Static,
        Weight,
        concat,
        hardmax,
        sigmoid,
        softmax,
        stop_gradient,
        tanh,
    )
except ImportError as missing:
    needed = "pip install 'cellgen-compiler[torch]'"
    print(f"examples/torch_decoder.py: {missing}; {needed}", file=sys.stderr)
    raise SystemExit(2) from None

SYMBOLS, LENGTH, ROWS, WIDTH = 8, 6, 32, 32
START = SYMBOLS
"""The symbol before the first."""
TRUTH = 0.7
"""Share of the steps of training that read the true symbol."""
CLOSE = 1e-6
"""By how much losses in float64 may differ: rounding of 1e-16, which updates let grow."""
Decode = Callable[..., tuple[Tensor, Tensor]]

V, M, S = Dim("V"), Dim("M"), Dim("S")


class Decoder(Cell, name="attention_decoder"):
    """A minimal gated unit with dot-product attention (Luong, Pham & Manning 2015,
    arXiv:1508.04025, equations 7 and 8), which reads ``x`` where ``truth`` is 1, elsewhere its own
    last symbol."""

    x, truth, noise = Input(V), Input(1, gradient=False), Input(V, gradient=False)
    h_prev, y_prev = State(H), State(V)
    keys, values = Static(H, S, gradient=True), Static(S, M, gradient=True)
    w_f, u_f, b_f = Weight(V, H), Weight(H, H), Bias(H)
    w_c, u_c, b_c = Weight(V, H), Weight(H, H), Bias(H)
    w_s, b_s = Weight(H + M, V), Bias(V)

    symbol = truth * x + (1 - truth) * y_prev
    f = sigmoid(symbol @ w_f + h_prev @ u_f + b_f)
    c = tanh(symbol @ w_c + (f * h_prev) @ u_c + b_c)
    h = (1 - f) * h_prev + f * c
    scores = concat(h, softmax(h @ keys) @ values) @ w_s + b_s
    p = softmax(scores)
    y = p + stop_gradient(hardmax(scores + noise) - p)

    outputs = h, y, scores


def kernel(**tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and symbols (T, B, V) by cellgen."""
    found = cellgen.torch.function(Decoder)(**tensors)
    return found.scores, found.y


def loop(
    *, x: Tensor, truth: Tensor, noise: Tensor, h_prev: Tensor, y_prev: Tensor, keys: Tensor,
    values: Tensor, w_f: Tensor, u_f: Tensor, b_f: Tensor, w_c: Tensor, u_c: Tensor, b_c: Tensor,
    w_s: Tensor, b_s: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same as a loop of torch's functions."""
    h, y, over_time = h_prev, y_prev, []
    for given, forced, drawn in zip(x, truth, noise, strict=True):
        symbol = forced * given + (1 - forced) * y
        f = torch.sigmoid(symbol @ w_f + h @ u_f + b_f)
        c = torch.tanh(symbol @ w_c + (f * h) @ u_c + b_c)
        h = (1 - f) * h + f * c
        share = torch.softmax(torch.einsum("bh,bhs->bs", h, keys), -1)
        seen = torch.einsum("bs,bsm->bm", share, values)
        scores = torch.cat([h, seen], -1) @ w_s + b_s
        p = torch.softmax(scores, -1)
        y = p + (one_hot((scores + drawn).argmax(-1), p.shape[-1]) - p).detach()
        over_time.append((scores, y))
    all_scores, all_symbols = zip(*over_time, strict=True)
    return torch.stack(all_scores), torch.stack(all_symbols)


class Model(torch.nn.Module):
    """Rows of symbols in, scores and symbols of the rows that the decoder writes out."""

    def __init__(self, decode: Decode) -> None:
        super().__init__()
        self.decode = decode
        self.embed = torch.nn.Embedding(SYMBOLS, WIDTH)
        self.encode = cellgen.torch.GRU(WIDTH, WIDTH, bidirectional=True)
        self.keys, self.first = torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        draw = np.random.default_rng(0)
        weights = cellgen.compile(Decoder).init(draw, V=SYMBOLS + 1, H=WIDTH, M=2 * WIDTH)
        self.weights = torch.nn.ParameterDict({n: torch.from_numpy(w) for n, w in weights.items()})

    def forward(
        self, rows: Tensor, wanted: Tensor, truth: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores and symbols (T, B, V) of rows and what is wanted of each, (T, B)."""
        seen, last = self.encode(self.embed(rows))
        h = torch.tanh(self.first(last[-1]))
        before = torch.cat([torch.full_like(wanted[:1], START), wanted[:-1]])
        x = one_hot(before, SYMBOLS + 1).to(h.dtype)
        return self.decode(
            x=x, truth=truth, noise=noise, h_prev=h, y_prev=torch.zeros_like(x[0]),
            keys=self.keys(seen).permute(1, 2, 0), values=seen.transpose(0, 1), **self.weights,
        )  # fmt: skip


def train(decode: Decode, updates: int, dtype: torch.dtype) -> tuple[Model, list[float]]:
    """A model that has learnt, and the loss of every update."""
    torch.manual_seed(0)
    model = Model(decode).to(dtype)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    draw = torch.Generator().manual_seed(1)
    for _ in range(updates):
        rows = torch.randint(SYMBOLS, (LENGTH, ROWS), generator=draw)
        truth = (torch.rand(LENGTH, ROWS, 1, generator=draw) < TRUTH).to(dtype)
        truth[0] = 1
        uniform = torch.rand(LENGTH, ROWS, SYMBOLS + 1, generator=draw, dtype=torch.float64)
        scores, _ = model(rows, rows.flip(0), truth, -torch.log(-torch.log(uniform)).to(dtype))
        loss = cross_entropy(scores.flatten(0, 1), rows.flip(0).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def share_right(model: Model, dtype: torch.dtype) -> float:
    """Of new rows, the share of symbols that are right where the decoder reads its own alone."""
    rows = torch.randint(SYMBOLS, (LENGTH, 256), generator=torch.Generator().manual_seed(2))
    truth = torch.zeros(LENGTH, 256, 1, dtype=dtype)
    truth[0] = 1
    noise = torch.zeros(LENGTH, 256, SYMBOLS + 1, dtype=dtype)
    _, symbols = model(rows, torch.full_like(rows, START), truth, noise)
    return (symbols.argmax(-1) == rows.flip(0)).double().mean().item()


def main() -> int:
    """Return 0 if the losses agree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model, losses = train(kernel, options.updates, dtype)
    apart = [
        abs(a - b) for a, b in zip(losses, train(loop, options.updates, dtype)[1], strict=True)
    ]
    right = 100 * share_right(model, dtype)
    print(
        f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, {right:.1f} % of new symbols right; losses of "
        f"the loop differ by {apart[0]:.0e} at first, at most {max(apart):.0e}"
    )
    return 0 if options.dtype == "float32" or max(apart[:20]) < CLOSE else 1


if __name__ == "__main__":
    raise SystemExit(main())
