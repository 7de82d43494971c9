"""The choice of configurations at the first call, with planted times, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import cellgen.torch  # noqa: E402
from cellgen.cells import MinGRU  # noqa: E402
from cellgen.runtime.build import cache  # noqa: E402
from cellgen.runtime.progress import CallProgress, progress  # noqa: E402
from cellgen.torch import choice, cuts, first_use, launched, passes, timed  # noqa: E402
from cellgen.torch.choice import Candidate  # noqa: E402
from cellgen.torch.errors import DeviceRunError, WrongKernelsError  # noqa: E402
from cellgen.views.on_device import on_device_section  # noqa: E402
from tests.torch.drawn import drawn  # noqa: E402

SIZES = {"T": 3, "B": 1, "N": 1, "K": 16, "D": 16, "I": 8}
"""One program of each kernel: what is chosen, and how often, depends on no more of them."""
SCAN = {"T": 3, "B": 1, "H": 70, "I": 2}
WARPS, LENGTHS = (4, 2), (16, 32)


@dataclass
class Planted:
    """A timer that looks a time up: by steps of a chunk, kernel, and settings."""

    times: dict[tuple[object, ...], float] = field(default_factory=dict)
    fails: set[tuple[object, ...]] = field(default_factory=set)
    prepared: list[Candidate] = field(default_factory=list)
    timed: list[Candidate] = field(default_factory=list)

    def prepare(self, candidates: Sequence[Candidate], bar: CallProgress) -> Sequence[Candidate]:
        self.prepared += candidates
        return candidates

    def time(self, candidate: Candidate) -> float:
        self.timed.append(candidate)
        words = [candidate.kernel.partition("_")[2], *candidate.settings.items()]
        reads = [row.get("constants", {}).get("READS") for row in candidate.rows]
        words += ["reads"] * (True in reads) + ["only writes"] * (reads == [False])
        if any(set(of) <= set(words) for of in self.fails):
            raise RuntimeError("out of resource: shared memory")
        return 1.0 + sum(ms for of, ms in self.times.items() if set(of) <= set(words))


@pytest.fixture(autouse=True)
def facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, object]]]:
    """What is remembered in place of the cache's files."""
    kept: dict[str, dict[str, object]] = {}
    monkeypatch.setattr(launched, "DEVICES", {"cpu"})
    monkeypatch.setattr(first_use, "STEPS", 5)
    monkeypatch.setenv("CELLGEN_PROVE", "0")
    monkeypatch.setenv("CELLGEN_TUNE", "1")
    monkeypatch.setattr(cuts, "LEAST_STEPS", 1)
    launched.module_of(cellgen.torch.function("min_gru").known)
    plan = launched.module_of(cellgen.torch.function("gla").known).PLAN  # that keeps facts, too
    monkeypatch.setattr(cache, "recall", kept.get)
    monkeypatch.setattr(cache, "remember", kept.__setitem__)
    for memory in plan["memories"]:
        few = {kernel: configurations(kernel) for kernel in memory["configurations"]}
        monkeypatch.setitem(memory, "configurations", few)
    forget()
    with np.errstate(all="ignore"):  # the interpreter computes lanes that are masked, too
        yield kept
    forget()


def configurations(kernel: str) -> tuple[dict[str, object], ...]:
    """Two of each length."""
    keys = {"BK": 16} if kernel.endswith("gradients") else {}
    return tuple(
        {"blocks": {"BT": length, "BV": 16, **keys}, "warps": w, "stages": 1, "most": 64}
        for length in LENGTHS
        for w in WARPS
    )


def called_scan(form: str = "scan", trains: bool = True) -> object:
    cell = cellgen.torch.function("min_gru", form="scan")
    with torch.set_grad_enabled(trains):
        return cell(**drawn(cell, **SCAN), form=form)


def forget() -> None:
    first_use.proofs_of_process.cache_clear()
    choice.choices_of_process.cache_clear()


def planted(monkeypatch: pytest.MonkeyPatch, **own: object) -> Planted:
    timer = Planted(**own)
    monkeypatch.setattr(choice, "timer_of", lambda device: timer)
    return timer


