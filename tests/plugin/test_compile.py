"""Blocks compiled one by one: same chain, same gradients, priced as their backward is executed, as a whole.

The backend `aot_eager` takes the forward apart into a forward and a backward graph as every backend does, but runs both
through the dispatcher, where the audit sees them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.errors import BudgetedError
from budgeted.freezing import NoBlockChain
from budgeted.plugin import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval
from tests.nets import SeparableNet, images, seeded

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own

BLOCKS = ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(how: str) -> SeparableNet:
    model = seeded(SeparableNet)
    assert isinstance(model, SeparableNet)
    if how == "in place":
        for module in (model.stem, *model.blocks, model.head):
            module.compile(backend="aot_eager")
    elif how == "wrapped":
        model.stem = torch.compile(model.stem, backend="aot_eager")  # type: ignore[assignment]
        model.head = torch.compile(model.head, backend="aot_eager")  # type: ignore[assignment]
        for number, block in enumerate(model.blocks):
            model.blocks[number] = torch.compile(block, backend="aot_eager")  # type: ignore[assignment]
    return model


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    return images(torch.Generator().manual_seed(0))


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_blocks_gradients_and_price(how: str, batch: tuple[Tensor, Tensor]) -> None:
    inputs, targets = batch
    plain, model = compiled("not"), compiled(how)
    F.cross_entropy(plain(inputs), targets).backward()
    full = [parameter.grad for parameter in plain.parameters()]
    for n in (0, 2, 3):
        freezing = AdaptiveFreezing(model, policy="constant", n=n)
        for measured in (False, True):  # the first backward of a shape compiles it
            model.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            with ExecutedOps(strict=measured) as executed:
                done = freezing.backward(loss)
        assert [block.name for block in freezing.chain.blocks] == BLOCKS
        assert done.costs["backward"].real == pytest.approx(executed.total, rel=0.01)
        resting = freezing.chain.frozen_parameters(range(n))
        assert len(resting) == sum(len(block.parameters) for block in freezing.chain.blocks[:n])
        for (name, parameter), gradient in zip(model.named_parameters(), full, strict=True):
            if name in resting:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
        freezing.remove()


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_adaptive_freezing_decides_as_without_the_compiler(how: str, batch: tuple[Tensor, Tensor]) -> None:
    """Prices differ at the boundary, so the criterion is compared by what it looks at."""
    looked = []
    for way in ("not", how):
        model = compiled(way)
        freezing = AdaptiveFreezing(model, ema=0.5)
        for _ in range(2):
            model.zero_grad()
            freezing.backward(F.cross_entropy(model(batch[0]), batch[1]))
        looked.append((freezing.policy.gradient, freezing.policy.fisher))  # type: ignore[attr-defined]
        assert freezing.ledger.spent_on["fisher"].real < 3 * freezing.ledger.spent_on["forward"].real
    assert looked[0][0] == pytest.approx(looked[1][0], rel=1e-4)
    assert looked[0][1] == pytest.approx(looked[1][1], rel=1e-4)


def test_a_model_compiled_as_a_whole_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    model = compiled("not")
    with pytest.raises(BudgetedError, match="compile each block by itself"):
        AdaptiveFreezing(torch.compile(model, backend="aot_eager"))  # type: ignore[arg-type]
    model.compile(backend="aot_eager")
    with pytest.raises(BudgetedError, match="compile each block by itself"):
        AdaptiveFreezing(model)
    stages = compiled("not")
    stages.blocks.compile(backend="aot_eager")
    with pytest.raises(NoBlockChain, match=r"blocks is compiled .*blocks\.0, blocks\.1"):
        AdaptiveFreezing(stages, example=batch[0])


def test_retrieval_does_not_read_gradients_inside_compiled_code(batch: tuple[Tensor, Tensor]) -> None:
    memory = ReplayMemory(4)
    with pytest.raises(BudgetedError, match="compiled"):
        SimilarityAwareRetrieval(compiled("in place"), memory, exclude=["head"])
    others = [*(f"blocks.{i}" for i in range(3)), "head"]
    model = compiled("not")
    for block in model.blocks:
        block.compile(backend="aot_eager")
    assert isinstance(model.stem, nn.Conv2d)
    retrieval = SimilarityAwareRetrieval(model, memory, exclude=others, fraction=0.5)
    assert retrieval.sampled is not None
    assert {coordinate.parameter for coordinate in retrieval.sampled.coordinates} <= {"stem.weight", "stem.bias"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend compiles C++")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler's own imports
def test_the_default_backend() -> None:
    """The audit does not see its kernels; the gradients are those of a full backward, and what rests has none."""

    def network() -> nn.Sequential:
        net = seeded(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(20, 20), nn.GELU()) for _ in range(3)]))
        assert isinstance(net, nn.Sequential)
        return net.append(seeded(lambda: nn.Linear(20, 5)))

    inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(3))
    targets = inputs[:, :5].argmax(1)
    plain, model = network(), network()
    F.cross_entropy(plain(inputs), targets).backward()
    for block in list(model)[:-1]:
        block.compile()
    freezing = AdaptiveFreezing(model, policy="constant", n=2)
    freezing.backward(F.cross_entropy(model(inputs), targets))
    for number, (full, parameter) in enumerate(zip(plain.parameters(), model.parameters(), strict=True)):
        if number < 4:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, full.grad, rtol=1e-5, atol=1e-7)
