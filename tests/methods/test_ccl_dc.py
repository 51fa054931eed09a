"""CCL-DC: both losses and their gradients by hand, the chain of views, two networks trained, saved and heard."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from budgeted.budget import Budget
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner import Learner
from budgeted.methods import METHODS, Method, Step, ccl_dc_over, method
from budgeted.methods.ccl_dc import Collaboration
from budgeted.methods.der import LOGITS
from budgeted.methods.masks import masked_weights
from budgeted.methods.sparcl import SparseContinualLearning
from budgeted.network import Network
from tests.bright_rows import FACTS, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

CCL_DC = METHODS["ccl-dc"]


def technique_of(learner: Learner) -> Collaboration:
    assert isinstance(learner.method, Collaboration)
    return learner.method


def step_of(learner: Learner, new: int = 3, count: int = 8) -> Step:
    drawn = learner.memory.gather(np.arange(count))
    columns = {name: values[new:] for name, values in drawn.columns.items()}
    inputs = learner.inputs_of(drawn.samples, augment=True)
    return Step(new, np.arange(new, count), inputs, drawn.labels, columns, drawn.samples)


class Heard:
    """Notes what a network was given beside the batch, and what it said: view by view."""

    def __init__(self, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._forward = network.forward_also
        monkeypatch.setattr(network, "forward_also", self.forward)

    def forward(self, inputs: Tensor, **how: Any) -> Tensor:
        outputs: Tensor = self._forward(inputs, **how)
        self.inputs += inputs.chunk(how["parts"])
        self.outputs += outputs.chunk(how["parts"])
        return outputs


def by_hand(own: Tensor, weight: float, views: list[Tensor], others: list[Tensor], labels: list[int]) -> Tensor:
    """One number at a time: a label weight of 0.3, a distillation of 0.7 at temperature 2.5."""
    loss = weight * own.double()
    for k, view in enumerate(views):
        teacher = others[3 if k == 3 else k + 1].detach().double()
        for i, label in enumerate(labels):
            row = view[i].double()
            loss = loss + 0.3 * (row.exp().sum().log() - row[label]) / len(labels)
            cold, taught = row / 2.5, [math.exp(value / 2.5) for value in teacher[i].tolist()]
            for c, chance in enumerate(value / sum(taught) for value in taught):
                surprise = math.log(chance) - (cold[c] - cold.exp().sum().log())
                loss = loss + 0.7 * 2.5**2 * chance * surprise / len(labels)
    return loss


@pytest.mark.parametrize(("base", "weight"), [("er", 0.3), ("der++", 1.0)])
def test_both_losses_and_their_gradients_are_those_written_by_hand(
    base: str, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"label_weight": 0.3, "distillation": 0.7, "kd_temperature": 2.5}
    learner = learner_of(ccl_dc_over(METHODS[base]), own=own, slots=20)
    feed(learner, 0, 18)
    technique, step = technique_of(learner), step_of(learner)
    heard = [Heard(network, monkeypatch) for network in (learner.network, technique.peer)]
    logits = learner.network.forward(step.inputs)
    loss = technique.loss(step, logits)
    peer_logits = technique.peer.forward(step.inputs)
    plain = METHODS[base].loss
    losses = (loss, technique._peer_loss)
    for network, mine, other, found, said in zip(
        (learner.network, technique.peer), heard, heard[::-1], losses, (logits, None), strict=True
    ):
        assert found is not None
        views = [mine._forward(inputs, moves=True) for inputs in mine.inputs] if said is None else mine.outputs
        said = peer_logits if said is None else said
        expected = by_hand(
            plain(technique.twin if network is technique.peer else technique, step, said), weight, views,
            other.outputs, step.labels.tolist(),
        )  # fmt: skip
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)
        parameters = list(network.model.parameters())
        gradients = torch.autograd.grad(found, parameters, retain_graph=True)
        for a, b in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        strangers = technique.peer if network is learner.network else learner.network
        alien = torch.autograd.grad(found, list(strangers.model.parameters()), allow_unused=True, retain_graph=True)
        assert all(gradient is None for gradient in alien)  # a teacher is not taught by its pupil's mistakes


def test_views_are_a_chain_from_easy_to_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(CCL_DC)
    feed(learner, 0, 8)
    technique, step, problem = technique_of(learner), step_of(learner), learner.problem
    links: list[tuple[Tensor, Tensor]] = []
    vary = problem.vary

    def noted(given: Tensor, generator: np.random.Generator) -> Tensor:
        links.append((given, vary(given, generator)))
        return links[-1][1]

    monkeypatch.setattr(problem, "vary", noted)
    heard = [Heard(network, monkeypatch) for network in (learner.network, technique.peer)]
    technique.loss(step, learner.network.forward(step.inputs))
    assert torch.equal(links[0][0], step.samples)
    assert all(torch.equal(links[k][1], links[k + 1][0]) for k in range(2))
    expected = [learner.inputs_of(each) for each in (step.samples, *(harder for _, harder in links))]
    for each in heard:
        assert len(each.inputs) == len(expected) == 4
        assert all(torch.equal(a, b) for a, b in zip(each.inputs, expected, strict=True))
    assert len({tuple(view.flatten().tolist()) for view in expected}) == 4


def apart(learner: Learner) -> float:
    images = learner.inputs_of(torch.stack([image for image, _ in samples(40)]))
    models = [learner.model.eval(), technique_of(learner).peer.model.eval()]
    mine, other = (model(images).detach().log_softmax(1) for model in models)
    return float((mine.exp() * (mine - other)).sum(1).mean())


def test_the_two_differ_and_teaching_alone_brings_them_together() -> None:
    found = {}
    for weight in (0.0, 1.0):
        learner = learner_of(CCL_DC, own={"distillation": weight, "label_weight": 0.0}, slots=30)
        before = next(technique_of(learner).peer.model.parameters()).detach().clone()
        assert not torch.equal(before, next(learner.model.parameters()))
        feed(learner, 0, 40)
        assert torch.equal(before, next(technique_of(learner).peer.model.parameters())) == (weight == 0)
        found[weight] = apart(learner)
    assert found[1.0] < 0.5 * found[0.0]


def test_predictions_are_made_from_the_mean_of_both() -> None:
    learner = learner_of(CCL_DC)
    feed(learner, 0, 24)
    images = torch.stack([image for image, _ in samples(10)])
    said: list[Tensor] = []
    for model in (learner.model, technique_of(learner).peer.model):
        with torch.no_grad():
            said.append(model.eval()(learner.inputs_of(images)))
    torch.testing.assert_close(learner.logits(images), (said[0] + said[1]) / 2)
    assert not torch.allclose(said[0], said[1], atol=1e-2)
    assert learner.predict(images).tolist() == (said[0] + said[1]).argmax(1).tolist()
    assert technique_of(learner).peer.linear_head.out_features == 4


def test_ten_forwards_and_ten_backwards_are_charged() -> None:
    mine, er = (learner_of(METHODS[name], "tiny") for name in ("ccl-dc", "er"))
    for learner in (mine, er):
        feed(learner, 0, 12)
    for purpose, times in (("forward", 10), ("backward", 10), ("optimizer", 2)):
        ratio = mine.ledger.spent_on[purpose].real / er.ledger.spent_on[purpose].real  # type: ignore[index]
        assert ratio == pytest.approx(times, rel=0.01), purpose


COMPOSITIONS: dict[str, Method | type[Method]] = {
    "er": CCL_DC,
    "er, sar, adaptive": CCL_DC().with_parts(retrieval="sar", freezing="adaptive"),
    "er, constant": CCL_DC().with_parts(freezing="constant"),
    "x-der": METHODS["ccl-dc-x-der"],
    "lider over it": METHODS["lider-ccl-dc"],
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_it_charges_what_it_executes_over_any_method(name: str) -> None:
    learner = learner_of(COMPOSITIONS[name], "tiny")
    assert_charged_as_executed(learner, count=10, task=8)
    assert learner.method.freezing != "constant" or learner.mean_frozen_share > 0.5


def test_stored_logits_are_the_mean_of_both() -> None:
    learner = learner_of(METHODS["ccl-dc-der++"], slots=30)
    said: list[list[Tensor]] = [[], []]

    def noting(number: int) -> Any:
        def note(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            if type(output) is Tensor and len(given[0]) and module.training:
                said[number].append(output.detach())

        return note

    for number, network in enumerate((learner.network, technique_of(learner).peer)):
        network.model.register_forward_hook(noting(number))
    feed(learner, 0, 3)  # a stream batch of three, three steps on it, two forwards in each: batch, views
    kept = learner.memory.gather(np.arange(3)).columns[LOGITS]
    last = [outputs[-2] for outputs in said]
    torch.testing.assert_close(kept[:, :1], (last[0][:3] + last[1][:3]) / 2)


def test_what_a_method_keeps_of_its_network_it_keeps_of_both() -> None:
    learner = learner_of(METHODS["ccl-dc-ewc"])
    feed(learner, 0, 16, task=12)
    technique: Any = technique_of(learner)
    weight = next(name for name, _ in technique.peer.model.named_parameters())
    assert technique.anchored
    assert technique.twin.anchored
    assert not torch.equal(technique.fisher[weight], technique.twin.fisher[weight])
    assert technique.twin.fisher[weight].abs().sum() > 0


def test_the_second_network_comes_off_the_memory() -> None:
    mine, er = (learner_of(METHODS[name], slots=10) for name in ("ccl-dc", "er"))
    network = sum(t.nbytes for t in (*er.model.parameters(), *er.model.buffers()))
    rows = 3 * 4 * (er.head.in_features + 1)  # reserved for three classes to come
    assert mine.nbytes() - er.nbytes() == network + rows
    budget = mine.nbytes() + 20 * mine.memory.nbytes() // 10
    less, more = (
        learner_of(METHODS[name], slots=None, budget=Budget(None, budget)).memory.capacity for name in ("ccl-dc", "er")
    )
    assert less == 30
    assert more == less + (network + rows) // (mine.memory.nbytes() // 10)
    before = mine.nbytes()
    feed(mine, 0, 24)
    assert mine.nbytes() == before


@pytest.mark.parametrize("name", ["ccl-dc-sparcl", "ccl-dc-trire"])
def test_methods_that_follow_their_network_from_the_first_moment_are_charged_and_resumed(
    name: str, tmp_path: Path
) -> None:
    facts = dataclasses.replace(FACTS, samples=36)
    assert_charged_as_executed(learner_of(METHODS[name], "tiny", facts=facts), 24, task=12)
    learner = learner_of(METHODS[name], "tiny", facts=facts)
    assert_resumes_exactly(learner, tmp_path / "saved", at=16, end=26, task=12, model="tiny")


def test_each_network_has_masks_of_its_own() -> None:
    learner = learner_of(METHODS["ccl-dc-sparcl"], "tiny")
    feed(learner, 0, 24)
    technique = technique_of(learner)
    assert isinstance(technique, SparseContinualLearning)
    assert isinstance(technique.twin, SparseContinualLearning)
    halves = ((technique, learner.network), (technique.twin, technique.peer))
    for half, network in halves:
        for name, weight in masked_weights(network).items():
            assert torch.equal(weight != 0, half.active[name])
            assert half.active[name].float().mean().item() == pytest.approx(half.density, abs=0.01)
    assert any(not torch.equal(mask, technique.twin.active[name]) for name, mask in technique.active.items())


def test_the_second_network_has_the_streams_half_apart_too(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(METHODS["ccl-dc-trire"], "tiny", facts=dataclasses.replace(FACTS, samples=36))
    feed(learner, 0, 12)
    seen: dict[int, int] = {}

    def noted(network: Network) -> None:
        gradients = network.gradients

        def counted(purpose: Any, inputs: Tensor, loss: Any, **how: Any) -> Any:
            seen[id(network)] = seen.get(id(network), 0) + len(inputs)
            return gradients(purpose, inputs, loss, **how)

        monkeypatch.setattr(network, "gradients", counted)

    networks = (learner.network, technique_of(learner).peer)
    for network in networks:
        noted(network)
    feed(learner, 12, 20)
    assert [seen[id(network)] for network in networks] == [8 * learner.stream_batch] * 2


@pytest.mark.parametrize("name", ["ccl-dc", "ccl-dc-ewc"])
def test_it_resumes_exactly(name: str, tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(METHODS[name]), tmp_path / "saved", at=16, end=26, task=12)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ccl-dc-nothing", "unknown method 'ccl-dc-nothing'"),
        ("ccl-dc-ccl-dc", "has a second network already"),
        ("ccl-dc-gdumb", "runs none"),
        ("ccl-dc-remind", "cannot read what 'remind' stores"),
    ],
)
def test_what_it_cannot_go_over_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(BudgetedError, match=says) as refused:
        method(name)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, UnknownName) == (name == "ccl-dc-nothing")


@pytest.mark.parametrize("own", [{"label_weight": -1.0}, {"distillation": -1.0}, {"kd_temperature": 0.0}])
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        learner_of(CCL_DC, own=own)
