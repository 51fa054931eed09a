"""Sampled per-sample gradients against autograd's sums, torch.func's samples and a count of what was executed."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from budgeted import models
from budgeted.errors import BudgetedError, UnknownName
from budgeted.replay.sampled_gradients import SampledGradients, SampledStep
from tests.nets import NETS, seeded

# What torch says of even kernels with padding "same", and of attention in the oracle.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]

CASES: dict[str, Case] = {
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (5, 3, 7, 6)),
    "conv2d padded": (lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False), (5, 3, 7, 6)),
    "conv2d strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (4, 3, 8, 7)),
    "conv2d uneven": (
        lambda: nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
        (3, 2, 9, 8),
    ),
    "conv2d same": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same"), (3, 2, 6, 5)),
    "conv2d valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (3, 2, 6, 5)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2), (3, 2, 6, 5)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (3, 4, 5, 5)),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), (3, 4, 5, 5)),
    "conv2d pointwise": (lambda: nn.Conv2d(4, 3, 1, stride=2), (3, 4, 6, 6)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="reflect"), (3, 2, 6, 5)),
    "conv2d replicate": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"), (3, 2, 6, 5)),
    "conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), (3, 2, 6, 5)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 5, stride=2, padding=2), (4, 3, 11)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (3, 2, 3, 4, 3)),
    "linear": (lambda: nn.Linear(5, 4), (6, 5)),
    "linear over tokens": (lambda: nn.Linear(5, 4), (3, 7, 5)),
    "linear over a grid": (lambda: nn.Linear(5, 4, bias=False), (3, 2, 3, 5)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(5), (6, 5)),
    "batch norm 1d over time": (lambda: nn.BatchNorm1d(5), (4, 5, 3)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(4), (4, 4, 3, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 3, 6)),
    "layer norm over two": (lambda: nn.LayerNorm((3, 4)), (4, 2, 3, 4)),
    "layer norm without tokens": (lambda: nn.LayerNorm(6), (4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (4, 6, 3, 2)),
    "group norm without positions": (lambda: nn.GroupNorm(3, 6), (4, 6)),
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Model = TypeVar("Model", bound=nn.Module)


def built(build: Callable[[], Model]) -> Model:
    """With weights, biases and running statistics all away from their trivial starts."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
    for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
        if tensor.is_floating_point():
            tensor.data += 0.3 * random(*tensor.shape, seed=number).abs()
    return model


def channels_last(model: nn.Module) -> nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def mean_loss(output: Tensor) -> Tensor:
    """A loss with another gradient at every place, as a mean over the batch."""
    return (output.tanh() * torch.linspace(0.5, 2, output[0].numel()).view_as(output[0])).sum() / len(output)


def collect(
    sampled: SampledGradients, model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] = mean_loss
) -> SampledStep:
    model.zero_grad()
    with sampled:
        loss(model(x)).backward()
        return sampled.take()


