"""The cells that the emulation of CUDA runs each time stand for all."""

from __future__ import annotations

from tests.cover import cover
from tests.cuda_cover import BESIDE, COVERING, FEATURES, OPTION_CELLS, is_covering, used
from tests.targets.test_cuda import EMULATED


def test_cells_that_run_each_time_use_all_that_any_of_them_uses() -> None:
    """And are no more than that takes: a function of the runtime that is new adds a cell."""
    traits = {cell.definition.name: used(cell) for cell in EMULATED}
    covering = cover(traits)
    assert sorted(covering) == sorted(COVERING), f"COVERING = {covering}"
    taken = [c.definition.name for c in EMULATED if is_covering(c)]
    assert sorted(taken) == sorted((*covering, *BESIDE))
    alone = traits["slstm_heads"] - frozenset().union(
        *(traits[name] for name in covering if name != "slstm_heads")
    )
    assert alone, "slstm_heads adds nothing"


def test_cells_with_which_options_are_tested_have_every_feature_between_them() -> None:
    for name, has in FEATURES.items():
        assert any(has(cell.definition) for cell in OPTION_CELLS), name
        assert any(not has(cell.definition) for cell in OPTION_CELLS), name
