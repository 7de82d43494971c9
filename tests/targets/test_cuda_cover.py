"""The cells that the emulation of CUDA runs each time stand for all established ones."""

from __future__ import annotations

from tests.conftest import ESTABLISHED
from tests.cuda_cover import COVERING, FEATURES, OPTION_CELLS, is_covering, used


def test_cells_that_run_each_time_use_all_that_established_cells_use() -> None:
    each_time = [cell for cell in ESTABLISHED if is_covering(cell)]
    assert sorted(cell.definition.name for cell in each_time) == sorted(COVERING)
    covered = frozenset[tuple[str, object]]().union(*map(used, each_time))
    missing = {cell.definition.name: used(cell) - covered for cell in ESTABLISHED}
    assert {name: left for name, left in missing.items() if left} == {}, "add one to COVERING"


def test_without_a_cell_that_alone_uses_something_it_is_missed() -> None:
    covered = frozenset[tuple[str, object]]().union(
        *(used(c) for c in ESTABLISHED if is_covering(c) and c.definition.name != "slstm_heads")
    )
    slstm_heads = next(c for c in ESTABLISHED if c.definition.name == "slstm_heads")
    assert ("name", "cg_gemm_heads_nn") in used(slstm_heads) - covered


def test_cells_with_which_options_are_tested_have_every_feature_between_them() -> None:
    for name, has in FEATURES.items():
        assert any(has(cell.definition) for cell in OPTION_CELLS), name
        assert any(not has(cell.definition) for cell in OPTION_CELLS), name
