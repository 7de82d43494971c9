"""The operators in C and in Python: the same numbers, the same words, nothing left behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import cellgen.torch  # noqa: E402
from cellgen.errors import ArgumentError  # noqa: E402
from cellgen.frameworks.selection import ON_TENSORS  # noqa: E402
from cellgen.runtime.numbers import as_numbers  # noqa: E402
from cellgen.torch import operators, schemas  # noqa: E402
from cellgen.torch.derivatives import Call  # noqa: E402
from cellgen.torch.functional import CellFunction  # noqa: E402
from cellgen.torch.registry import find  # noqa: E402
from tests.awkward_cells import cell_of_states  # noqa: E402
from tests.cover import each_name_of, of_call  # noqa: E402
from tests.torch.drawn import drawn, function  # noqa: E402

FORWARD = getattr(torch.ops.cellgen.forward, schemas.OVERLOAD)
BACKWARD = getattr(torch.ops.cellgen.backward, schemas.OVERLOAD)
NOTHING = as_numbers(ON_TENSORS)
"""What follows the options: products, checkpoint, every, hidden, last."""
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="operators in C are for Linux")
def test_the_operators_are_c() -> None:
    assert operators.is_native


@pytest.mark.parametrize("name", each_name_of(of_call))
def test_operators_give_what_the_kernel_gives_to_the_bit(name: str) -> None:
    cell = function(name)
    for dtype in (torch.float32, torch.float64):
        theta = [*drawn(cell, learns=False, dtype=dtype).values()]
        scalars = [*cell.scalars.values()]
        mask = torch.tensor([[True, False], [True, True], [False, True]])
        tables = [torch.tensor([3, 2]), mask, mask.T.contiguous().T]
        lengths, mask, reset = tables
        steps = replace(ON_TENSORS, lengths=lengths, mask=mask, reset=reset, reverse=True)
        options = (tables, 7, *as_numbers(replace(ON_TENSORS, reverse=True)))
        runner = find(name).runner
        found = FORWARD(name, theta, scalars, True, *options)
        plan = runner.plan_forward(theta, steps, save=True)
        wanted = runner.forward(plan, theta, scalars, steps)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        upstream = [torch.randn_like(found[0])]
        gradients = BACKWARD(name, theta, scalars, found, upstream, 1, -1, *options)
        places = [None] * (len(cell.layout.upstream) - 1)
        plan = runner.plan_backward(theta, steps, -1)
        wanted = runner.backward(plan, theta, scalars, found, [*upstream, *places], steps)
        torch.testing.assert_close(gradients, wanted, rtol=0, atol=0, equal_nan=True)


def test_calls_leave_no_memory_behind() -> None:
    cell = function("gru")
    tensors = drawn(cell, T=20, B=8, H=32, I=32, dtype=torch.float32)

    def train() -> None:
        cell(**tensors).h.sum().backward()
        with pytest.raises(RuntimeError, match="b_n has shape"):
            cell(**{**tensors, "b_n": torch.zeros(4)})

    for _ in range(50):
        train()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):
        train()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 << 10  # KiB; one call's tensors alone are 0.2 MiB


def test_an_unknown_cell_is_named() -> None:
    theta = [*drawn(function("elman"), learns=False).values()]
    with pytest.raises(RuntimeError, match="do not know"):
        FORWARD("no_such_cell", theta, [], False, [], 0, *NOTHING)


def test_other_kept_tensors_are_refused() -> None:
    theta = [*drawn(function("elman"), learns=False).values()]
    kept = FORWARD("elman", theta, [], False, [], 0, *NOTHING)
    with pytest.raises(RuntimeError):
        BACKWARD("elman", theta, [], kept[:1], [kept[0]], 1, -1, [], 0, *NOTHING)


def test_gradients_row_by_row_are_not_differentiated() -> None:
    theta = [*drawn(function("elman")).values()]
    kept = [t.detach() for t in FORWARD("elman", theta, [], True, [], 0, *NOTHING)]
    by_row = as_numbers(replace(ON_TENSORS, per_row=True))
    for options, is_refused in ((NOTHING, False), (by_row, True)):
        found = BACKWARD("elman", theta, [], kept, [kept[0]], 1, -1, [], 0, *options)
        total = sum(gradient.square().sum() for gradient in found)
        refused = pytest.raises(RuntimeError, match=r"run with per_row, .* leave per_row out")
        with refused if is_refused else nullcontext():
            assert torch.autograd.grad(total, theta[0])[0].any()


def test_operators_in_python_where_there_is_no_compiler_for_them() -> None:
    code = (
        "import torch, cellgen.torch\n"
        "from cellgen.torch import operators\n"
        "assert not operators.is_native\n"
        "layer = cellgen.torch.module('elman', 3, 4).double()\n"
        "x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)\n"
        "assert torch.autograd.gradcheck(lambda x: layer(x)[0], (x,), fast_mode=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "CELLGEN_TORCH_OPERATORS": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_call_is_known_by_its_cell_and_options() -> None:
    options = replace(ON_TENSORS, reverse=True)
    one = Call(find("gru"), (), options)
    assert one == Call(find("gru"), (), replace(ON_TENSORS, reverse=True))
    assert one.numbers == (True, *NOTHING[1:])


@pytest.mark.parametrize("mode", ["c", "python"])
def test_gradients_that_nobody_wants_are_not_formed(mode: str) -> None:
    theta = [t.detach() for t in drawn(function("lstm")).values()]
    options = ([], 0, *NOTHING)
    kept = FORWARD("lstm", theta, [], True, *options)
    upstream = [torch.ones_like(kept[0])]
    run = BACKWARD if mode == "c" else operators.backward_in_python
    every = run("lstm", theta, [], kept, upstream, 1, -1, *options)
    some = run("lstm", theta, [], kept, upstream, 1, 0b1001, *options)
    assert len(some) == 2
    assert torch.equal(some[0], every[0])
    assert torch.equal(some[1], every[3])


def test_frozen_weights_and_inputs_get_no_gradients() -> None:
    cell = function("gru")
    for learning in (("x",), ("w_z", "b_n"), ("u_n",)):
        tensors = drawn(cell, learns=False)
        wanted = drawn(cell)
        for name in learning:
            tensors[name].requires_grad_()
        for given in (tensors, wanted):
            cell(**given).h.sin().sum().backward()
        for name, tensor in tensors.items():
            assert (tensor.grad is not None) == (name in learning)
            if tensor.grad is not None:
                assert torch.equal(tensor.grad, wanted[name].grad)


@cache
def drawn_of_states(count: int) -> tuple[CellFunction, dict[str, torch.Tensor]]:
    """A cell of so many states, and tensors for it."""
    cell = cellgen.torch.function(cell_of_states(count))
    sizes = {"T": 3, "B": 2, "H": 4}
    return cell, {a.name: torch.randn([sizes[d] for d in a.shape]) for a in cell.layout.theta}


def test_more_results_than_bits_of_a_number() -> None:
    """Gradients by all results and by two, and of the operator those that are wanted alone."""
    count = 70
    cell, tensors = drawn_of_states(count)
    name, weights = f"b_h{count - 1}", torch.arange(2.0 * count) + 1
    learning = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    by_all = sum(w * h.sum() for w, h in zip(weights, cell(**learning), strict=True))
    by_all.backward()
    learns = tensors[name].clone().requires_grad_()
    results = cell(**{**tensors, name: learns})
    (weights[count - 1] * results[count - 1].sum() + weights[-1] * results[-1].sum()).backward()
    assert torch.equal(learns.grad, learning[name].grad)

    options = ([], 0, *NOTHING)
    theta = [*tensors.values()]
    kept = FORWARD(cell.known.text, theta, [], True, *options)
    of_first = cell.known.text, theta, [], kept, [torch.ones_like(kept[0])], 1
    every = BACKWARD(*of_first, -1, *options)
    assert len(every) == 2 * count + 1
    some = BACKWARD(*of_first, 0b101, *options)
    torch.testing.assert_close(some, [every[0], every[2]], rtol=0, atol=0)


@pytest.mark.parametrize("outputs", [("h3",), ()])
def test_a_part_of_more_results_than_bits_of_a_number(outputs: tuple[str, ...]) -> None:
    cell, tensors = drawn_of_states(40)
    every = cell(**tensors)._asdict()
    formed = {n for n in every if n in outputs or n.endswith("_last")}
    for options in ({"outputs": outputs}, {"last_only": True, "outputs": outputs}):
        part = cell(**tensors, **options)._asdict()
        shown = {name: tensor for name, tensor in part.items() if tensor is not None}
        assert {*shown} == formed if "last_only" not in options else {*shown} <= formed
        assert all(torch.equal(shown[name], every[name]) for name in shown)
    cell, tensors = drawn_of_states(70)
    with pytest.raises(
        ArgumentError, match=r"of 70 outputs some are left out, expected at most 63"
    ):
        cell(**tensors, outputs=outputs)
