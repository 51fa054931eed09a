"""Muon: against torch's own on matrices, against singular vectors, against Adam on the rest; priced as executed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from budgeted import models
from budgeted.audit import ExecutedOnData, ExecutedOps
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.learner import load, save
from budgeted.learner.optimizers import make_optimizer, matrices_and_rest
from budgeted.learner.settings import LearnerSettings
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.network.muon import Muon, orthogonal
from tests.bright_rows import FACTS, samples
from tests.learner.small import make, settings_of, tiny


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (8, 8)])
def test_matrices_move_as_with_torch(shape: tuple[int, int]) -> None:
    """As far as torch's bfloat16 lets them: a hundredth of the way."""
    ours, theirs = (nn.Parameter(drawn(*shape)) for _ in range(2))
    settings = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    optimizers = (
        Muon([ours], **settings),  # type: ignore[arg-type]
        torch.optim.Muon([theirs], **settings, adjust_lr_fn="match_rms_adamw"),  # type: ignore[arg-type]
    )
    start = ours.detach().clone()
    for step in range(5):
        ours.grad = theirs.grad = drawn(*shape, seed=step + 1)
        for optimizer in optimizers:
            optimizer.step()
    way = (theirs - start).norm()
    assert way > 0.1
    assert (ours - theirs).norm() < 0.02 * way


def test_the_update_has_the_singular_vectors_of_the_momentum() -> None:
    matrices = drawn(3, 12, 30)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    for found, u, v in zip(orthogonal(matrices, 5), left, right, strict=True):
        values = u.mT @ found @ v.mT
        assert ((values.diag() > 0.6) & (values.diag() < 1.3)).all()
        assert (values - values.diag().diag()).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(2, 16, 144), (1, 24, 24), (2, 64, 576), (1, 30, 12)])
@pytest.mark.parametrize("rank", [None, 3])
def test_the_iterations_are_those_of_the_paper(shape: tuple[int, int, int], rank: int | None) -> None:
    """X <- aX + b(XX')X + c(XX')(XX')X, five times, in float64; also where most singular values are 0."""
    matrices = drawn(*shape)
    if rank:
        matrices = matrices[:, :, :rank] @ drawn(shape[0], rank, shape[2], seed=1)
    expected = matrices.double() / matrices.double().norm(dim=(1, 2), keepdim=True)
    for _ in range(5):
        square = expected @ expected.mT
        expected = 3.4445 * expected - 4.775 * square @ expected + 2.0315 * square @ square @ expected
    torch.testing.assert_close(orthogonal(matrices, 5).double(), expected, rtol=0, atol=2e-4)


def test_a_convolution_is_the_matrix_of_its_outputs() -> None:
    layout = torch.channels_last
    kernel = nn.Parameter(drawn(8, 4, 3, 3).contiguous(memory_format=layout))
    matrix = nn.Parameter(kernel.detach().reshape(8, 36).clone())
    for parameter in (kernel, matrix):
        optimizer = Muon([parameter], lr=0.01)
        for step in range(3):
            gradient = drawn(8, 4, 3, 3, seed=step + 1)
            parameter.grad = (
                gradient.contiguous(memory_format=layout) if parameter is kernel else gradient.reshape(8, 36)
            )
            optimizer.step()
    torch.testing.assert_close(kernel.reshape(8, 36), matrix, rtol=1e-5, atol=1e-6)
    assert kernel.is_contiguous(memory_format=layout)


def test_vectors_and_heads_move_as_with_adamw() -> None:
    mine = [nn.Parameter(drawn(5)), nn.Parameter(drawn(3, 5))]
    theirs = [nn.Parameter(p.detach().clone()) for p in mine]
    muon = Muon([{"params": mine[1:], "orthogonal": False}, {"params": mine[:1]}], 0.01, weight_decay=0.1)
    adam = AdamW(theirs, 0.01, weight_decay=0.1, fused=True)
    for step in range(4):
        for a, b in zip(mine, theirs, strict=True):
            a.grad = b.grad = drawn(*a.shape, seed=step)
        muon.step()
        adam.step()
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)


