"""Kernels of Triton behind a form of scans, by its interpreter: results, proof, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen.torch  # noqa: E402
from cellgen.runtime.build import cache  # noqa: E402
from cellgen.torch import launched  # noqa: E402
from cellgen.torch.errors import DeviceRunError  # noqa: E402
from cellgen.torch.launched import HigherDerivativeWarning  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402

BAR = 1e-12
SIZES = {"T": 6, "B": 2, "H": 3, "I": 2}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setattr(launched, "PROVED_STEPS", 5)
    monkeypatch.setattr(launched, "PROVED_LENGTH", 3)
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    launched._proved.cache_clear()
    launched._say_once.cache_clear()


def results(cell: object, tensors: dict[str, object], **how: object) -> list[object]:
    found = [v for v in cell(**tensors, **how) if v is not None]
    torch.manual_seed(0)
    above = [torch.randn_like(v) for v in found]
    return [*found, *torch.autograd.grad(found, [*tensors.values()], above)]


@pytest.mark.parametrize("options", [{}, {"every": 2}, {"last_only": True}])
def test_kernels_give_what_steps_give(options: dict[str, object]) -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    taken = cell(**tensors, **options)
    assert taken.h is None or "Launched" in str(taken.h_last.grad_fn)
    found = results(cell, tensors, **options)
    pairs = zip(found, results(cell, tensors, form="step", **options), strict=True)
    assert max(float((a - b).detach().abs().max()) for a, b in pairs) <= BAR


def test_a_gradient_that_is_differentiated_goes_by_torch_and_says_so() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")

    def second(form: str) -> list[object]:
        tensors = drawn(cell, **SIZES)
        result = cell(**tensors, form=form).h
        first = torch.autograd.grad((result**2).sum(), [*tensors.values()], create_graph=True)
        return list(torch.autograd.grad(sum((g**2).sum() for g in first), [*tensors.values()]))

    with pytest.warns(HigherDerivativeWarning, match="the gradient of a form of scans is diff"):
        found = second("scan")
    pairs = zip(found, second("step"), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) <= BAR


def test_what_kernels_do_not_have_goes_by_torch() -> None:
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    for how in ({"lengths": torch.tensor([6, 2])}, {"reverse": True}):
        assert "Launched" not in str(cell(**tensors, **how).h_last.grad_fn)
    narrow = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    assert "Launched" not in str(cell(**narrow).h_last.grad_fn)


def test_kernels_are_proved_once_and_wrong_ones_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, object] = {}
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    monkeypatch.setattr(cache, "recall", kept.get)
    monkeypatch.setattr(cache, "remember", kept.__setitem__)
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    cell(**tensors)
    assert len(kept) == 1
    launched._proved.cache_clear()
    monkeypatch.setattr(launched, "_farthest", lambda *given: pytest.fail("proved again"))
    cell(**tensors)


def test_wrong_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module whose product is another one's: the first result that is off is named."""
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    monkeypatch.setattr(cache, "recall", lambda key: None)
    cell = cellgen.torch.function("min_gru", form="scan")
    tensors = drawn(cell, **SIZES)
    own = launched.module_of(cell.known)
    plan = dict(own.PLAN)
    first, second, *rest = plan["forward"]
    plan["forward"] = (dict(first, right=second["right"]), second, *rest)
    kernels = {name: getattr(own, name) for name in dir(own) if not name.startswith("__")}
    wrong = SimpleNamespace(**{**kernels, "PLAN": plan, "__file__": own.__file__})
    monkeypatch.setattr(launched, "module_of", lambda known: wrong)
    message = r"min_gru: \w+ by kernels of Triton .* on cpu is .* from the equations, at most 1e-11"
    with pytest.raises(DeviceRunError, match=message):
        cell(**tensors)
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    assert cell(**tensors).form == "scan"