def at_coordinates(sampled: SampledGradients, of: dict[str, Tensor], leading: int = 0) -> Tensor:
    """The sampled entries of whole parameters, behind `leading` dimensions."""
    return torch.stack([of[name].flatten(leading)[..., place] for name, place in sampled.coordinates], -1)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def per_sample(model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] = mean_loss) -> dict[str, Tensor]:
    """Each sample's share of the gradient of the mean loss, by torch.func."""

    def one(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return loss(functional_call(model, parameters, (sample[None],))) / len(x)

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    shares: dict[str, Tensor] = vmap(grad(one), in_dims=(None, 0))(parameters, x)
    return shares


def layouts(x: Tensor) -> Iterable[Tensor]:
    """The same numbers in every memory format a layer may be given."""
    yield x
    if x.dim() == 4:
        yield x.to(memory_format=torch.channels_last)
    yield torch.cat([x, x], 1)[:, : x.shape[1]]
    yield x.transpose(0, -1).contiguous().transpose(0, -1)


@pytest.mark.parametrize("case", CASES)
def test_samples_add_up_to_the_gradient_in_training(case: str) -> None:
    build, shape = CASES[case]
    model = built(build)
    sampled = SampledGradients(model, fraction=1.0)
    assert len(sampled) == sum(parameter.numel() for parameter in model.parameters())
    # With a gradient of its own: without one, torch 2.13 crashes in group norm's channels_last backward.
    for x in layouts(random(*shape).requires_grad_()):
        step = collect(sampled, model, x)
        assert step.present.all()
        assert step.values.shape == (shape[0], len(sampled))
        expected = at_coordinates(sampled, gradients(model))
        torch.testing.assert_close(step.values.sum(0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_each_row_is_the_gradient_of_its_sample(case: str) -> None:
    build, shape = CASES[case]
    model = built(build).eval()
    x = random(*shape)
    sampled = SampledGradients(model, fraction=1.0)
    expected = at_coordinates(sampled, per_sample(model, x), leading=1)
    for same in layouts(x.requires_grad_()):
        torch.testing.assert_close(collect(sampled, model, same).values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["separable", "dense", "vit", "decoder"])
def test_rows_of_whole_nets(name: str) -> None:
    net = NETS[name]
    model = seeded(net.build).eval()
    x, _ = net.batch(torch.Generator().manual_seed(0))
    sampled = SampledGradients(model, fraction=0.05)
    step = collect(sampled, model, x)
    expected = at_coordinates(sampled, per_sample(model, x), leading=1)
    scale = float(expected.abs().max())
    assert step.present.all()
    torch.testing.assert_close(step.values, expected, rtol=1e-3, atol=1e-5 * scale)


def small_net(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU(inplace=True))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(block(3, 6), block(6, 8), block(8, 8), head)


IMAGES = (4, 3, 6, 6)


@pytest.mark.parametrize("frozen", [(0,), (0, 1), (1,), (0, 2), (0, 1, 2)])
def test_frozen_blocks_are_absent_and_the_others_unchanged(frozen: tuple[int, ...]) -> None:
    model = built(small_net)
    x = random(*IMAGES)
    sampled = SampledGradients(model, fraction=0.5)
    reference = copy.deepcopy(model)
    full = collect(SampledGradients(reference, fraction=0.5), reference, x)

    off = [p for block in frozen for p in model[block].parameters()]
    on = [p for p in model.parameters() if all(p is not other for other in off)]
    with sampled:
        loss = mean_loss(model(x))
        sampled.skip(off)
        loss.backward(inputs=on)
        step = sampled.take()
    expected = torch.tensor([int(name.split(".")[0]) not in frozen for name, _ in sampled.coordinates])
    assert torch.equal(step.present, expected)
    torch.testing.assert_close(step.values[:, expected], full.values[:, expected])
    assert not step.values[:, ~expected].any()
    assert sampled.price(step.present) < sampled.price(torch.ones_like(expected))


def test_a_frozen_prefix_is_absent_without_being_told() -> None:
    model = built(small_net)
    sampled = SampledGradients(model, fraction=0.5)
    with sampled:
        mean_loss(model(random(*IMAGES))).backward(inputs=list(model[2:].parameters()))
        step = sampled.take()
    expected = torch.tensor([int(name.split(".")[0]) >= 2 for name, _ in sampled.coordinates])
    assert torch.equal(step.present, expected)


def test_skip_holds_for_one_step_and_one_parameter() -> None:
    model = built(lambda: nn.Linear(3, 2))
    sampled = SampledGradients(model, fraction=1.0)
    x = random(4, 3)
    with sampled:
        for skipped in (["bias"], ["weight"], []):
            loss = mean_loss(model(x))
            sampled.skip(getattr(model, name) for name in skipped)
            loss.backward()
            kept = torch.tensor([name not in skipped for name, _ in sampled.coordinates])
            assert torch.equal(sampled.take().present, kept)


def test_everything_frozen_leaves_nothing_present() -> None:
    model = built(small_net)
    sampled = SampledGradients(model, fraction=0.5, exclude=["3"])
    with sampled:
        mean_loss(model(random(*IMAGES))).backward(inputs=list(model[3].parameters()))
        step = sampled.take()
    assert step.values.shape == (IMAGES[0], len(sampled))
    assert not step.present.any()
    assert not step.values.any()
    assert sampled.price(step.present) == 0


def test_the_draw_follows_the_seed_alone() -> None:
    first = SampledGradients(models.build("resnet20", classes=10), seed=3).coordinates
    again = channels_last(models.build("resnet20", classes=10, seed=1).double())
    assert SampledGradients(again, seed=3).coordinates == first
    assert SampledGradients(again, seed=4).coordinates != first


def test_the_draw_is_a_uniform_half_per_mille_without_repeats() -> None:
    model = models.build("resnet32", classes=10)
    sampled = SampledGradients(model, exclude=["head"])
    sizes = {name: p.numel() for name, p in model.named_parameters() if not name.startswith("head.")}
    assert len(sampled) == round(0.0005 * sum(sizes.values())) == 233
    assert len(set(sampled.coordinates)) == len(sampled)
    assert all(0 <= place < sizes[name] for name, place in sampled.coordinates)
    # Over many draws every parameter is met in proportion to its size: within 5 standard deviations.
    large = "stages.2.4.body.1.0.weight"
    drawn = [name == large for seed in range(40) for name, _ in SampledGradients(model, seed=seed).coordinates]
    share = sizes[large] / sum(p.numel() for p in model.parameters())
    deviation = (share * (1 - share) / len(drawn)) ** 0.5
    assert abs(sum(drawn) / len(drawn) - share) < 5 * deviation


def test_groups_are_drawn_into_few_layers() -> None:
    model = models.build("resnet32", classes=10)
    alone, together = (SampledGradients(model, group=group) for group in (1, 16))
    assert len(alone) == len(together)
    layers = [len({name for name, _ in sampled.coordinates}) for sampled in (alone, together)]
    assert layers[0] >= 20
    assert layers[1] <= 16
    with pytest.raises(BudgetedError, match="groups of at least 1, not 0"):
        SampledGradients(model, group=0)


@pytest.mark.parametrize("group", [1, 3, 16, 1000])
def test_every_entry_is_equally_likely_whatever_the_group(group: int) -> None:
    # Small parameters between large ones, and a total that no group divides.
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 1), nn.Linear(1, 7, bias=False))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    draws = 4000
    met: Counter[tuple[str, int]] = Counter()
    for seed in range(draws):
        sampled = SampledGradients(model, fraction=0.3, group=group, seed=seed)
        assert len(set(sampled.coordinates)) == len(sampled) == round(0.3 * sum(sizes.values()))
        met.update(sampled.coordinates)
    share = round(0.3 * sum(sizes.values())) / sum(sizes.values())
    deviation = (share * (1 - share) / draws) ** 0.5
    for name, size in sizes.items():
        for place in range(size):
            assert abs(met[name, place] / draws - share) < 5 * deviation


def test_a_tiny_model_has_one_coordinate() -> None:
    assert len(SampledGradients(nn.Linear(3, 2))) == 1


def test_parameters_that_cannot_be_collected_are_left_out() -> None:
    decoder = seeded(NETS["tied decoder"].build)
    names = {name for name, _ in SampledGradients(decoder, fraction=1.0).coordinates}
    assert not any("words" in name or "positions" in name or "head" in name for name in names)
    vit = seeded(NETS["vit"].build)
    names = {name for name, _ in SampledGradients(vit, fraction=1.0).coordinates}
    assert not any("self_attn" in name for name in names)
    assert any("linear1.weight" in name for name in names)

    class Standardised(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    class Named(nn.Conv2d):
        pass

    mixed = nn.Sequential(Standardised(3, 3, 1), Named(3, 3, 1), nn.Linear(3, 3).requires_grad_(False))
    assert {name for name, _ in SampledGradients(mixed, fraction=1.0).coordinates} == {"1.weight", "1.bias"}


def test_hooks_are_inert_without_a_gradient_and_gone_after_stop() -> None:
    model = built(small_net)
    sampled = SampledGradients(model, fraction=0.5)
    x = random(*IMAGES)
    sampled.start()
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        mean_loss_of_fake = model(torch.empty(*IMAGES)).sum()
        assert mean_loss_of_fake.requires_grad
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    vmap(grad(lambda p, s: functional_call(model.eval(), p, (s[None],)).sum()), (None, 0))(parameters, x)
    with pytest.raises(BudgetedError, match="no forward pass"):
        sampled.take()
    with sampled.paused():
        model(x)
    with pytest.raises(BudgetedError, match="no forward pass"):
        sampled.take()
    mean_loss(model(x)).backward()
    assert sampled.take().present.all()
    sampled.stop()
    assert not any(module._forward_hooks for module in model.modules())
    mean_loss(model(x)).backward()
    with pytest.raises(BudgetedError, match="no forward pass"):
        sampled.take()


def test_a_copy_of_the_model_is_not_watched() -> None:
    model = built(small_net)
    with SampledGradients(model, fraction=0.5) as sampled:
        twin = copy.deepcopy(model)
        mean_loss(twin(random(*IMAGES))).backward()
        with pytest.raises(BudgetedError, match="no forward pass"):
            sampled.take()


class CountedOperations(TorchDispatchMode):
    """Counts arithmetic as it reaches the kernels."""

    ELEMENTWISE = frozenset({"mul", "mul_", "add", "add_", "sub", "sub_", "div", "rsqrt", "rsqrt_"})

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in self.ELEMENTWISE:
            self.operations += out.numel()
        elif name in ("sum", "mean"):
            self.operations += args[0].numel() + (out.numel() if name == "mean" else 0)
        elif name in ("mm", "bmm"):
            self.operations += 2 * out.numel() * args[0].shape[-1]
        return out


def counted(run: Callable[[], object]) -> int:
    counter = CountedOperations()
    with counter:
        run()
    return counter.operations


def executed_by_collecting(sampled: SampledGradients, model: nn.Module, x: Tensor) -> int:
    def plain() -> None:
        model.zero_grad()
        mean_loss(model(x)).backward()

    return counted(lambda: collect(sampled, model, x)) - counted(plain)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_price_is_what_is_executed(case: str, training: bool) -> None:
    build, shape = CASES[case]
    model = built(build).train(training)
    x = random(*shape)
    sampled = SampledGradients(model, fraction=0.5)
    step = collect(sampled, model, x)  # the index plans of these shapes are worked out here, once
    assert sampled.price(step.present) == executed_by_collecting(sampled, model, x) > 0


@pytest.mark.parametrize("prefix", [0, 6, 12])
def test_the_price_of_a_network_with_a_frozen_prefix(prefix: int) -> None:
    model = channels_last(models.build("resnet32", classes=10))
    x = random(4, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3])
    sampled = SampledGradients(model, exclude=["head"])
    stages = cast(nn.Sequential, model.stages)
    chain = [cast(nn.Module, model.stem), *(block for stage in stages for block in cast(nn.Sequential, stage))]
    unfrozen = [p for block in chain[prefix:] for p in block.parameters()]

    def plain() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward(inputs=unfrozen)

    def collecting() -> SampledStep:
        with sampled:
            plain()
            return sampled.take()

    step = collecting()
    assert 0 < int(step.present.sum()) <= len(sampled)
    executed = counted(collecting) - counted(plain)
    assert sampled.price(step.present) == pytest.approx(executed, rel=0.01)


def test_nothing_of_the_pass_survives_take() -> None:
    model = built(small_net)
    x = random(*IMAGES)
    alive: list[weakref.ref[Tensor]] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
            module.register_forward_hook(lambda _, args, out: alive.append(weakref.ref(args[0])))
    sampled = SampledGradients(model, fraction=1.0)
    gc.disable()  # by reference counts alone: waiting for the collector would be a leak
    try:
        with sampled:
            for inputs in (list(model.parameters()), list(model[3].parameters())):
                alive.clear()
                loss = mean_loss(model(x))
                loss.backward(inputs=inputs, retain_graph=False)
                step = sampled.take()
                of_layers = [ref for ref in alive if ref() is not x]
                # The loss still holds the graph, and with it whatever a hook in the graph would hold. What
                # autograd itself saved for the frozen prefix goes with the graph only.
                if len(inputs) == len(list(model.parameters())):
                    assert not any(ref() is not None for ref in of_layers)
                del loss
                assert not any(ref() is not None for ref in of_layers)
            # A graph dropped without backward or take takes its inputs along.
            alive.clear()
            loss = mean_loss(model(x))
            assert any(ref() is not None for ref in alive if ref() is not x)
            del loss
            assert not any(ref() is not None for ref in alive if ref() is not x)
    finally:
        gc.enable()
    assert step.values.grad_fn is None


class Recurrent(nn.Module):
    """One layer used three times, then an in-place activation right behind a layer, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.one = nn.Conv1d(1, 2, 3, padding=1)
        self.two = nn.Conv1d(1, 2, 3, padding=1)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.relu(self.cell(input=x), inplace=True)
        out: Tensor = F.relu(self.one(x[:, None]), inplace=True) + self.two(x[:, None])
        return out


@pytest.mark.parametrize("case", [name for name in CASES if "norm" not in name])
def test_an_activation_may_overwrite_the_output(case: str) -> None:
    build, shape = CASES[case]
    model = built(lambda: nn.Sequential(build(), nn.ReLU(inplace=True))).eval()
    x = random(*shape)
    sampled = SampledGradients(model, fraction=1.0)
    expected = at_coordinates(sampled, per_sample(model, x), leading=1)
    step = collect(sampled, model, x)
    assert step.present.all()
    torch.testing.assert_close(step.values, expected, rtol=1e-4, atol=1e-5)


def test_passes_without_a_backward_leave_no_trace() -> None:
    model = built(small_net)
    sampled = SampledGradients(model, fraction=0.5)
    expected = collect(sampled, model.eval(), random(*IMAGES))
    with sampled:
        for seed in range(20):
            model(random(3, 3, 5, 5, seed=seed))
        kept = [mean_loss(model(random(3, 3, 5, 5, seed=seed))) for seed in range(20)]
        mean_loss(model(random(*IMAGES))).backward()
        step = sampled.take()
        with pytest.raises(BudgetedError, match="second backward"):
            kept[0].backward()
    torch.testing.assert_close(step.values, expected.values)


def test_shared_layers_and_tied_weights_add_up() -> None:
    model = built(Recurrent)
    x = random(5, 4)
    sampled = SampledGradients(model, fraction=1.0)
    step = collect(sampled, model, x)
    expected = at_coordinates(sampled, per_sample(model, x), leading=1)
    torch.testing.assert_close(step.values, expected, rtol=1e-4, atol=1e-6)
    assert sampled.price(step.present) == executed_by_collecting(sampled, model, x)


def test_each_backward_of_an_accumulated_gradient_has_its_own_rows() -> None:
    model = built(small_net)
    sampled = SampledGradients(model, fraction=0.3)
    batches = [random(4, 3, 6, 6, seed=1), random(2, 3, 8, 8, seed=2)]
    total = torch.zeros(len(sampled))
    model.zero_grad()
    with sampled:
        for batch in batches:
            mean_loss(model(batch)).backward()
            total += sampled.take().values.sum(0)
    torch.testing.assert_close(total, at_coordinates(sampled, gradients(model)), rtol=1e-4, atol=1e-5)


def test_checkpointed_layers_are_collected_once() -> None:
    model = built(small_net)
    x = random(*IMAGES)
    plain = copy.deepcopy(model)
    expected = collect(SampledGradients(plain, fraction=0.5), plain, x)
    with SampledGradients(model, fraction=0.5) as sampled:
        mean_loss(model[1:](checkpoint(model[0], x, use_reentrant=False))).backward()
        step = sampled.take()
    torch.testing.assert_close(step.values, expected.values)


def test_a_differentiable_backward_leaves_plain_rows() -> None:
    model = built(small_net)
    x = random(*IMAGES)
    expected = collect(SampledGradients(model, fraction=0.5), model.eval(), x)
    with SampledGradients(model, fraction=0.5) as sampled:
        torch.autograd.grad(mean_loss(model(x)), list(model.parameters()), create_graph=True)
        step = sampled.take()
    assert not step.values.requires_grad
    torch.testing.assert_close(step.values, expected.values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_are_single_precision_for_any_model(dtype: torch.dtype) -> None:
    model = built(lambda: small_net(lambda width: nn.GroupNorm(2, width)))
    x = random(*IMAGES)
    expected = collect(SampledGradients(model, fraction=0.5), model, x).values
    step = collect(SampledGradients(model, fraction=0.5), model.to(dtype), x.to(dtype))
    assert step.values.dtype == torch.float32
    error = (step.values - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float64 else 0.1)


def test_autocast_keeps_the_rows() -> None:
    model = built(small_net)
    x = random(*IMAGES)
    sampled = SampledGradients(model, fraction=0.5)
    expected = collect(sampled, model, x).values
    with sampled:
        with torch.autocast("cpu", torch.bfloat16):
            loss = mean_loss(model(x).float())
        loss.backward()
        values = sampled.take().values
    assert (values - expected).norm() / expected.norm() < 0.1


def test_a_backward_over_the_same_graph_is_paused_or_refused() -> None:
    model = built(lambda: nn.Linear(3, 2))
    sampled = SampledGradients(model, fraction=1.0)
    x = random(4, 3).requires_grad_()
    expected = collect(sampled, model, x).values
    with sampled:
        loss = mean_loss(model(x))
        with sampled.paused():
            torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward(retain_graph=True)
        torch.testing.assert_close(sampled.take().values, expected)
        with pytest.raises(BudgetedError, match="second backward"):
            loss.backward()


def test_what_cannot_work_is_refused_in_words() -> None:
    model = small_net()
    with pytest.raises(BudgetedError, match=r"\(0, 1\]"):
        SampledGradients(model, fraction=0.0)
    with pytest.raises(UnknownName, match="heed"):
        SampledGradients(models.build("cnn8", classes=2), exclude=["heed"])
    with pytest.raises(BudgetedError, match="no parameter to sample"):
        SampledGradients(nn.Sequential(nn.Embedding(3, 3), nn.Linear(3, 3)), exclude=["1"])
    with pytest.raises(BudgetedError, match="run one batch"):
        SampledGradients(nn.Sequential(nn.LazyLinear(3)))
    linear = nn.Linear(3, 3)
    with SampledGradients(linear) as sampled, pytest.raises(BudgetedError, match="batch dimension"):
        linear(random(3))
    with SampledGradients(linear, fraction=1.0) as sampled:
        (linear(random(3, 3)).sum() + linear(random(2, 3)).sum()).backward()
        with pytest.raises(BudgetedError, match="a batch of"):
            sampled.take()