def called(trains: bool = True, **sizes: int) -> object:
    cell = cellgen.torch.function("gla", form="chunk")
    tensors = drawn(cell, **(SIZES | sizes))
    with torch.set_grad_enabled(trains):
        return cell(**tensors)


def taken(result: object) -> dict[str, dict[str, int]]:
    """Blocks by kernel, from the words of a result."""
    rows = [row.split() for row in result.configuration.split("; ")[:-1]]
    pairs = {name: [one.split("=") for one in of] for name, *of in rows}
    return {name.partition("_")[2]: {n: int(m) for n, m in of} for name, of in pairs.items()}


def test_each_kernel_takes_the_least_time_and_both_passes_one_length(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    """Chunks of 16 are best for the forward pass, of 32 for both."""
    timer = planted(
        monkeypatch,
        times={
            ("scan", ("BT", 32)): 1.0,
            ("gradients", ("BT", 16)): 9.0,
            ("scan", ("warps", 2)): 0.5,
            ("back", ("warps", 4)): 0.5,
        },
    )
    before = torch.get_rng_state()
    both = taken(called())
    assert torch.equal(torch.get_rng_state(), before)
    assert {of["BT"] for of in both.values()} == {32}
    assert both["scan"]["warps"] == 4
    assert both["back"]["warps"] == 2
    assert both.keys() == {"scan", "back", "gradients"}
    assert timer.prepared == timer.timed
    forward = taken(called(trains=False))
    assert {of["BT"] for of in forward.values()} == {16}
    assert forward.keys() == {"scan"}
    assert len(facts) == 2  # a call that does not train has a choice of its own


def test_what_is_chosen_gives_the_results_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, times={("scan", "reads"): 9.0})
    cell = cellgen.torch.function("gla", form="chunk")
    tensors = drawn(cell, **(SIZES | {"T": 20, "B": 2, "N": 2}))
    result, expected = cell(**tensors), cell(**tensors, form="step")
    assert taken(result)["scan"]["READS"] == 0  # by the kernel behind it
    assert "outputs" in taken(result)
    assert torch.allclose(result.h, expected.h, rtol=1e-11, atol=1e-13)
    assert expected.configuration == ""
    leaves = [t for t in tensors.values() if t.requires_grad]
    gradients = (torch.autograd.grad(r.h.sum(), leaves) for r in (result, expected))
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_what_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        fails={("scan", ("BT", 16)), ("back", ("BT", 32), ("warps", 2))},
        times={(("BT", 32),): 1.0},
    )
    chosen = taken(called())
    assert {of["BT"] for of in chosen.values()} == {32}
    assert chosen["back"]["warps"] == 4


