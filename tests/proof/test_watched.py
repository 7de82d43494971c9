"""Every load and store of a kernel watched: faults that are planted show, and are named."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from cellgen.proof.shadow import AccessError  # noqa: E402
from cellgen.proof.watched import watched  # noqa: E402


def fault(message: str):
    return pytest.raises(AccessError, match=message)


@triton.jit
def scaled(x_p, y_p, T, H: tl.constexpr, BT: tl.constexpr, MASK: tl.constexpr, OFF: tl.constexpr):
    """y = 2 x by blocks of steps; MASK: 0 none, 1 right, 2 one step too many."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.arange(0, H)
    at = t[:, None] * H + h[None, :]
    if MASK == 0:
        x = tl.load(x_p + at)
        tl.store(y_p + at, x * 2)
    else:
        on = (t < T + MASK - 1)[:, None] & (h >= 0)[None, :]
        x = tl.load(x_p + at, mask=on, other=0.0)
        tl.store(y_p + at + OFF, x * 2, mask=on)


def launch(T=8, BT=4, mask=1, off=0, x=None, y=None):
    x = torch.ones(T, 16) if x is None else x
    with watched("toy") as watch:
        y = torch.empty(T, 16) if y is None else y
        scaled[(triton.cdiv(T, BT),)](x, y, T, H=16, BT=BT, MASK=mask, OFF=off)
    return watch, y


def test_a_right_kernel_passes_and_its_bytes_are_counted() -> None:
    watch, y = launch(T=7)
    assert (y == 2).all()
    assert watch.bytes() == (7 * 16 * 4, 7 * 16 * 4)
    assert watch.bytes("scaled") == watch.bytes()
    assert watch.traffic["scaled", "x_p"].distinct_read == 7 * 16 * 4
    (call,) = watch.launches
    assert (call.kernel, call.grid, call.warps) == ("scaled", (2,), 4)
    assert call.arguments == (("x_p", "*fp32", 448), ("y_p", "*fp32", 448), ("T", "i32", 7))
    assert dict(call.constants) == {"H": 16, "BT": 4, "MASK": 1, "OFF": 0}


@pytest.mark.parametrize("mask", [0, 2])
def test_a_mask_that_is_missing_at_the_remainder_or_off_by_one_shows(mask: int) -> None:
    message = r"toy: scaled, program \(1, 0, 0\), reads bytes 256 to \d+ from the start of x_p"
    with pytest.raises(AccessError, match=message):
        launch(T=7, mask=mask)
    launch(T=8, mask=0)


def test_a_store_past_the_end_shows_where_the_load_is_right() -> None:
    with pytest.raises(AccessError, match=r"writes bytes 260 to 516 from the start of y_p"):
        launch(off=1)


def test_an_input_is_not_written() -> None:
    y = torch.zeros(8, 16)
    with pytest.raises(AccessError, match=r"program \(0, 0, 0\), writes y_p\[0, 0\], an input"):
        launch(y=y)


@triton.jit
def shifted(x_p, y_p, BT: tl.constexpr, STEP: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BT)
    tl.store(y_p + at, tl.load(x_p + at))


def test_two_programs_that_write_one_element_show() -> None:
    x = torch.arange(32.0)
    with (
        pytest.raises(AccessError, match=r"program \(1, 0, 0\), writes y_p\[12\], which another"),
        watched("toy"),
    ):
        shifted[(2,)](x, torch.empty(32), BT=16, STEP=12)


def test_a_read_of_what_nobody_wrote_shows() -> None:
    with (
        pytest.raises(AccessError, match=r"reads x_p\[0\], which nobody has written \(16 elem"),
        watched("toy"),
    ):
        shifted[(2,)](torch.empty(32), torch.empty(32), BT=16, STEP=16)


def test_what_pytorch_writes_inside_is_written() -> None:
    one = torch.ones(4, 8)
    with watched("toy"):
        x, y = torch.empty(32), torch.empty(64)
        torch.mul(one, 2, out=x.view(4, 8))
        y[:16].copy_(one.view(-1)[:16])
        y[16:32] = 1
        shifted[(2,)](x, torch.empty(32), BT=16, STEP=16)
        shifted[(2,)](y, torch.empty(32), BT=16, STEP=16)
        shifted[(2,)](one.view(-1).clone(), torch.ones(32).clone(), BT=16, STEP=16)
    with fault(r"reads x_p\[32\], which nobody has written"), watched("toy"):
        y = torch.empty(64)
        y[:32].zero_()
        shifted[(3,)](y, torch.empty(64), BT=16, STEP=16)


def test_a_read_of_what_another_program_writes_shows_in_both_orders() -> None:
    @triton.jit
    def in_place(y_p, N: tl.constexpr, BY: tl.constexpr):
        at = tl.program_id(0) * N + tl.arange(0, N)
        other = (tl.program_id(0) + BY) % 2 * N + tl.arange(0, N)
        tl.store(y_p + at, tl.load(y_p + other))

    with watched("toy"):
        in_place[(2,)](torch.zeros(32), N=16, BY=0)
    with fault(r"reads y_p\[0\], which another program"), watched("toy"):
        in_place[(2,)](torch.zeros(32), N=16, BY=1)


