"""LiDER: the term against exact singular values, which know nothing of power iteration; and over several methods."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner import Learner
from budgeted.learner.settings import setting_names
from budgeted.methods import METHODS, Method, Step, lider_over, method
from budgeted.methods.lider import LipschitzTerm, prepared, singular_vectors, spectral_norms, together
from budgeted.runs.config import RunConfig
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

LIDER = METHODS["lider"]


def matched(front: Tensor, latter: Tensor) -> tuple[Tensor, Tensor]:
    vectors = front.ndim == 2 or latter.ndim == 2
    return together(prepared(front, vectors), prepared(latter, vectors))


def lipschitz_constants(front: Tensor, latter: Tensor, iterations: int) -> Tensor:
    return spectral_norms(front, latter, *singular_vectors(front, latter, iterations))


def technique_of(learner: Learner) -> LipschitzTerm:
    assert isinstance(learner.method, LipschitzTerm)
    return learner.method


def largest(matrix: Tensor) -> Tensor:
    """Singular value, as the root of an eigenvalue."""
    eigenvalues: Tensor = torch.linalg.eigvalsh(matrix @ matrix.T)
    return eigenvalues[-1].sqrt()


def exact(front: Tensor, latter: Tensor) -> Tensor:
    """Position by position, then the largest eigenvalue of T T' by a dense solver, in double precision."""
    front, latter = front.double(), latter.double()
    if front.ndim == 2 or latter.ndim == 2:
        rows = [(front[i].flatten(), latter[i].flatten()) for i in range(len(front))]
        total = torch.stack([torch.outer(a / a.norm(), b / b.norm()) for a, b in rows]).mean(0)
        return largest(total)[None]
    found = []
    for a, b in zip(front, latter, strict=True):
        a, b = a / a.norm(dim=0), b / b.norm(dim=0)
        stride = a.shape[1] // b.shape[1]
        height, width = b.shape[1:]
        total = torch.zeros(len(a), len(b), dtype=torch.float64)
        for y, x in itertools.product(range(height), range(width)):
            patch = a[:, stride * y : stride * (y + 1), stride * x : stride * (x + 1)].mean((1, 2))
            total = total + torch.outer(patch, b[:, y, x])
        total = total / (height * width)
        found.append(largest(total))
    return torch.stack(found)


