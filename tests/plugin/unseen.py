"""Three more architectures, written after the code was finished: each with its batch, its loss and its blocks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from tests.plugin.architectures import Architecture, classes, numbers


class CrossBlock(nn.Module):
    """Latents ask the inputs, then each other."""

    def __init__(self, width: int, inputs: int) -> None:
        super().__init__()
        self.ask = nn.MultiheadAttention(width, 4, kdim=inputs, vdim=inputs, batch_first=True)
        self.talk = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, latents: Tensor, inputs: Tensor) -> Any:
        latents = latents + self.ask(self.norms[0](latents), inputs, inputs, need_weights=False)[0]
        normed = self.norms[1](latents)
        latents = latents + self.talk(normed, normed, normed, need_weights=False)[0]
        return latents + self.mlp(self.norms[2](latents))


class Perceiver(nn.Module):
    """Learned latents that read the same input array again in every block."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(8, 32))
        self.blocks = nn.ModuleList(CrossBlock(32, 19) for _ in range(3))
        self.head = nn.Linear(32, 10)
        places = torch.linspace(-1, 1, 64)[:, None] * torch.arange(1, 9)
        self.register_buffer("places", torch.cat([places.sin(), places.cos()], 1))

    def forward(self, image: Tensor) -> Any:
        pixels = F.avg_pool2d(image, 4).flatten(2).transpose(1, 2)
        inputs = torch.cat([pixels, self.get_buffer("places").expand(len(pixels), -1, -1)], 2)
        latents = self.latents.expand(len(pixels), -1, -1)
        for block in self.blocks:
            latents = block(latents, inputs)
        return self.head(latents.mean(1))


class Modulated(nn.Module):
    """A dilated convolution whose channels a condition scales and shifts."""

    def __init__(self, channels: int, condition: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.film = nn.Linear(condition, 2 * channels)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Any:
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, 1)
        return x + self.out(F.elu(self.conv(x) * (1 + scale) + shift))


class Conditioned(nn.Module):
    """Two inputs: a map, and a vector that a small net turns into the condition of every block; a map comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.condition = nn.Sequential(nn.Linear(20, 32), nn.SiLU(), nn.Linear(32, 16))
        self.enter = nn.Conv2d(3, 12, 5, 2, 2)
        self.blocks = nn.ModuleList(Modulated(12, 16, 2**i) for i in range(3))
        self.leave = nn.Conv2d(12, 2, 1)

    def forward(self, image: Tensor, vector: Tensor) -> Any:
        condition = self.condition(vector)
        x = self.enter(image)
        for block in self.blocks:
            x = block(x, condition)
        return F.interpolate(self.leave(x), scale_factor=2.0, mode="bilinear", align_corners=False)


class Experts(nn.Module):
    """Soft mixture: every expert runs, in one batched product, and a gate weighs them."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        hidden = torch.einsum("btd,edh->beth", x, self.up).relu()
        return torch.einsum("beth,ehd,bte->btd", hidden, self.down, weights)


class SoundLayer(nn.Module):
    """Half a Conformer: experts, then a gated depthwise convolution over time, one weight normed if wanted."""

    def __init__(self, width: int, normed: bool) -> None:
        super().__init__()
        self.norm1, self.experts, self.norm2 = nn.LayerNorm(width), Experts(width, 3), nn.LayerNorm(width)
        self.widen: nn.Module = nn.Conv1d(width, 2 * width, 1)
        if normed:
            self.widen = weight_norm(self.widen)
        self.along = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.batch, self.narrow = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Any:
        x = x + 0.5 * self.experts(self.norm1(x))
        y = F.glu(self.widen(self.norm2(x).transpose(1, 2)), 1)
        return x + self.narrow(F.silu(self.batch(self.along(y)))).transpose(1, 2)


class Sound(nn.Module):
    def __init__(self, normed: bool = False, width: int = 24) -> None:
        super().__init__()
        self.listen = nn.Conv1d(1, width, 16, 8)
        self.layers = nn.Sequential(*[SoundLayer(width, normed) for _ in range(3)])
        self.ask, self.head = nn.Linear(width, 1), nn.Linear(width, 10)

    def forward(self, wave: Tensor) -> Any:
        x = self.layers(F.leaky_relu(self.listen(wave), 0.2).transpose(1, 2))
        weights = torch.softmax(self.ask(x), 1)
        return self.head((weights * x).sum(1))


_draws = torch.Generator().manual_seed(23)
_images, _vectors = torch.randn(4, 3, 32, 32, generator=_draws), torch.randn(4, 20, generator=_draws)
_waves, _ten = torch.randn(4, 1, 400, generator=_draws), torch.randint(0, 10, (4,), generator=_draws)

UNSEEN: dict[str, Architecture] = {
    "perceiver": Architecture(Perceiver, (_images,), _ten, "latents blocks.0 blocks.1 blocks.2 head", classes),
    "conditioned maps": Architecture(
        Conditioned,
        (_images, _vectors),
        torch.randn(4, 2, 32, 32, generator=_draws),
        "condition.0 condition.2 enter blocks.0 blocks.1 blocks.2 leave",
        numbers,
    ),
    "sound": Architecture(Sound, (_waves,), _ten, "listen layers.0 layers.1 layers.2 ask head", classes),
}
