"""A network that grows when a task ends: optimizer, chain, prices, bytes and checkpoints go with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData
from budgeted.budget import Budget
from budgeted.learner import Learner, LearnerSettings, Settings, load, save
from budgeted.learner.state import BadCheckpoint, tensors_of, weights_digest
from budgeted.methods import METHODS
from tests.bright_rows import FACTS, samples
from tests.nets import seeded

TASK = 12


def branch(seed: int) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU()), seed)


class Branching(nn.Module):
    """A stem, branches whose outputs are added up, and a head; every task brings one more branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.branches = nn.ModuleList([branch(1)])
        self.head = nn.Linear(32, 1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        logits: Tensor = self.head(torch.stack([each(features) for each in self.branches]).sum(0))
        return logits

    def end_task(self) -> None:
        self.branches.append(branch(len(self.branches) + 1))


def made(name: str = "vanilla", fraction: float = 0.05, **more: object) -> Learner:
    freezing = {"ema": 0.3, "ema_start": "first"} if METHODS[name].freezing == "adaptive" else {}
    settings = Settings(LearnerSettings(batch_size=8, learning_rate=1e-3, sampled_fraction=fraction), freezing=freezing)
    given = {"slots": 20, "seed": 0, "settings": settings, **more}
    return Learner(seeded(Branching), METHODS[name], FACTS, **given)  # type: ignore[arg-type]


def feed(learner: Learner, start: int, end: int) -> None:
    for number, (image, label) in enumerate(samples(end)):
        if number >= start:
            learner.learn(image, label)
            if (number + 1) % TASK == 0:
                learner.end_task()


def branches(learner: Learner) -> int:
    assert isinstance(learner.model, Branching)
    return len(learner.model.branches)


METHODS_THAT_GROW = ["vanilla", "er", "al", "sar", "al-sar", "der++"]


@pytest.mark.parametrize("name", METHODS_THAT_GROW)
def test_a_grown_network_is_trained_and_charged_as_run(name: str) -> None:
    learner = made(name, fraction=0.0005)
    feed(learner, 0, TASK + 2)  # the grown network is priced, once
    assert branches(learner) == 2
    added = learner.model.get_parameter("branches.1.0.weight")
    before, charged = added.clone(), learner.ledger.spent.real
    with ExecutedOnData() as executed:
        feed(learner, TASK + 2, 2 * TASK - 1)
    assert not torch.equal(before, added)
    off = 0.012 if name == "al" else 0.006  # al was seen 1.1 % under, the others 0.6: the network is tiny
    assert learner.ledger.spent.real - charged == pytest.approx(executed.total, rel=off)
    assert {id(p) for p in learner.network.parameters()} == {id(p) for p in learner.model.parameters()}


def test_a_learner_without_tasks_for_its_method_has_them_for_its_network() -> None:
    assert made().boundaries
    assert not METHODS["vanilla"].boundaries


@pytest.mark.parametrize("name", METHODS_THAT_GROW)
def test_saved_and_loaded_it_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    learner = made(name)
    feed(learner, 0, 2 * TASK + 5)
    assert branches(learner) == 3
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", seeded(Branching, 9))
    assert branches(again) == 3
    assert again.network.tasks == 2
    for each in (learner, again):
        feed(each, 2 * TASK + 5, 3 * TASK + 7)
    assert branches(again) == branches(learner) == 4
    assert weights_digest(again) == weights_digest(learner)
    assert again.ledger.spent == learner.ledger.spent
    mine, other = tensors_of(learner), tensors_of(again)
    assert mine.keys() == other.keys()
    assert [key for key in mine if not torch.equal(mine[key].nan_to_num(-7.0), other[key].nan_to_num(-7.0))] == []


def test_a_checkpoint_of_a_grown_network_is_refused_by_one_that_cannot_grow(tmp_path: Path) -> None:
    learner = made()
    feed(learner, 0, TASK)
    save(learner, tmp_path / "saved")
    with pytest.raises(BadCheckpoint, match="it is of another model"):
        load(tmp_path / "saved", seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 1))))


def test_the_room_of_a_new_branch_is_taken_from_the_memory() -> None:
    budget = made(slots=200).nbytes()
    learner = made(slots=200, budget=Budget(bytes=budget))
    feed(learner, 0, TASK - 1)
    assert learner.memory.capacity == 200
    feed(learner, TASK - 1, 3 * TASK)
    per_slot = 64 + 1
    grown = 4 * (32 * 16 + 16 + 16 * 32 + 32)
    assert branches(learner) == 4
    assert learner.memory.capacity == 200 - -(-3 * grown // per_slot)
    assert budget - per_slot < learner.nbytes() <= budget


def test_a_removed_branch_leaves_nothing_behind() -> None:
    learner = made("al-sar")
    feed(learner, 0, TASK + 6)
    assert isinstance(learner.model, Branching)
    gone = [*learner.model.branches[0].parameters()]
    del learner.model.branches[0]
    learner.network.changed()
    left = {id(parameter) for parameter in learner.network.parameters()}
    assert not left & {id(parameter) for parameter in gone}
    assert not any(parameter in learner.optimizer.state for parameter in gone)
    feed(learner, TASK + 6, 2 * TASK - 1)
    assert all(torch.isfinite(parameter).all() for parameter in learner.model.parameters())
