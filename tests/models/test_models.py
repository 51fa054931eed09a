"""The networks have the wiring, size and published cost they claim, and come from their seed alone."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from budgeted import models
from budgeted.errors import BudgetedError, UnknownName
from budgeted.models import registry
from budgeted.models.initialise import initialised

SMALL, LARGE = (3, 32, 32), (3, 224, 224)


def backbone_parameters(model: nn.Module) -> int:
    head = model.get_submodule("head")
    return sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in head.parameters())


def count_forward(model: nn.Module, shape: tuple[int, int, int], price: Callable[..., int]) -> int:
    """Sum of `price(module, input, output)` over the leaf modules that one image passes through."""
    total = 0

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += price(module, inputs[0], output)

    handles = [m.register_forward_hook(note) for m in model.modules() if not list(m.children())]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    return total


def macs(module: nn.Module, given_: Tensor, made: Tensor) -> int:
    if isinstance(module, nn.Conv2d | nn.Linear):
        return made.numel() * module.weight[0].numel()
    return 0


def paper_forward(module: nn.Module, given_: Tensor, made: Tensor) -> int:
    if isinstance(module, nn.Conv2d | nn.Linear):
        bias = 0 if module.bias is None else made.numel()
        return macs(module, given_, made) + bias
    if isinstance(module, nn.BatchNorm2d):
        return 7 * made.numel()
    if isinstance(module, nn.ReLU):
        return made.numel()
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return given_.numel()
    assert isinstance(module, nn.Identity | nn.Flatten) or getattr(module, "outside_paper_count", False)
    return 0


def paper_both_ways(module: nn.Module, given_: Tensor, made: Tensor) -> int:
    forward = paper_forward(module, given_, made)
    if isinstance(module, nn.Conv2d | nn.Linear):
        return 3 * forward
    if isinstance(module, nn.BatchNorm2d):
        return (7 + 15) * made.numel()
    return 2 * forward


@pytest.mark.parametrize(("name", "parameters"), [("resnet32", 466_256), ("resnet18", 11_176_512)])
def test_backbone_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    shape = LARGE if name == "resnet18" else SMALL
    assert backbone_parameters(models.build(name, input_shape=shape)) == parameters


@pytest.mark.parametrize(
    ("name", "shape", "forward", "backward"),
    [
        ("resnet32", SMALL, 71_651_393, 143_298_690),
        ("resnet32", LARGE, 248_785_217, 497_557_890),
        ("resnet18", LARGE, 1_833_456_641, 3_666_888_194),
    ],
)
def test_forward_and_backward_cost_what_the_paper_counted(
    name: str, shape: tuple[int, int, int], forward: int, backward: int
) -> None:
    model = models.build(name, input_shape=shape)
    assert count_forward(model, shape, paper_forward) == forward
    assert count_forward(model, shape, paper_both_ways) == forward + backward


@pytest.mark.parametrize(("name", "printed"), [("cnn8-wide", 506.54), ("cnn16-wide", 1236.51), ("cnn32-wide", 2696.46)])
def test_wide_plain_cnns_meet_the_printed_cost_of_a_cifar10_run(name: str, printed: float) -> None:
    per_image = count_forward(models.build(name), SMALL, paper_both_ways)
    assert round(per_image * 799_880 / 1e12, 2) == printed


def test_standard_resnet18_is_the_one_everybody_knows() -> None:
    model = models.build("resnet18-standard", classes=1000, input_shape=LARGE)
    assert sum(p.numel() for p in model.parameters()) == 11_689_512
    assert count_forward(model, LARGE, macs) == 1_814_073_344


@pytest.mark.parametrize("layers", [18, 20, 32, 56])
def test_depth_in_the_name_counts_the_weight_layers(layers: int) -> None:
    for name in (f"resnet{layers}", f"resnet{layers}-standard"):
        weights = [m for m in models.build(name).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        projections = [m for m in weights if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
        assert len(weights) - len(projections) == layers
        assert len(projections) == (3 if layers == 18 else 2)


@pytest.mark.parametrize(("depth", "shares"), [(8, (3, 2, 2)), (16, (5, 5, 5)), (32, (11, 10, 10))])
def test_plain_cnn_shares_its_convolutions_out(depth: int, shares: tuple[int, int, int]) -> None:
    model = models.build(f"cnn{depth}")
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    widths = [width for width, share in zip((16, 32, 64), shares, strict=True) for _ in range(share)]
    assert [c.out_channels for c in convolutions] == widths
    assert [c.stride[0] for c in convolutions].count(2) == 2
    assert len(convolutions) + 1 == depth


def normalised(x: Tensor, state: dict[str, Tensor], conv: str, stride: int, epsilon: float) -> Tensor:
    """Convolution and batch norm in training mode, from the tensors of one unit."""
    weight = state[f"{conv}.0.weight"]
    y = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    mean = y.mean((0, 2, 3), keepdim=True)
    variance = y.var((0, 2, 3), keepdim=True, unbiased=False)
    return (y - mean) / (variance + epsilon).sqrt()


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("name", ["resnet20", "resnet20-standard"])
def test_basic_block_follows_its_variant(name: str, stage: int) -> None:
    block = models.build(name, seed=3).get_submodule(f"stages.{stage}.0").double()
    state = block.state_dict()
    images = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stride = 1 if stage == 0 else 2
    published = not name.endswith("-standard")
    epsilon = 1e-6 if published else 1e-5
    body = normalised(images, state, "body.0", stride, epsilon).relu()
    body = normalised(body, state, "body.1", 1, epsilon)
    shortcut = images if stage == 0 else normalised(images, state, "shortcut", stride, epsilon)
    if published:
        expected = body.relu() + (shortcut if stage == 0 else shortcut.relu())
    else:
        expected = (body + shortcut).relu()
    torch.testing.assert_close(block.train()(images), expected, rtol=1e-10, atol=1e-10)


def test_large_images_meet_the_large_stem_whose_pool_the_paper_did_not_count() -> None:
    small = models.build("resnet20", input_shape=(3, 127, 127)).get_submodule("stem")
    large = models.build("resnet20", input_shape=(3, 128, 128)).get_submodule("stem")
    assert small(torch.zeros(1, 3, 127, 127)).shape == (1, 16, 127, 127)
    assert large(torch.zeros(1, 3, 128, 128)).shape == (1, 16, 32, 32)
    pools = [m for m in large.modules() if isinstance(m, nn.MaxPool2d)]
    assert [getattr(pool, "outside_paper_count", False) for pool in pools] == [True]


@pytest.mark.parametrize("name", [name for name in models.names() if name[:3] not in ("vit", "lla")])  # of their own
def test_every_model_is_one_chain_that_trains(name: str) -> None:
    model = models.build(name, classes=3, input_shape=(1, 16, 24), seed=5)
    between = [] if name == "mlp" else ["stages", "pool"]
    assert [child for child, _ in model.named_children()] == ["stem", *between, "head"]
    assert len(list(model.named_modules(remove_duplicate=False))) == len(list(model.modules()))
    images = torch.randn(4, 1, 16, 24, generator=torch.Generator().manual_seed(0))
    logits = model(images)
    assert logits.shape == (4, 3)
    loss = F.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
    torch.autograd.backward(loss)
    # A convolution's bias is undone by the batch norm behind it: its gradient is there, and zero.
    silent = {f"{n}.bias" for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter_name in silent or parameter.grad.abs().max() > 0, parameter_name


def test_head_reads_what_features_gives() -> None:
    model: Any = models.build("cnn8", classes=4).eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    features = model.features(images)
    assert features.shape == (2, 64)
    torch.testing.assert_close(model(images), features @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 5, 7)])
def test_mlp_is_two_products_with_a_relu_between(shape: tuple[int, int, int]) -> None:
    model: Any = models.build("mlp", classes=10, input_shape=shape, seed=4)
    (hidden_weight, hidden_bias), (weight, bias) = (
        (layer.weight, layer.bias) for layer in model.modules() if isinstance(layer, nn.Linear)
    )
    pixels = shape[0] * shape[1] * shape[2]
    assert hidden_weight.shape == (256, pixels)
    assert sum(p.numel() for p in model.parameters()) == 257 * 10 + 256 * (pixels + 1)
    images = torch.randn(6, *shape, generator=torch.Generator().manual_seed(2))
    expected = (images.reshape(6, -1) @ hidden_weight.T + hidden_bias).clamp(min=0) @ weight.T + bias
    torch.testing.assert_close(model(images), expected)
    in_channels_last = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(in_channels_last), expected)


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(["resnet20", "resnet20-standard", "cnn8", "mlp"]), seed=st.integers(0, 2**63 - 1))
def test_weights_come_from_the_seed_alone(name: str, seed: int) -> None:
    before = torch.get_rng_state()
    one = models.build(name, classes=2, seed=seed).state_dict()
    two = models.build(name, classes=2, seed=seed).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], two[key]) for key in one)
    other = models.build(name, classes=2, seed=seed ^ 1).state_dict()
    drawn = [key for key, value in one.items() if value.dim() > 1 or key.startswith("head")]
    assert all(not torch.equal(one[key], other[key]) for key in drawn)


def test_initial_weights_follow_their_laws() -> None:
    state = models.build("resnet18", classes=100, seed=7).state_dict()
    conv = state["stages.3.1.body.1.0.weight"]
    assert conv.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert conv.mean().item() == pytest.approx(0, abs=1e-4)
    bound = 512**-0.5
    for tensor in (state["head.weight"], state["head.bias"]):
        assert tensor.abs().max() <= bound
        assert tensor.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)
    norm = {key.rsplit(".", 1)[1]: value for key, value in state.items() if key.startswith("stem.1.")}
    assert (norm["weight"] == 1).all()
    assert (norm["bias"] == 0).all()
    assert (norm["running_mean"] == 0).all()
    assert (norm["running_var"] == 1).all()
    assert norm["num_batches_tracked"] == 0


def test_a_layer_nobody_initialises_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"Embedding at '0'"):
        initialised(lambda: nn.Sequential(nn.Embedding(2, 3)), seed=0)


def test_names_and_descriptions() -> None:
    assert {"resnet18", "resnet56-standard", "cnn8", "cnn32-wide", "mlp"} <= set(models.names())
    lines = [models.describe(name) for name in models.names()]
    assert len(set(lines)) == len(lines)
    assert all(line and "\n" not in line for line in lines)


def test_the_example_runs() -> None:
    outcome = doctest.testmod(registry)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_wrong_request_says_what_to_do() -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'resnet23': did you mean 'resnet"):
        models.build("resnet23")
    with pytest.raises(UnknownName, match="unknown model"):
        models.describe("transformer-9000")
    with pytest.raises(BudgetedError, match="ask for 1 or more"):
        models.build("cnn8", classes=0)
    with pytest.raises(BudgetedError, match=r"give \(channels, height, width\)"):
        models.build("cnn8", input_shape=(3, 0, 32))