SHAPES = {
    "map to map": ((3, 4, 6, 6), (3, 7, 6, 6)),
    "map to smaller map": ((3, 5, 8, 8), (3, 9, 4, 4)),
    "more channels before": ((2, 9, 4, 4), (2, 3, 2, 2)),
    "map to vector": ((6, 2, 4, 4), (6, 5)),
    "vector to vector": ((6, 4), (6, 5)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_constants_and_their_gradients_are_those_of_a_dense_solver(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    front, latter = (torch.rand(shape, generator=generator).double().requires_grad_() for shape in SHAPES[name])
    found = lipschitz_constants(*matched(front, latter), iterations=200)
    expected = exact(front, latter)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    weights = torch.rand(len(found), generator=generator).double()
    for mine, other in zip(
        torch.autograd.grad((found * weights).sum(), (front, latter)),
        torch.autograd.grad((expected * weights).sum(), (front, latter)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


def test_signs_do_not_matter_to_the_start_of_the_iteration() -> None:
    generator = torch.Generator().manual_seed(4)
    front, latter = torch.randn(2, 5, 4, 4, generator=generator), torch.randn(2, 6, 4, 4, generator=generator)
    found = lipschitz_constants(*matched(front, latter), iterations=300)
    torch.testing.assert_close(found.double(), exact(front, latter), rtol=1e-4, atol=0)


def test_tokens_meet_maps() -> None:
    generator = torch.Generator().manual_seed(5)
    patches, tokens = torch.rand(2, 6, 3, 3, generator=generator), torch.rand(2, 10, 6, generator=generator)
    front, latter = matched(patches, tokens)
    assert front.shape == latter.shape == (2, 6, 9)
    same, _ = matched(tokens, tokens)
    torch.testing.assert_close(same, (tokens / tokens.norm(dim=2, keepdim=True)).transpose(1, 2))


def step_of(learner: Learner, new: int = 3, count: int = 8) -> Step:
    drawn = learner.memory.gather(np.arange(count))
    columns = {name: values[new:] for name, values in drawn.columns.items()}
    return Step(new, np.arange(new, count), learner.inputs_of(drawn.samples), drawn.labels, columns)


def block_outputs(learner: Learner, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One forward, with hooks of our own."""
    found: list[Tensor] = []
    names = learner.block_names()[:-1]
    handles = [
        learner.model.get_submodule(name).register_forward_hook(lambda m, i, out: found.append(out)) for name in names
    ]
    learner.model.train()
    logits: Tensor = learner.model(images)
    for handle in handles:
        handle.remove()
    return logits, found


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("base", ["er", "der++"])
def test_the_loss_is_the_methods_own_and_the_exact_term(base: str, ready: bool) -> None:
    own = {"target_weight": 0.7, "lipschitz_weight": 0.2, "power_iterations": 100, "target_steps": 5 if ready else 99}
    learner = learner_of(lider_over(METHODS[base]), "tiny", own=own)
    feed(learner, 0, 12)
    technique = technique_of(learner)
    assert (technique.averaged == 5) == ready
    targets, averaged = technique.targets.clone(), technique.averaged
    step = step_of(learner)
    logits, found = block_outputs(learner, step.inputs)
    loss = technique.loss(step, logits)

    features = [feature[step.new :] for feature in (step.inputs, *found)]
    constants = [exact(front, latter) for front, latter in itertools.pairwise(features)]
    expected = super(LipschitzTerm, technique).loss(step, logits).double()
    expected = expected + 0.2 * torch.stack([c.mean() for c in constants]).mean()
    if ready:
        away = [(c - t).abs().mean() for c, t in zip(constants, targets.double(), strict=True)]
        expected = expected + 0.7 * torch.stack(away).mean()
    else:
        means = torch.stack([c.mean() for c in constants]).float().detach()
        torch.testing.assert_close(
            technique.targets, targets + (means - targets) / (averaged + 1), rtol=1e-4, atol=1e-6
        )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-6)

    parameters = list(learner.model.parameters())
    mine = torch.autograd.grad(loss, parameters, retain_graph=True)
    other = torch.autograd.grad(expected, parameters)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-5)


def test_a_batch_of_the_stream_alone_has_no_term() -> None:
    learner = learner_of(lider_over(METHODS["er"]), "tiny")
    feed(learner, 0, 12)
    step = step_of(learner, new=8)
    logits, _ = block_outputs(learner, step.inputs)
    assert torch.equal(technique_of(learner).loss(step, logits), F.cross_entropy(logits, step.labels))


def constants_of(learner: Learner) -> float:
    step = step_of(learner)
    _, found = block_outputs(learner, step.inputs)
    pairs = itertools.pairwise([step.inputs, *found])
    return float(torch.stack([exact(front, latter).mean() for front, latter in pairs]).mean().detach())


def test_it_makes_the_blocks_less_steep() -> None:
    steep = {}
    for weight in (0.0, 30.0):
        learner = learner_of(LIDER, "tiny", own={"lipschitz_weight": weight, "target_weight": 0.0})
        feed(learner, 0, 36)
        steep[weight] = constants_of(learner)
    assert steep[30.0] < 0.9 * steep[0.0]


def test_without_weight_it_is_the_method_itself() -> None:
    mine = learner_of(LIDER, "tiny", own={"lipschitz_weight": 0.0, "target_weight": 0.0})
    other = learner_of(METHODS["der++"], "tiny")
    for learner in (mine, other):
        feed(learner, 0, 24)
    for a, b in zip(mine.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


COMPOSITIONS: dict[str, Method | type[Method]] = {
    "der++": LIDER,
    "vanilla": lider_over(METHODS["vanilla"]),
    "ewc": lider_over(METHODS["ewc"]),
    "cama, sar": lider_over(METHODS["cama"])().with_parts(retrieval="sar"),
    "der++, constant": LIDER().with_parts(freezing="constant"),
    "der++, adaptive": LIDER().with_parts(freezing="adaptive"),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_it_charges_what_it_executes_over_any_method(name: str) -> None:
    learner = learner_of(COMPOSITIONS[name], "tiny", own={"target_steps": 8})
    assert_charged_as_executed(learner, count=15, task=12)


def test_it_charges_what_it_executes_without_maps() -> None:
    assert_charged_as_executed(learner_of(LIDER, "mlp", own={"target_steps": 8}))


def test_settings_are_those_of_both() -> None:
    names = setting_names(lider_over(METHODS["ewc"])())
    assert {"method.strength", "method.window", "method.target_weight", "method.power_iterations"} <= set(names)
    assert {item.name for item in fields(LIDER) if item.init} >= {"alpha", "beta", "lipschitz_weight"}
    assert (LIDER.name, LIDER.stream_share) == ("lider", METHODS["der++"].stream_share)
    assert lider_over(METHODS["ewc"]).boundaries


def test_a_target_per_block_is_all_that_it_keeps() -> None:
    lider, der = (learner_of(METHODS[name], "tiny") for name in ("lider", "der++"))
    assert lider.nbytes() - der.nbytes() == 4 * 3 + 8  # and a counter


def test_closing_takes_the_hooks_off() -> None:
    def hooks(model: nn.Module) -> int:
        return sum(len(module._forward_hooks) for module in model.modules())

    learner = learner_of(LIDER, "tiny")
    assert hooks(learner.model) >= 3
    learner.close()
    assert hooks(learner.model) == 0


@pytest.mark.parametrize("base", ["der++", "ewc"])
def test_it_resumes_exactly(base: str, tmp_path: Path) -> None:
    method = LIDER if base == "der++" else lider_over(METHODS[base])
    learner = learner_of(method, own={"target_steps": 20})
    assert_resumes_exactly(learner, tmp_path / "saved", at=17, end=34, task=12)


@pytest.mark.parametrize(
    "own", [{"target_weight": -1.0}, {"lipschitz_weight": float("inf")}, {"target_steps": 0}, {"power_iterations": 0}]
)
def test_bad_settings_are_refused(own: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        learner_of(LIDER, own=own)


def test_it_goes_by_name_over_any_method_that_trains() -> None:
    for name in METHODS:
        # has the term already; runs no steps that it could be a term of; changes the blocks that it would hold down
        if name in ("lider", "gdumb") or METHODS[name].reshapes:
            with pytest.raises(BudgetedError, match=f"'{name}'"):
                method(f"lider-{name}")
            continue
        over = method(f"lider-{name}")
        assert (over.name, over.selection) == (f"lider-{name}", METHODS[name].selection)
        learner = learner_of(over)
        feed(learner, 0, 20, task=10)
        assert technique_of(learner).averaged > 0
    with pytest.raises(UnknownName):
        method("lider-nothing")


OWN = """
from dataclasses import dataclass

from budgeted.methods import Method


@dataclass
class Halved(Method):
    "half of the cross-entropy"

    factor: float = 0.5

    def loss(self, step, logits):
        return self.factor * super().loss(step, logits)
"""


def test_it_goes_over_a_method_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "halved.py").write_text(OWN)
    over = method("lider-halved.py:Halved", factor=0.25, lipschitz_weight=0.2)
    assert isinstance(over, LipschitzTerm)
    assert (over.name, over.factor) == ("lider-halved.py:Halved", 0.25)  # type: ignore[attr-defined]
    config = RunConfig(method="lider-halved.py:Halved", settings={"method.factor": "0.3"}).with_sources()
    assert config.method == f"lider-{tmp_path.resolve() / 'halved.py'}:Halved"
    assert list(config.sources) == [str(tmp_path.resolve() / "halved.py")]
    assert config.build_settings(False).method == {"factor": 0.3}
    learner = learner_of(config.build_method())
    feed(learner, 0, 12)
    assert technique_of(learner).averaged > 0
    (tmp_path / "lider-halved.py").write_text(OWN)  # a file of that very name is meant
    assert not issubclass(METHODS["lider-halved.py:Halved"], LipschitzTerm)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lider-nothing", "unknown method 'lider-nothing'"),
        ("lider-camma", "did you mean 'lider-cama'"),
        ("lider-lider", "has the Lipschitz term already"),
        ("lider-no.py:Such", "cannot read no.py"),
    ],
)
def test_what_it_cannot_go_over_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(BudgetedError, match=says) as refused:
        method(name)
    assert "\n" not in str(refused.value)
