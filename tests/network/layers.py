"""Layers of every kind, and their per-sample gradients by other means."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from budgeted.network.sampled_gradients import SampledGradients, SampledStep
from tests.nets import Model, seeded

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
    # not 4 channels in and 3 out: there oneDNN's AVX2 kernel of torch 2.13 writes beside its memory, and torch alone
    # crashes (a strided pointwise convolution in channels_last, forward and backward, ONEDNN_MAX_CPU_ISA=AVX2)
    "conv2d pointwise": (lambda: nn.Conv2d(8, 3, 1, stride=2), (3, 8, 6, 6)),
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


def built(build: Callable[[], Model]) -> Model:
    """With weights, biases and running statistics all away from their trivial starts."""
    model = seeded(build)
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


def small_net(norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU(inplace=True))

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(block(3, 6), block(6, 8), block(8, 8), head)


IMAGES = (4, 3, 6, 6)


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
