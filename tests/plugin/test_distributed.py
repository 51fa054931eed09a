"""Two gloo processes train as one with the joint batch, and decide the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from budgeted.budget import BudgetSpent
from budgeted.errors import BudgetedError
from budgeted.freezing import BadLoss
from budgeted.plugin import AdaptiveFreezing
from tests.plugin.test_accumulation import data, parts, plain

STEPS = 12
SETTINGS: dict[str, Any] = {"ema": 0.3, "ema_start": "corrected", "refresh_every": 3}


def halves(batch: tuple[Tensor, Tensor], rank: int) -> tuple[Tensor, Tensor]:
    return parts(batch, 2)[rank]


def train(model: nn.Module, freezing: AdaptiveFreezing, optimizer: Any, take: Any, micro: int) -> list[list[int]]:
    decisions = []
    for batch in data(STEPS, size=16):
        optimizer.zero_grad()
        pieces = parts(take(batch), micro)
        for number, (inputs, targets) in enumerate(pieces):
            loss = F.cross_entropy(model(inputs), targets) / micro
            done = freezing.backward(loss, more=micro == 4 and number < 3)
        optimizer.step()
        decisions.append(sorted(done.frozen))
    return decisions


HOW = ("plain", "wrapped", "micro", "more")


def work(rank: int, folder: str) -> None:
    """One rank: train its half of every batch, in four ways, and write down what came out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for how in HOW:
        model = plain()
        if how == "plain" and rank:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()  # the first rank's weights are what counts
        called: nn.Module = DistributedDataParallel(model) if how == "wrapped" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        freezing = AdaptiveFreezing(called, optimizer, distributed=how != "wrapped", **SETTINGS)
        micro = {"micro": 2, "more": 4}.get(how, 1)
        decisions = train(called, freezing, optimizer, partial(halves, rank=rank), micro)
        result: dict[str, Any] = {"decisions": decisions, "model": model.state_dict(), "state": freezing.state_dict()}
        if how == "plain":
            result["refusals"] = refusals(model, rank)
        torch.save(result, Path(folder) / f"{how}{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    spawn(work, args=(str(folder),), nprocs=2)
    return folder


def refusals(model: nn.Module, rank: int) -> list[str]:
    """What goes wrong on one rank is an error on all of them, so that none waits for ever."""
    inputs, targets = halves(data(1)[0], rank)
    seen = []
    freezing = AdaptiveFreezing(model, distributed=True, policy="constant", n=1)
    try:
        freezing.backward(F.cross_entropy(model(inputs), targets) * (float("nan") if rank else 1.0))
    except BadLoss as error:
        seen.append(str(error))
    freezing.remove()
    freezing = AdaptiveFreezing(model, distributed=True, policy="none", budget="1FLOP" if rank else "1TFLOP")
    try:
        freezing.backward(F.cross_entropy(model(inputs), targets))
    except BudgetSpent as error:
        seen.append(str(error))
    freezing.remove()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer, distributed=True)
    freezing.backward(F.cross_entropy(model(inputs), targets), more=True)
    try:
        optimizer.step()
    except BudgetedError as error:
        seen.append(str(error))
    return seen


@pytest.fixture(scope="module")
def joint() -> dict[str, Any]:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    freezing = AdaptiveFreezing(model, optimizer, **SETTINGS)
    decisions = train(model, freezing, optimizer, lambda batch: batch, 1)
    assert any(decisions)
    assert len({tuple(decision) for decision in decisions}) > 1
    return {"decisions": decisions, "model": model.state_dict(), "state": freezing.state_dict()}


@pytest.mark.parametrize("how", HOW)
def test_two_processes_equal_one_with_the_joint_batch(how: str, joint: dict[str, Any], ranks: Path) -> None:
    first, second = (torch.load(ranks / f"{how}{rank}.pt", weights_only=True) for rank in range(2))
    assert first["decisions"] == second["decisions"]
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name])
    assert first["state"]["freezing"] == second["state"]["freezing"]
    if how not in ("more", "micro"):  # there the first micro-batch alone decides
        assert first["decisions"] == joint["decisions"]
        for name, tensor in first["model"].items():
            torch.testing.assert_close(tensor, joint["model"][name], rtol=0, atol=1e-6)
        mine, whole = (found["state"]["freezing"]["state"]["fisher"] for found in (first, joint))
        assert mine == pytest.approx(whole, rel=1e-4)
    if how == "plain":
        for rank, seen in enumerate((first["refusals"], second["refusals"])):
            assert len(seen) == 3
            assert ("another rank" in seen[0]) == (rank == 0)
            assert "raise the compute budget" in seen[1]
            assert "without more" in seen[2]
