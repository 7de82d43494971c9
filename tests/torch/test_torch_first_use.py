"""Kernels of Triton at first use, by its interpreter: what is compared, refused, remembered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import cellgen.torch  # noqa: E402
from cellgen.proof.interpreted import bfloat16_as_on_devices  # noqa: E402
from cellgen.runtime.build import cache  # noqa: E402
from cellgen.torch import first_use, launched, passes  # noqa: E402
from cellgen.torch.chunks import rows  # noqa: E402
from cellgen.torch.errors import DeviceRunError  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402

SIZES = {"T": 3, "B": 2, "H": 3, "I": 2}
MEMORY = SIZES | {"N": 2, "K": 16, "D": 16, "I": 8}


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, object]]:
    """What is remembered in place of the cache's files."""
    kept: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setattr(first_use, "STEPS", 5)
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    for name in ("min_gru", "gated_delta_net", "qrnn"):  # their kernels in C keep facts, too
        cellgen.torch.function(name)
    monkeypatch.setattr(cache, "recall", kept.get)
    monkeypatch.setattr(cache, "remember", kept.__setitem__)
    first_use.proofs_of_process.cache_clear()
    with np.errstate(all="ignore"):  # the interpreter computes lanes that are masked, too
        yield kept


def called(name: str, dtype: torch.dtype = torch.float64, **sizes: int) -> object:
    cell = cellgen.torch.function(name, form="auto")
    return cell(**drawn(cell, dtype=dtype, **(SIZES | sizes)))


