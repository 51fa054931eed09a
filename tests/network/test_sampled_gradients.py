"""Sampled per-sample gradients against autograd's sums and torch.func's samples."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from budgeted import models
from budgeted.errors import BudgetedError, UnknownName
from budgeted.network.sampled_gradients import SampledGradients
from tests.nets import NETS, seeded
from tests.network.layers import (
    CASES,
    IMAGES,
    Recurrent,
    at_coordinates,
    built,
    channels_last,
    collect,
    gradients,
    layouts,
    mean_loss,
    per_sample,
    random,
    small_net,
)

# What torch says of even kernels with padding "same", and of attention in the oracle.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


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
