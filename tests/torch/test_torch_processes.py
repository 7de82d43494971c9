"""Cells in several processes and threads: data parallel, forks, workers of a loader."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import distributed  # noqa: E402

import cellgen.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, of itself
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    layer = cellgen.torch.module("lstm", 3, 5, 2)
    return Tagger(layer).double()


class Tagger(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.tell = layer, torch.nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tell(self.layer(x)[0])


def data() -> torch.Tensor:
    return torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def share(rank: int, port: int, folder: str) -> None:
    """One of two processes: gradients of half of the rows, averaged with the other's."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    try:
        alone = model()
        both = torch.nn.parallel.DistributedDataParallel(alone)
        both(data()[:, rank * 2 : rank * 2 + 2]).sin().mean().backward()
        kernel = alone.layer.cell.known.kernel
        found = {name: p.grad for name, p in alone.named_parameters()}
        torch.save((found, str(kernel.build().path)), Path(folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()
    end_at_once()


def end_at_once() -> None:
    """End a process without freeing its model, in which torch may wait for ever.

    The destructor of gloo's group joins its thread and keeps the interpreter's lock; that thread
    needs the lock to let go of the context that every backward pass hands on.
    """
    os._exit(0)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_two_processes_of_data_parallel_agree_with_one(tmp_path: Path) -> None:
    whole = model()
    whole(data()).sin().mean().backward()
    torch.multiprocessing.spawn(share, (free_port(), str(tmp_path)), nprocs=2)
    built = whole.layer.cell.known.kernel.build().path
    for rank in range(2):
        gradients, path = torch.load(tmp_path / f"{rank}.pt")
        assert path == str(built)  # of one cache
        for name, parameter in whole.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-10, atol=1e-13)


def shard(rank: int, port: int, folder: str) -> None:
    """One of two processes, each of which holds half of the parameters."""
    from torch.distributed.fsdp import fully_shard  # a second, which the others do not need

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
        both = model()
        fully_shard(both.layer, mesh=mesh)
        fully_shard(both, mesh=mesh)
        halves = sum(p.to_local().numel() for p in both.parameters())
        both(data()[:, rank * 2 : rank * 2 + 2]).sin().mean().backward()
        gradients = {name: p.grad.full_tensor() for name, p in both.named_parameters()}
        torch.optim.SGD(both.parameters(), 0.1).step()
        after = both(data())
        torch.save((gradients, after.detach(), halves), Path(folder) / f"{rank}.pt")
    finally:
        distributed.destroy_process_group()
    end_at_once()


@pytest.mark.slow
def test_two_processes_that_share_out_parameters_agree_with_one(tmp_path: Path) -> None:
    whole = model()
    whole(data()).sin().mean().backward()
    torch.multiprocessing.spawn(shard, (free_port(), str(tmp_path)), nprocs=2)
    gradients = {name: p.grad for name, p in whole.named_parameters()}
    torch.optim.SGD(whole.parameters(), 0.1).step()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for sharded, after, _ in found:
        torch.testing.assert_close(sharded, gradients, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(after, whole(data()), rtol=1e-10, atol=1e-13)
    assert sum(halves for *_, halves in found) == sum(p.numel() for p in whole.parameters())


class Rows(torch.utils.data.Dataset):
    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer = layer

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> torch.Tensor:
        with torch.no_grad():
            return self.layer(data()[:, number])


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_loader_run_a_layer_that_their_parent_has_run(context: str) -> None:
    layer = model()
    wanted = layer(data()).transpose(0, 1)
    loader = torch.utils.data.DataLoader(
        Rows(layer), num_workers=2, multiprocessing_context=context, timeout=300
    )
    torch.testing.assert_close(torch.cat([*loader]), wanted, rtol=1e-12, atol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_trains_on_threads_of_its_own() -> None:
    """Of cellgen's threads: torch's own would wait for ever in a child, so sums here are small."""
    layer = cellgen.torch.module("gru", 16, 32)
    x = torch.randn(20, 16, 16)
    torch.set_num_threads(2)
    layer(x)[0].sum().backward()
    child = os.fork()
    if not child:
        try:
            layer(x)[0].sum().backward()
        finally:
            os._exit(0)
    waited = threading.Timer(30, os.kill, (child, 9))
    waited.start()
    _, status = os.waitpid(child, 0)
    waited.cancel()
    assert status == 0


def test_threads_share_a_layer() -> None:
    layer = cellgen.torch.module("lstm", 3, 4)
    xs = [torch.randn(5, 2, 3) for _ in range(4)]
    wanted = [layer(x)[0] for x in xs]
    found: dict[int, list[torch.Tensor]] = {n: [] for n in range(4)}

    def work(number: int) -> None:
        for _ in range(20):
            found[number].append(layer(xs[number])[0])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in found.items():
        assert len(results) == 20
        assert all(torch.equal(result, wanted[number]) for result in results)
