"""A network that changes: freezing goes on with it, what stays keeps its averages, and every step is charged as run."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger
from budgeted.errors import BudgetedError
from budgeted.freezing import (
    POLICIES,
    AdaptivePrefix,
    Egeria,
    FreezingPolicy,
    LayerFreezing,
    NoBlockChain,
    StepView,
    TaskCorrelated,
    policy,
)
from budgeted.plugin import AdaptiveFreezing
from tests.nets import seeded

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(24, 10, generator=GENERATOR)
LABELS = torch.arange(24) % 3


def layer(inputs: int = 16, outputs: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())


class Branches(nn.Module):
    """A stem, branches whose outputs are added up, or stand side by side, and a head."""

    side_by_side = False

    def __init__(self) -> None:
        super().__init__()
        self.stem = layer(10)
        self.branches = nn.ModuleList([nn.Sequential(layer(), layer())])
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        made = [branch(features) for branch in self.branches]
        logits: Tensor = self.head(torch.cat(made, 1) if self.side_by_side else torch.stack(made).sum(0))
        return logits


def deep() -> nn.Sequential:
    return nn.Sequential(layer(10), layer(), nn.Linear(16, 3))


def deepen(model: nn.Module) -> list[nn.Parameter]:
    """One more layer before the head, whose number changes."""
    assert isinstance(model, nn.Sequential)
    new = seeded(layer, 7)
    model.insert(2, new)
    return [*new.parameters()]


def branch_off(model: nn.Module) -> list[nn.Parameter]:
    assert isinstance(model, Branches)
    new = seeded(lambda: nn.Sequential(layer(), layer()), 7)
    model.branches.append(new)
    return [*new.parameters()]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], list[nn.Parameter]]]] = {
    "a deeper chain": (deep, deepen),
    "a second branch": (Branches, branch_off),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "constant": {"n": 1},
    "linear": {"n_max": 2, "steps": 9},
    "random": {"n_max": 2},
    "adaptive": {"ema": 0.5, "ema_start": "first", "refresh_every": 2},
    "egeria": {"period": 2, "window": 2, "tolerance": 0.9},
    "ptlf": {"n_max": 2, "tasks": 2, "stretch": 3, "probe": 1, "columns": 8, "rank": 4},
}


def train(
    freezing: LayerFreezing, optimizer: torch.optim.Optimizer, steps: int, executed: ExecutedOps | None = None
) -> list[frozenset[int]]:
    """Steps whose charge is compared with what was executed, if that is counted."""
    frozen = []
    for _ in range(steps):
        assert freezing.ledger is not None
        before, spent = 0 if executed is None else executed.total, freezing.ledger.spent.real
        optimizer.zero_grad()
        done = freezing.backward(cross_entropy(freezing.model(INPUTS), LABELS))
        optimizer.step()
        frozen.append(done.frozen)
        if executed is not None:
            assert freezing.ledger.spent.real - spent == pytest.approx(executed.total - before, rel=0.01)
    return frozen


def attached(name: str, of: FreezingPolicy) -> tuple[LayerFreezing, torch.optim.Optimizer]:
    model = seeded(NETWORKS[name][0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    return LayerFreezing(model, of, INPUTS, optimizer=optimizer, ledger=Ledger(), loss="graph"), optimizer


def grow(name: str, freezing: LayerFreezing, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": NETWORKS[name][1](freezing.model)})
    freezing.changed()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_goes_on_and_is_charged_as_executed(
    name: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("budgeted.freezing.ptlf.decomposition_price", lambda rows, columns: 0)  # numpy is not counted
    freezing, optimizer = attached(network, policy(name, **SETTINGS.get(name, {})))
    train(freezing, optimizer, 5)
    blocks = len(freezing.chain)
    grow(network, freezing, optimizer)
    assert len(freezing.chain) > blocks
    assert freezing.step == 5
    freezing.backward(cross_entropy(freezing.model(INPUTS), LABELS))  # new shapes are traced
    with ExecutedOps() as executed:
        train(freezing, optimizer, 6, executed)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in freezing.model.modules())
    fresh = LayerFreezing(freezing.model, policy(name, **SETTINGS.get(name, {})), INPUTS, loss="graph")
    both = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in freezing.model.modules())
    assert both == 2 * hooks  # none of the old ones is left
    fresh.remove()
    freezing.remove()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in freezing.model.modules())


@pytest.mark.parametrize("network", NETWORKS)
def test_blocks_that_stay_keep_their_fisher_traces_and_new_ones_start_anew(network: str) -> None:
    al = AdaptivePrefix(ema=0.5, ema_start="corrected", refresh_every=2)
    freezing, optimizer = attached(network, al)
    train(freezing, optimizer, 6)
    before, gradient, updates = dict(al.fisher), al.gradient, dict(al.updates)
    old = {id(p): name for name, p in freezing.model.named_parameters()}
    owners = {name: block.name for block in freezing.chain.blocks for name in block.parameters}
    grow(network, freezing, optimizer)
    new = []
    for block in freezing.chain.blocks:
        was = old.get(id(freezing.model.get_parameter(block.parameters[0])))
        if was is None:
            new.append(block.name)
            assert al.fisher[block.name] == 0
        else:
            assert al.fisher[block.name] == before[owners[was]] > 0
    assert new
    assert list(al.fisher) == list(freezing.chain.names)
    assert (al.gradient, al.updates) == (gradient, updates)  # the head, and so the last feature, is the same
    assert al.nbytes() == 8 * (len(freezing.chain) + 3) + 8 * len(new)

    places = [freezing.chain.names.index(name) for name in new]
    rested: list[bool] = []
    for _ in range(8):
        looked_at = not any(al._unknown(name) for name in new)
        (frozen,) = train(freezing, optimizer, 1)
        assert looked_at or not frozen & set(places)  # what nobody has looked at does not rest
        rested.append(looked_at)
    assert rested[-1]
    trace = al._trace(new[0])
    assert trace == pytest.approx(al.fisher[new[0]] / (1 - 0.5**4))  # its own four updates, not all seven
    freezing.remove()


@pytest.mark.parametrize("start", ["zero", "corrected"])
def test_the_trace_of_a_younger_block_is_as_if_it_were_as_old(start: str) -> None:
    """Two blocks with the same gradients in every step have the same trace, whenever they came."""
    al = AdaptivePrefix(ema=0.1, refresh_every=1, ema_start=start)  # type: ignore[arg-type]
    al.updates["fisher"], al.since = 5, {"1": 5}
    al.fisher = {"0": 3.0 * (1 - 0.9**5), "1": 0.0, "2": 1.0}
    assert al._unknown("1")
    for step in range(4):
        view = StepView(step, 3, lambda: 10, lambda: [0, 1, 2], lambda: 1.0, lambda: [3.0, 3.0, 1.0])
        al.after_backward(view, al.decide(view))
        assert al._trace("1") == pytest.approx(al._trace("0"))


def test_a_head_that_reads_other_features_starts_the_gradients_average_anew() -> None:
    al = AdaptivePrefix(ema=0.5)
    freezing, optimizer = attached("a second branch", al)
    train(freezing, optimizer, 4)
    model = freezing.model
    assert isinstance(model, Branches)
    model.branches.append(nn.Sequential(layer(), layer()))
    model.head, model.side_by_side = nn.Linear(32, 3), True
    freezing.changed(INPUTS)
    assert (al.gradient, al.updates["gradient"], al.fisher["head"]) == (0.0, 0, 0.0)
    assert al.fisher["stem.0"] > 0
    freezing.remove()


def test_egeria_keeps_its_front_and_its_reference() -> None:
    egeria = Egeria(period=2, window=2)
    freezing, optimizer = attached("a deeper chain", egeria)
    train(freezing, optimizer, 5)
    egeria.front = 1
    egeria.values.append(0.5)
    old = {name: tensor.clone() for name, tensor in egeria.reference.items()}
    grow("a deeper chain", freezing, optimizer)
    assert (egeria.front, list(egeria.values)[-1]) == (1, 0.5)
    assert torch.equal(egeria.reference["0.0.weight"], old["0.0.weight"])
    assert torch.equal(egeria.reference["3.weight"], old["2.weight"])  # the head has another number
    assert torch.equal(egeria.reference["2.0.weight"], freezing.model.get_parameter("2.0.weight"))
    assert freezing.nbytes() == sum(4 * p.numel() for p in freezing.model.parameters()) + 8 * 7
    train(freezing, optimizer, 3)
    freezing.model.insert(0, layer(10, 10))  # type: ignore[operator]
    freezing.changed()
    assert (egeria.front, list(egeria.values)) == (0, [])  # the new first block is to be watched
    freezing.remove()


def test_ptlf_keeps_the_bases_of_layers_that_stay() -> None:
    ptlf = TaskCorrelated(**SETTINGS["ptlf"])
    freezing, optimizer = attached("a deeper chain", ptlf)
    train(freezing, optimizer, 5)
    assert {name for name, rests in ptlf.rests.items() if rests} == {"0.0", "1.0"}
    old = {name: basis.clone() for name, basis in ptlf.bases.items()}
    freezing.model.insert(1, layer())  # type: ignore[operator]
    freezing.changed()
    assert torch.equal(ptlf.bases["0.0"], old["0.0"])
    assert torch.equal(ptlf.bases["2.0"], old["1.0"])
    assert not ptlf.bases["1.0"].any()
    assert {name for name, rests in ptlf.rests.items() if rests} == {"0.0", "2.0"}
    assert train(freezing, optimizer, 1) == [frozenset({0, 2})]
    freezing.remove()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["adaptive", "egeria", "ptlf"])
def test_saved_after_growth_it_goes_on_the_same(name: str, network: str) -> None:
    make, grown = NETWORKS[network]
    freezing, optimizer = attached(network, policy(name, **SETTINGS[name]))
    train(freezing, optimizer, 5)
    grow(network, freezing, optimizer)
    train(freezing, optimizer, 3)
    as_tensors = {key: tensor.clone() for key, tensor in freezing.state().items()}
    state = freezing.state_dict()
    if name == "adaptive":
        state = json.loads(json.dumps(state))
    small = LayerFreezing(seeded(make), policy(name, **SETTINGS[name]), INPUTS, loss="graph")
    with pytest.raises(BudgetedError, match="of a model with other blocks") as error:
        small.load_state_dict(state)
    assert "\n" not in str(error.value)

    model, moments = copy.deepcopy(freezing.model.state_dict()), copy.deepcopy(optimizer.state_dict())
    decided = train(freezing, optimizer, 5)
    for way in ("state", "state_dict"):
        twin = seeded(make)
        grown(twin)
        twin.load_state_dict(model)
        again = torch.optim.SGD([{"params": []}, {"params": []}], lr=0.05, momentum=0.9, foreach=False)
        for group, mine in zip(again.param_groups, optimizer.param_groups, strict=True):
            names = {id(p): key for key, p in freezing.model.named_parameters()}
            group["params"] = [twin.get_parameter(names[id(p)]) for p in mine["params"]]
        again.load_state_dict(copy.deepcopy(moments))
        resumed = LayerFreezing(
            twin, policy(name, **SETTINGS[name]), INPUTS, optimizer=again, ledger=Ledger(), loss="graph"
        )
        if way == "state":
            resumed.load_state(as_tensors)
        else:
            resumed.load_state_dict(state)
        assert train(resumed, again, 5) == decided
        for key, tensor in freezing.model.state_dict().items():
            assert torch.equal(tensor, twin.state_dict()[key])
        resumed.remove()


def test_a_change_inside_an_optimizer_step_is_refused() -> None:
    freezing, optimizer = attached("a deeper chain", AdaptivePrefix())
    freezing.backward(cross_entropy(freezing.model(INPUTS), LABELS), more=True)
    optimizer.add_param_group({"params": deepen(freezing.model)})
    with pytest.raises(BudgetedError, match="changed inside an optimizer step: end the step") as error:
        freezing.changed()
    assert "\n" not in str(error.value)
    freezing.end_step()
    freezing.changed()
    train(freezing, optimizer, 2)
    freezing.remove()
    with pytest.raises(BudgetedError, match="was removed"):
        freezing.changed()


def test_a_change_that_cannot_be_followed_leaves_everything_as_it_was() -> None:
    freezing, optimizer = attached("a deeper chain", AdaptivePrefix(ema=0.5))
    train(freezing, optimizer, 3)
    state, head = freezing.state_dict(), freezing.model[2]  # type: ignore[index]
    freezing.model[2] = nn.LSTM(16, 3)  # type: ignore[operator]
    with pytest.raises(BudgetedError):
        freezing.changed()
    freezing.model[2] = head  # type: ignore[operator]
    assert freezing.state_dict() == state
    train(freezing, optimizer, 2)
    freezing.remove()


def test_a_loss_from_before_the_change_is_refused() -> None:
    freezing, optimizer = attached("a deeper chain", AdaptivePrefix())
    loss = cross_entropy(freezing.model(INPUTS), LABELS)
    grow("a deeper chain", freezing, optimizer)
    with pytest.raises(BudgetedError, match="without a training forward"):
        freezing.backward(loss)
    freezing.remove()


def test_the_plug_in_goes_on_with_a_changed_model() -> None:
    model = seeded(deep)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5, ema_start="first")

    def step() -> None:
        optimizer.zero_grad()
        freezing.backward(cross_entropy(model(INPUTS), LABELS))
        optimizer.step()

    for _ in range(3):
        step()
    optimizer.add_param_group({"params": deepen(model)})
    with pytest.raises(NoBlockChain, match=r"call changed\(\)"):
        model(INPUTS)
    freezing.changed()
    step()
    spent = freezing.spent.real
    with ExecutedOps() as executed:
        step()
    assert freezing.spent.real - spent == pytest.approx(executed.total, rel=0.01)
    assert [block.name for block in freezing.chain.blocks] == ["0.0", "1.0", "2.0", "3"]
    freezing.remove()