def test_an_element_that_another_program_has_read_is_not_written() -> None:
    @triton.jit
    def late(y_p, z_p, N: tl.constexpr):
        at = tl.arange(0, N)
        y = tl.load(y_p + at)
        tl.store(z_p + tl.program_id(0) * N + at, y)
        tl.store(y_p + at, y, mask=at < tl.program_id(0) * N)

    with (
        pytest.raises(AccessError, match=r"program \(1, 0, 0\), writes y_p\[0\].*reads"),
        watched("toy"),
    ):
        late[(2,)](torch.zeros(16), torch.empty(32), N=16)


def test_atomics_of_several_programs_meet() -> None:
    @triton.jit
    def added(x_p, y_p, N: tl.constexpr):
        at = tl.arange(0, N)
        tl.atomic_add(y_p + at, tl.load(x_p + tl.program_id(0) * N + at))

    x = torch.ones(64)
    with watched("toy"):
        y = torch.zeros(16)
        added[(4,)](x, y, N=16)
    assert (y == 4).all()
    with (
        pytest.raises(AccessError, match=r"adds to y_p\[0\], which nobody has written"),
        watched("toy"),
    ):
        added[(4,)](x, torch.empty(16), N=16)


@triton.jit
def handed_on(y_p, told_p, z_p, LATE: tl.constexpr, TELL: tl.constexpr, TAKE: tl.constexpr):
    """The first program writes y and tells; the second takes, and reads. LATE: behind a barrier."""
    at = tl.arange(0, 16)
    if tl.program_id(0) == 0:
        tl.store(y_p + at, at.to(tl.float32))
        if LATE != 1:
            tl.debug_barrier()
        tl.atomic_xchg(told_p, 1, sem=TELL)
    else:
        tl.atomic_add(told_p, 0, sem=TAKE)
        if LATE != 2:
            tl.debug_barrier()
        tl.store(z_p + at, tl.load(y_p + at))


@pytest.mark.parametrize(
    ("late", "tell", "take"),
    [
        (0, "release", "acquire"),
        (0, "relaxed", "acquire"),
        (0, "release", "relaxed"),
        (1, "release", "acquire"),
        (2, "release", "acquire"),
    ],
)
def test_what_is_released_behind_a_barrier_is_read_by_what_acquires_it(
    late: int, tell: str, take: str
) -> None:
    def launched() -> None:
        with watched("toy"):
            arrays = torch.empty(16), torch.zeros(1, dtype=torch.int32), torch.empty(16)
            handed_on[(2,)](*arrays, LATE=late, TELL=tell, TAKE=take)

    if (late, tell, take) == (0, "release", "acquire"):
        launched()
        return
    with fault(r"program \(1, 0, 0\), reads y_p\[0\], which another program of the same launch"):
        launched()


def test_lanes_of_one_store_that_meet_bring_one_value() -> None:
    @triton.jit
    def folded(x_p, y_p, N: tl.constexpr):
        at = tl.arange(0, N)
        tl.store(y_p + at // 2, tl.load(x_p + at))

    with watched("toy"):
        folded[(1,)](torch.ones(16), torch.empty(8), N=16)
    with fault(r"writes y_p\[0\] twice in one store"), watched("toy"):
        folded[(1,)](torch.arange(16.0), torch.empty(8), N=16)


def test_a_gap_of_a_view_is_not_the_views() -> None:
    x = torch.ones(8, 32)
    with fault(r"program \(0, 0, 0\), reads x_p\[0, 16\], in a gap of a view"):
        launch(x=x[:, :16])


def test_products_of_bfloat16_are_of_numbers_and_counted() -> None:
    @triton.jit
    def squared(x_p, y_p, N: tl.constexpr):
        at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        x = tl.load(x_p + at)
        tl.store(y_p + at, tl.dot(x, x))

    x = (torch.eye(16) * 1.5).to(torch.bfloat16)
    with watched("toy") as watch:
        y = torch.empty(16, 16)
        squared[(1,)](x, y, N=16)
    assert torch.equal(y, torch.eye(16) * 2.25)
    assert watch.products == {"squared": 16**3}


def test_a_watch_that_saw_no_kernel_says_so() -> None:
    with (
        pytest.raises(AccessError, match="toy: no kernel ran in Triton's interpreter"),
        watched("toy"),
    ):
        pass


def test_the_hooks_are_gone_after_a_watch() -> None:
    with pytest.raises(AccessError):
        launch(T=7, mask=0)
    x = torch.arange(32.0)
    y = torch.empty(32)
    shifted[(2,)](x, y, BT=16, STEP=12)
    assert re.match(r"tensor", repr(y))
    assert torch.equal(y[:28], x[:28])