def test_its_price_is_what_is_executed_whatever_rests() -> None:
    model = tiny()
    muon = Muon(model.parameters(), weight_decay=0.1)
    price = OptimizerPrice(muon)
    parameters = list(model.parameters())
    for moving in (parameters, parameters[3:]):
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter) if any(parameter is m for m in moving) else None
            with ExecutedOps() as executed:
                muon.step()
        assert price.step(moving).real == pytest.approx(executed.total, rel=0.01)


def test_a_large_matrix_is_priced_without_running_it() -> None:
    """Its iterations would be 6e12 operations, eight steps of them watched: minutes instead of moments."""
    large = nn.Parameter(torch.empty(4096, 16384, device="meta"))
    rows, columns = large.shape
    products = 17 * 2 * rows**3 + 2 * 2 * rows**2 * columns  # of five iterations
    assert OptimizerPrice(Muon([large])).step([large]).real == pytest.approx(products, rel=0.01)


def test_convolutions_and_linear_layers_below_the_head_are_matrices() -> None:
    model = models.build("vit-tiny", classes=3, input_shape=(3, 32, 32), seed=0)
    matrices, rest = matrices_and_rest(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert len(matrices) + len(rest) == len(names)
    assert {names[id(parameter)] for parameter in rest if parameter.ndim > 1} >= {"head.weight"}
    owners = {model.get_submodule(names[id(parameter)].removesuffix(".weight")) for parameter in matrices}
    assert owners == {m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))} - {model.head}


@pytest.mark.parametrize(("side", "share", "left"), [(32, 0.5, 0), (8, 0.5, 6), (8, 2.0, 0), (8, 0.1, 12)])
def test_a_layer_is_muons_where_its_iterations_are_worth_it(side: int, share: float, left: int) -> None:
    """ResNet-20 has six convolutions with 64 outputs (one of them reads 32) and six with 32; at 8 x 8 pixels they see
    2 x 2 and 4 x 4 places."""
    model = models.build("resnet20", classes=10, input_shape=(3, side, side), seed=0)
    settings = LearnerSettings(optimizer="muon", muon_share=share)
    muon = make_optimizer(settings, model, torch.empty(2, 3, side, side, device="meta"))
    rest, matrices = (group["params"] for group in muon.param_groups)
    assert len(rest) + len(matrices) == len(list(model.parameters()))
    kernels = [p for p in rest if p.ndim == 4 and p.shape[2] == 3]
    assert len(kernels) == left
    price = OptimizerPrice(Muon(model.parameters()))
    places = {16: side**2, 32: side**2 // 4, 64: side**2 // 16}
    for kernel in (p for p in model.parameters() if p.ndim == 4 and p.shape[2] == 3):
        own = 6 * settings.batch_size * places[len(kernel)] * kernel.numel()
        assert any(kernel is each for each in kernels) == (price.step([kernel]).real > share * own)


def test_vectors_are_not_worth_it() -> None:
    model = models.build("mlp", classes=10, input_shape=(1, 8, 8), seed=0)
    muon = make_optimizer(LearnerSettings(optimizer="muon"), model, torch.empty(2, 1, 8, 8, device="meta"))
    assert not muon.param_groups[1]["params"]


@pytest.mark.parametrize("name", ["vanilla", "al-sar"])
def test_a_learner_is_charged_as_run_and_resumed_exactly(name: str, tmp_path: Path) -> None:
    settings = settings_of(METHODS[name], optimizer="muon", schedule="cosine")
    learner = make(name, tiny(), dataclasses.replace(FACTS, samples=32), settings=settings)
    stream = list(samples(32))
    for image, label in stream[:20]:
        learner.learn(image, label)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        for image, label in stream[20:]:
            learner.learn(image, label)
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.01)
    for image, label in stream[20:]:
        again.learn(image, label)
    assert weights_digest(learner) == weights_digest(again)
    assert len(learner.class_labels) == 4