def test_kernels_are_compared_once(
    facts: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called("min_gru")
    assert len(facts) == 1
    ((key, fact),) = facts.items()
    assert cache.OWN.search(key)  # `cellgen cache clear` removes it
    assert fact["left_out"] == []
    first_use.proofs_of_process.cache_clear()
    monkeypatch.setattr(first_use, "compare", lambda *_: pytest.fail("compared again"))
    called("min_gru")
    called("min_gru", T=5, B=3)  # the same kernels: sizes of no configuration


def test_what_a_comparison_holds_for_is_in_its_key(
    facts: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_use, "compare", lambda *_: ({"h": (0.0, 1.0)}, ()))
    calls: list[Callable[[], object]] = [
        lambda: launch_of("min_gru"),
        lambda: launch_of("min_gru", H=4),
        lambda: launch_of("min_gru", I=4),
        lambda: launch_of("min_gru", T=129),  # steps are cut
        lambda: launch_of("min_gru", B=16),  # Triton compiles a multiple of 16 by itself
        lambda: launch_of("min_gru", torch.float32),
        lambda: launch_of("gated_delta_net", K=16, D=16),
        lambda: launch_of("gated_delta_net", K=16, D=32),
        lambda: launch_of("gated_delta_net", K=16, D=16, T=201),  # other chunks
    ]
    for many, call in enumerate(calls, start=1):
        call()
        assert len(facts) == many
    first_use.proofs_of_process.cache_clear()
    monkeypatch.setattr(torch, "__version__", "0")
    launch_of("min_gru")
    assert len(facts) == len(calls) + 1


def test_kernels_that_leave_steps_out_are_compared_by_themselves(
    facts: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    cell(**tensors)
    cell(**tensors, reverse=True)  # the same kernels
    assert len(facts) == 1
    cell(**tensors, mask=torch.ones(3, 2, dtype=torch.bool))
    assert len(facts) == 2
    monkeypatch.setattr(rows, "steps_before", lambda valid, _: torch.zeros_like(valid).int())
    facts.clear()
    first_use.proofs_of_process.cache_clear()
    with refused(r"min_gru: \w+ by kernels of Triton .* from the equations, at most"):
        cell(**tensors, mask=torch.ones(3, 2, dtype=torch.bool))


def launch_of(name: str, dtype: torch.dtype = torch.float64, **own: int) -> launched.FormLaunch:
    """The launch of tensors without memory: nothing runs."""
    launched.DEVICES.add("meta")
    cell = cellgen.torch.function(name, form="auto")
    every = MEMORY | own
    sizes = {dim: every[dim] for dim in (*map(str, cell.layout.dims), "T", "B")}
    theta = [
        torch.empty(cell.layout.shape(item.name, sizes), device="meta", dtype=dtype)
        for item in cell.layout.theta
    ]
    launch = launched.launch_of(cell.known, sizes, theta, lambda *_: {}, frozenset())
    assert launch is not None
    return launch


@pytest.mark.parametrize(
    "sizes", [{"T": 3}, {"T": 200, "B": 1}, {"T": 200, "B": 64}, {"T": 512, "B": 64, "N": 4}]
)
@pytest.mark.parametrize("name", ["min_gru", "gated_delta_net"])
def test_what_is_compared_is_the_configuration_of_the_call(
    name: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    launch = launch_of(name, torch.float32, **({"H": 200} | sizes))
    cell, own = launch.known, launch.sizes
    monkeypatch.setattr(passes.PlanRun, "_launch", recorded(compiled := []))
    monkeypatch.setattr(passes.MemoryLaunches, "launch", recorded_memory(compiled))

    def configurations(sizes: dict[str, int], call: dict[str, int]) -> list[object]:
        compiled.clear()
        shapes = {item.name: cell.layout.shape(item.name, sizes) for item in cell.layout.theta}
        arrays = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        run = passes.PlanRun(launch.module, dict(sizes), arrays, call=call)
        run.forward()
        run.backward({})
        return list(compiled)

    fewer = first_use.smaller_sizes(launch)
    assert fewer["T"] <= 16
    assert configurations(fewer, own) == configurations(own, {})


def recorded(compiled: list[object]) -> Callable[..., None]:
    def launch(run: passes.PlanRun, kernel: str, arrays: dict[str, str], *how: object) -> None:
        cut = how[-1]
        is_flat = kernel.startswith("rows") and "_whole" not in kernel and not how[1]
        is_split = not is_flat and cut.grid[2] > 1
        compiled.append((kernel, cut.lanes, cut.ahead, is_split))
        for name in arrays.values():
            run.at(name)

    return launch


def recorded_memory(compiled: list[object]) -> Callable[..., None]:
    def launch(memory: passes.MemoryLaunches, rows: list[dict[str, object]]) -> None:
        for row in rows:
            blocks = memory.blocks[row["kernel"]]
            own = {n: memory._constant(of, blocks) for n, of in row["constants"].items()}
            compiled.append((row["kernel"], dict(blocks), own))
            for name in row["buffers"].values():
                memory._at(name)

    return launch


QUICK = [("min_lstm", torch.float64), ("min_lstm", torch.bfloat16)]
KINKS = ("rwkv4", "mlstm")
"""Where rounding to 16 bits takes another side of a maximum, gradients are others."""
RIGHT = [
    *QUICK,
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in product(
            ("gated_delta_net", "rwkv4", "min_lstm", "rwkv6", "mlstm"), first_use.FLOORS
        )
        if case not in QUICK
    ),
]


@pytest.mark.parametrize(("name", "dtype"), RIGHT)
def test_right_kernels_pass(
    name: str, dtype: torch.dtype, facts: dict[str, dict[str, object]]
) -> None:
    """Their draws saturate no gate."""
    cellgen.torch.function(name)
    facts.clear()
    with bfloat16_as_on_devices():
        called(name, dtype, **(MEMORY | {"H": 8}))
    (fact,) = [fact for key, fact in facts.items() if key.startswith("proved-")]
    assert fact["left_out"] == [] or (dtype in first_use.NARROW and name in KINKS)
    assert fact["apart"] <= fact["bar"]


@pytest.mark.slow
def test_kernels_pass_that_lose_what_keys_and_values_of_16_bits_lose(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    monkeypatch.setattr(first_use, "STEPS", 150)
    with bfloat16_as_on_devices():
        called("mlstm", torch.bfloat16, T=150, N=2, K=64, D=64, I=64)
    (fact,) = [fact for key, fact in facts.items() if key.startswith("proved-")]
    assert fact["left_out"] == []


def test_what_has_to_be_lost_in_16_bits_counts_keys_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of what rounding of arguments costs: what reaches mLSTM's query all but cancels."""
    seen: list[launched.FormLaunch] = []

    def noted(launch: launched.FormLaunch, *_: object) -> tuple[dict[str, object], tuple[()]]:
        seen.append(launch)
        return {"h": (0.0, 1.0)}, ()

    monkeypatch.setattr(first_use, "compare", noted)
    called("mlstm", torch.bfloat16, T=3, N=1, K=64, D=64, I=64)
    (launch,) = seen
    small = replace(launch, sizes={**launch.sizes, "T": 100})
    by_torch, lost = first_use.by_torch, []
    for stored in (torch.bfloat16, None):
        monkeypatch.setattr(first_use, "by_torch", partial(stored_as, by_torch, stored))
        generator = torch.Generator().manual_seed(0)
        theta = [
            first_use.draw_values(item, small.shape_of(item, small.sizes), generator, 2.0, False)
            for item in small.arguments
        ]
        true, near, *_ = first_use.true_and_near(small, theta, torch.bfloat16, generator)
        lost.append({name: first_use.apart(near[name], true[name]) for name in true})
    for name, least, most in (("d_b_q", 3.0, 15.0), ("d_w_k", 0.8, 1.5), ("h", 0.8, 2.0)):
        assert least < lost[0][name] / lost[1][name] < most, name


def stored_as(
    by_torch: Callable[..., object],
    as_type: torch.dtype | None,
    *given: object,
    stored: torch.dtype | None = None,
) -> object:
    """Results where what is stored in a type is stored in another."""
    return by_torch(*given, stored=stored and as_type)


def refused(message: str) -> object:
    return pytest.raises(DeviceRunError, match=message)


def test_a_wrong_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose product is another one's: the first result that is off is named."""
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    own = launched.module_of(cell.known)
    plan = dict(own.PLAN)
    first, second, *rest = plan["forward"]
    plan["forward"] = (dict(first, right=second["right"]), second, *rest)
    kernels = {name: getattr(own, name) for name in dir(own) if not name.startswith("__")}
    wrong = SimpleNamespace(**{**kernels, "PLAN": plan, "__file__": own.__file__})
    monkeypatch.setattr(launched, "module_of", lambda known: wrong)
    with refused(r"min_gru: \w+ by kernels of Triton .* on cpu is .* from the equations, at most"):
        cell(**tensors)
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    assert cell(**tensors).form == "scan"


OF_MASKED_LANES = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""The comparison has a thread of its own, in which the interpreter computes them, too."""


@OF_MASKED_LANES
@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("qrnn", "w_z"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("gated_delta_net", "w_b"),
                ("delta_net", "w_k"),
                ("gla", "w_q"),
                ("mlstm_sigmoid", "w_f"),
                ("rwkv4", "w_k"),
                ("s5", "b_re"),
                ("retnet", "w_k"),
                ("mamba2", "w_b"),
                ("rwkv7", "w_k"),
            )
        ),
    ],
)
def test_a_small_gradient_that_is_off_by_little_is_refused(
    name: str, weight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient is compared by its own largest number."""
    right = passes.PlanRun.backward

    def wrong(run: passes.PlanRun, upstream: dict[str, object]) -> dict[str, object]:
        gradients = right(run, upstream)
        return gradients | {weight: gradients[weight] * 1.001}

    monkeypatch.setattr(passes.PlanRun, "backward", wrong)
    with refused(f"{name}: d_{weight} by kernels of Triton .* is 1.0e-03 from the equations"):
        called(name, torch.float32, **(MEMORY | {"H": 8}))


def test_numbers_of_16_bits_that_are_off_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is ten times what rounding of arguments, keys and values costs."""
    right = passes.PlanRun.forward

    def wrong(run: passes.PlanRun) -> dict[str, object]:
        return {name: result * 1.05 for name, result in right(run).items()}

    monkeypatch.setattr(passes.PlanRun, "forward", wrong)
    with refused("min_gru: h.* by kernels of Triton"), bfloat16_as_on_devices():
        called("min_gru", torch.bfloat16)


@OF_MASKED_LANES
@pytest.mark.parametrize(
    ("name", "weight", "dtype"),
    [
        ("min_gru", "w_z", torch.float16),
        *(
            pytest.param(name, weight, dtype, marks=pytest.mark.slow)
            for dtype in first_use.NARROW
            for name, weight in (("retnet", "w_v"), ("gla", "w_q"), ("gated_delta_net", "w_v"))
        ),
    ],
)
def test_a_gradient_of_16_bits_that_lacks_one_step_is_refused(
    name: str, weight: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the size that a lost load has: upstream of one step of five does not arrive."""
    right = passes.PlanRun.backward

    def wrong(run: passes.PlanRun, upstream: dict[str, object]) -> dict[str, object]:
        fewer = {n: a.clone() for n, a in upstream.items()}
        fewer["d_h"][1] = 0
        return right(run, upstream) | {weight: right(run, fewer)[weight]}

    monkeypatch.setattr(passes.PlanRun, "backward", wrong)
    with refused(f"{name}: d_{weight} by kernels of Triton"), bfloat16_as_on_devices():
        called(name, dtype, **(MEMORY | {"H": 8}))


def test_modes_of_the_caller_do_not_reach_the_comparison(
    facts: dict[str, dict[str, object]],
) -> None:
    with torch.inference_mode():
        called("min_gru", H=3)
    with torch.device("meta"):
        inside = drawn_on_cpu("min_gru", H=4)
        cellgen.torch.function("min_gru", form="scan")(**inside)
    with torch.autocast("cpu", torch.bfloat16):
        called("min_gru", H=5)
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **(SIZES | {"H": 6}))
    h = checkpoint(lambda x: cell(**{**tensors, "x": x}).h, tensors["x"], use_reentrant=False)
    h.sum().backward()
    assert len(facts) == 4


def drawn_on_cpu(name: str, **sizes: int) -> dict[str, object]:
    with torch.device("cpu"):
        return drawn(cellgen.torch.function(name, form="auto"), **(SIZES | sizes))


def test_a_caller_who_allows_short_products_changes_no_comparison() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with first_use.full_products():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
