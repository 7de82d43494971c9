"""A small language model whose layers run in chunks in training, and step by step in generation.

Data: the licence that comes with Python. The model is a GLA layer and a layer of the gated delta
rule, each with a residual; both run with ``form="chunk"``: whole chunks of steps as products,
derived from the equations of one step. ``--form step`` trains the same model step by step: the
losses are the same numbers but for rounding. Then a prompt is read in chunks, and characters are
generated one by one from the states that it left.

    python examples/torch_generation.py
    python examples/torch_generation.py --form step --updates 20 --dtype float64
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

try:
    import torch
    from torch import Tensor

    import cellgen.torch
except ImportError as missing:
    needed = "pip install 'cellgen-compiler[torch]'"
    print(f"examples/torch_generation.py: {missing}; {needed}", file=sys.stderr)
    raise SystemExit(2) from None

from characters import licence

STEPS, ROWS, WIDTH, HEADS = 48, 4, 32, 2
CHUNK = 32
States = list[Tensor | None]


class Model(torch.nn.Module):
    """Characters in, scores of the next ones out; two layers with matrices for memories."""

    def __init__(self, characters: int, form: str) -> None:
        super().__init__()
        inner = WIDTH // HEADS
        sizes = {"N": HEADS, "K": inner, "D": inner, "form": form, "chunk": CHUNK}
        self.embedding = torch.nn.Embedding(characters, WIDTH)
        self.layers = torch.nn.ModuleList(
            cellgen.torch.module(name, WIDTH, WIDTH, **sizes) for name in ("gla", "gated_delta_net")
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in self.layers)
        self.scores = torch.nn.Linear(WIDTH, characters)

    def forward(
        self, text: Tensor, states: States | None = None, form: str | None = None
    ) -> tuple[Tensor, States]:
        """Scores (T, B, characters) of text (T, B), and the states behind it."""
        x, last = self.embedding(text), []
        for n, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            output, state = layer(norm(x), None if states is None else states[n], form=form)
            x = x + torch.nn.functional.layer_norm(output, output.shape[-1:])
            last.append(state)
        return self.scores(x), last


def batches(text: Tensor, updates: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Characters (T, B) and those that follow."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        starts = torch.randint(len(text) - STEPS - 1, (ROWS,), generator=generator)
        rows = torch.stack([text[s : s + STEPS + 1] for s in starts.tolist()], 1)
        yield rows[:-1], rows[1:]


def train(model: Model, text: Tensor, updates: int) -> list[float]:
    """Losses, update by update."""
    optimiser, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for given, following in batches(text, updates):
        scores, _ = model(given)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def generate(model: Model, prompt: Tensor, count: int) -> Tensor:
    """The likeliest characters behind a prompt (T,): it runs in chunks, then each in one step."""
    scores, states = model(prompt[:, None])
    characters = [scores[-1].argmax(-1)]
    for _ in range(count - 1):
        scores, states = model(characters[-1][None], states, form="step")
        characters.append(scores[-1].argmax(-1))
    return torch.cat(characters)


def main() -> None:
    """Train, then generate."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--form", choices=("chunk", "step"), default="chunk")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--prompt", default="PYTHON SOFTWARE FOUNDATION LICENSE ")
    parser.add_argument("--characters", type=int, default=80)
    given = parser.parse_args()
    torch.manual_seed(0)
    letters = licence()
    alphabet = sorted(set(letters))
    text = torch.tensor([alphabet.index(letter) for letter in letters])
    model = Model(len(alphabet), given.form).to(getattr(torch, given.dtype))
    losses = train(model, text, given.updates)
    print(f"form {given.form}, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    unknown = sorted(set(given.prompt) - set(alphabet))
    if unknown or not given.prompt:
        raise SystemExit(
            f"--prompt is {given.prompt!r}, expected characters of {''.join(alphabet)!r}"
        )
    prompt = torch.tensor([alphabet.index(letter) for letter in given.prompt])
    made = generate(model, prompt, given.characters)
    print(given.prompt + "".join(alphabet[n] for n in made.tolist()))


if __name__ == "__main__":
    main()