def test_where_nothing_runs_the_first_of_each_list_is_taken_and_nothing_kept(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    planted(monkeypatch, fails={("scan",)})
    assert called().configuration == ""
    assert facts == {}


def test_what_cannot_be_timed_is_not_timed_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timer = planted(monkeypatch, fails={("scan",)})
    called()
    many = len(timer.timed)
    called()
    assert len(timer.timed) == many
    assert [one.levelname for one in caplog.records].count("WARNING") == 1


def test_a_call_runs_where_memory_is_too_short_to_time_it(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    def short(*call: object) -> list[object]:
        raise torch.OutOfMemoryError("no room")

    planted(monkeypatch)
    monkeypatch.setattr(choice, "measure_choices", short)
    assert called().configuration == ""
    assert facts == {}


@pytest.mark.parametrize("damage", [{"choices": [{"blocks": {}}]}, {"choices": 3}])
def test_a_damaged_choice_is_none(
    damage: dict[str, object], monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    timer = planted(monkeypatch)
    first, many = called().configuration, len(timer.timed)
    for name in [name for name in facts if name.startswith("chosen-")]:
        facts[name] = facts[name] | damage
    forget()
    assert called().configuration == first
    assert len(timer.timed) == 2 * many


def test_a_refusal_in_a_capture_forgets_no_choice(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    planted(monkeypatch)
    called()
    kept = {name: facts[name] for name in facts if name.startswith("chosen-")}
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    first_use.proofs_of_process.cache_clear()
    monkeypatch.setattr(first_use, "is_capturing", lambda device: True)
    with pytest.raises(DeviceRunError, match="while a graph of CUDA is captured"):
        called()
    assert {name: facts[name] for name in kept} == kept


def test_a_choice_is_kept_for_calls_alike_and_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    timer = planted(monkeypatch, times={(("BT", 32),): 1.0})
    first = called().configuration
    many = len(timer.timed)
    assert called(T=2).configuration == first  # between the same powers of two
    called(T=4)
    assert len(timer.timed) == 2 * many
    forget()  # another process
    assert called().configuration == first
    assert len(timer.timed) == 2 * many
    monkeypatch.setattr(torch, "__version__", "0")
    forget()
    called()
    assert len(timer.timed) == 3 * many
    assert all(key.startswith("chosen-") and cache.OWN.search(key) for key in facts)


def test_a_wrong_configuration_is_replaced_by_the_next_best(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, dict[str, object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    timer = planted(monkeypatch, times={(("warps", 2),): 1.0})
    compared: list[launched.FormLaunch] = []

    def refuse_four_warps(launch: launched.FormLaunch, *_: object) -> None:
        compared.append(launch)
        if any(of.get("warps") == 4 for of in launch.chosen.blocks.values()):
            raise WrongKernelsError("gla: h is 1.0 from the equations", code="device.proof")

    monkeypatch.setattr(choice, "prove_once", refuse_four_warps)
    monkeypatch.setattr(choice, "MOST_COMPARED", 9)
    assert {of["warps"] for of in taken(called()).values()} == {2}
    assert len(compared) > 1
    assert "gla: h is 1.0 from the equations; the next best configuration is taken" in caplog.text
    many = len(timer.timed)
    compared.clear()
    forget()
    called()  # what was wrong is remembered
    assert len(compared) == 1
    assert len(timer.timed) == many


def test_where_every_configuration_is_wrong_the_best_one_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    planted(monkeypatch)
    numbers = iter(range(9))

    def refuse(*_: object) -> None:
        raise WrongKernelsError(f"wrong {next(numbers)}", code="device.proof")

    monkeypatch.setattr(choice, "prove_once", refuse)
    with pytest.raises(DeviceRunError, match="wrong 0"):
        called()
    assert next(numbers) == choice.MOST_COMPARED


def test_the_comparison_is_of_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    planted(monkeypatch, times={(("BT", 16),): 1.0, (("warps", 2),): 1.0})
    called()
    (proved,) = [fact for key, fact in facts.items() if key.startswith("proved-")]
    stated = "\n".join(proved["stated"])
    assert "'BT': 32" in stated
    assert "'BT': 16" not in stated
    assert "'warps': 2" not in stated


@pytest.mark.parametrize("how", ["variable", "deterministic", "no device", "capture"])
def test_where_nothing_is_chosen_the_first_of_each_list_is_taken(
    how: str, monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    timer = planted(monkeypatch)
    if how == "variable":
        monkeypatch.setenv("CELLGEN_TUNE", "0")
    if how == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    if how == "no device":
        monkeypatch.setattr(choice, "timer_of", lambda device: None)
    if how == "capture":
        monkeypatch.setattr(choice, "is_capturing", lambda device: True)
    assert called().configuration == ""
    assert timer.timed == []
    assert facts == {}


def test_in_a_capture_what_is_known_is_taken(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    timer = planted(monkeypatch)
    first, many = called().configuration, len(timer.timed)
    forget()
    monkeypatch.setattr(choice, "is_capturing", lambda device: True)
    assert called().configuration == first
    assert len(timer.timed) == many


def test_a_first_use_in_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    monkeypatch.setattr(first_use, "is_capturing", lambda device: True)
    planted(monkeypatch)
    monkeypatch.setattr(choice, "is_capturing", lambda device: True)
    with pytest.raises(DeviceRunError, match=r"gla: .* a graph of CUDA is captured; call it"):
        called()


def test_fake_tensors_go_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    timer = planted(monkeypatch)
    with FakeTensorMode():
        cell = cellgen.torch.function("gla", form="chunk")
        tensors = {
            item.name: torch.empty(cell.layout.shape(item.name, SIZES), dtype=torch.float64)
            for item in cell.layout.theta
        }
        result = cell(**tensors)
    assert result.configuration == ""
    assert result.h.shape[:2] == (SIZES["T"], SIZES["B"])
    assert timer.timed == []


def test_a_call_without_gradients_saves_nothing_and_compares_no_gradient(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    planted(monkeypatch)
    passes: list[bool] = []
    own = first_use.PlanRun.backward
    monkeypatch.setattr(
        first_use.PlanRun, "backward", lambda run, above: passes.append(True) or own(run, above)
    )
    result = called(trains=False)
    assert not result.h.requires_grad
    assert passes == []
    called()
    assert passes


# --- scans ---------------------------------------------------------------------------------------


def test_both_passes_of_a_scan_take_the_segments_of_least_time_together(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, dict[str, object]]
) -> None:
    """Steps in segments are best for the forward pass, whole ones for both."""
    slow = {("1", ("programs", 0)): 1.0, ("1_back", ("programs", 1024)): 3.0}
    narrow = {("1", ("units", 1), ("warps", 1)): -0.5, ("1_back", ("units", 4)): -0.5}
    timer = planted(monkeypatch, times=slow | narrow)
    result, expected = called_scan(), called_scan("step")
    assert taken(result) == {
        "1": {"units": 1, "warps": 1, "ahead": 16, "programs": 0, "once": 0},
        "1_back": {"units": 4, "warps": 1, "ahead": 16, "programs": 0, "once": 0},
    }
    assert timer.prepared == timer.timed
    alike = [(one.kernel, one.launches.run.cut_of(*one.rows)) for one in timer.timed]
    assert len(set(alike)) == len(alike)  # what is cut alike is timed once
    assert torch.allclose(result.h, expected.h, rtol=1e-11, atol=1e-13)
    monkeypatch.setattr(cache, "recalled", lambda prefix: [*facts.values()])
    (row, *_) = on_device_section(MinGRU, {}).rows[1:]
    assert row.what == f"on cpu, torch.float64: {result.configuration}"
    many = len(timer.timed)
    forget()  # another process
    assert called_scan().configuration == result.configuration
    assert len(timer.timed) == many
    assert taken(called_scan(trains=False))["1"]["programs"] == 1024


def test_segments_are_read_once_by_both_passes_where_that_takes_the_least_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float64 one unit and 16 steps alone fit registers; a sequence of one segment has none."""
    times = {(of, ("once", 16), ("units", 1)): -0.5 for of in ("1", "1_back")}
    timer = planted(monkeypatch, times=times)
    assert taken(called_scan())["1"]["once"] == 0
    assert not any(one.settings["once"] for one in timer.timed)
    monkeypatch.setitem(SCAN, "T", 20)
    result, expected = called_scan(), called_scan("step")
    assert {of["once"] for of in taken(result).values()} == {16}
    assert {one.settings["units"] for one in timer.timed if one.settings["once"]} == {1}
    assert torch.allclose(result.h, expected.h, rtol=1e-11, atol=1e-13)


def test_every_configuration_of_a_scan_gives_the_results_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Launched as candidates are: on the arrays of the call, with segments of their own."""
    expected = called_scan("step").h
    formed: list[object] = []

    def launched_once(candidate: Candidate) -> float:
        formed.append(candidate.launches.run.arrays["h"].zero_())
        candidate.launch()
        assert torch.allclose(formed[-1], expected, rtol=1e-11, atol=1e-13)
        return 1.0

    timer = planted(monkeypatch)
    timer.time = launched_once
    called_scan(trains=False)
    assert len(formed) > 4
    assert all(array is formed[0] for array in formed)  # no more memory than one pass takes


def test_a_wrong_configuration_of_a_scan_is_replaced_by_the_next_best(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, dict[str, object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its kernels with four warps are wrong: the comparison with the equations says so."""
    monkeypatch.setenv("CELLGEN_PROVE", "1")
    planted(monkeypatch, times={(("warps", 1),): 1.0, (("warps", 2),): 1.0})
    right = passes.PlanRun.forward

    def wrong(run: passes.PlanRun) -> dict[str, object]:
        many = run.chosen["rows_1"]["warps"]
        return {name: result * (1.01 if many > 1 else 1) for name, result in right(run).items()}

    monkeypatch.setattr(passes.PlanRun, "forward", wrong)
    monkeypatch.setattr(choice, "MOST_COMPARED", 9)
    result = called_scan(trains=False)
    assert taken(result)["1"]["warps"] == 1
    assert "from the equations" in caplog.text
    assert "the next best configuration is taken" in caplog.text
    (kept,) = [fact for key, fact in facts.items() if key.startswith("chosen-")]
    assert kept["choices"][0]["blocks"]["rows_1"]["warps"] == 1  # what was wrong is forgotten


def test_an_untuned_scan_takes_the_first_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLGEN_TUNE", "0")
    timer = planted(monkeypatch)
    assert called_scan().configuration == ""
    assert timer.timed == []


def test_more_keys_than_configurations_are_for_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timer = planted(monkeypatch)
    result = called(T=2, B=1, N=1, K=65)
    said = "65 keys and 16 values of a head, where 64 are the most that configurations are for"
    assert result.configuration.startswith(said)
    assert f"gla: {said}" in caplog.text
    assert timer.timed == []


# --- how times are taken on a device -------------------------------------------------------------


@dataclass
class Stopwatch:
    """In place of a device: each launch takes the next of some milliseconds."""

    took: Iterator[float]
    now: float = 0.0
    flushes: int = 0

    def launch(self, rows: object) -> None:
        self.now += next(self.took)

    def event(self, enable_timing: bool) -> object:
        mark = SimpleNamespace()
        mark.record = lambda: setattr(mark, "at", self.now)
        mark.elapsed_time = lambda end: end.at - mark.at
        return mark

    def zero_(self) -> None:
        self.flushes += 1
        self.now += 100.0  # is not timed


@pytest.mark.parametrize(("once", "rounds"), [(0.1, 15), (4.0, 5), (900.0, 3)])
def test_a_time_is_the_median_of_some_launches(
    once: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [7.0 * once] * (rounds // 3) + [once] * (rounds - rounds // 3)
    watch = Stopwatch(iter([50.0, once, *late]))  # the first launch loads the kernel
    monkeypatch.setattr(torch.cuda, "Event", watch.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    timer = timed.DeviceTimer(torch.device("cpu"))
    timer._flushed = watch
    assert timer.time(Candidate(watch, "s_scan", {}, ())) == pytest.approx(once)
    assert watch.flushes == rounds + 1
    assert next(watch.took, None) is None


def test_candidates_compile_beside_each_other_and_a_wrong_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed, "workers", lambda: 3)
    meet = Barrier(3, timeout=20)
    made: list[int] = []

    class Memory:
        def make(self, rows: object) -> None:
            made.append(1)

        def compile(self, rows: object) -> None:
            assert len(made) == 3  # arrays are there
            meet.wait()
            if rows == "wrong":
                raise RuntimeError("ptxas")

    every = [Candidate(Memory(), "s_scan", {}, rows) for rows in ("", "wrong", "")]
    with progress("choosing") as bar:
        found = timed.DeviceTimer(torch.device("cpu")).prepare(every, bar)
    assert not meet.broken
    assert found == [every[0], every[2]]


def test_where_compiling_takes_too_long_the_first_of_each_list_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timed, "workers", lambda: 1)
    monkeypatch.setattr(timed, "PATIENCE", -1.0)
    memory = SimpleNamespace(make=lambda rows: None, compile=lambda rows: None)
    every = [Candidate(memory, of, {}, (), place) for of in ("scan", "back") for place in (0, 1)]
    with progress("choosing") as bar:
        found = timed.DeviceTimer(torch.device("cpu")).prepare(every, bar)
    assert found == [every[0], every[2]]
