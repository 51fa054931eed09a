"""Small nets of every kind that the prices and the block chain must handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted import models


class Separable(nn.Module):
    """Depthwise, then pointwise."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.norm1 = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.depthwise(x)), inplace=True)
        return F.relu6(self.norm2(self.pointwise(x)))


class SeparableNet(nn.Module):
    """The head is the first attribute: the chain must follow the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 10)
        self.blocks = nn.Sequential(Separable(16, 16), Separable(16, 32, 2), Separable(32, 32))
        self.stem = nn.Conv2d(3, 16, 3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))
        return out


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        out: Tensor = self.conv2(F.relu(self.norm2(x)))
        return out


class DenseGroup(nn.Module):
    def __init__(self, inputs: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, padding=1, bias=False)
        self.group1 = DenseGroup(16, 8, 3)
        self.transition = nn.Sequential(
            nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 20, 1, bias=False), nn.AvgPool2d(2)
        )
        self.group2 = DenseGroup(20, 8, 3)
        self.norm = nn.BatchNorm2d(44)
        self.head = nn.Linear(44, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.group2(self.transition(self.group1(self.stem(x))))
        out: Tensor = self.head(F.adaptive_avg_pool2d(F.relu(self.norm(x)), 1).flatten(1))
        return out


class SmallViT(nn.Module):
    def __init__(self, width: int = 48, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        out: Tensor = self.head(self.norm(self.encoder(x))[:, 0])
        return out


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class SmallDecoder(nn.Module):
    def __init__(self, words: int = 64, width: int = 32, layers: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(32, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


@dataclass(frozen=True)
class Net:
    """A net to test: how to build it, a batch for it, and its blocks."""

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    blocks: int


def images(generator: torch.Generator, size: int = 4) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(size, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (size,), generator=generator),
    )


def tokens(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return (
        torch.randint(0, 64, (3, 24), generator=generator),
        torch.randint(0, 64, (3, 24), generator=generator),
    )


NETS: dict[str, Net] = {
    "resnet": Net(lambda: models.build("resnet20", classes=10), images, 11),
    "standard resnet": Net(lambda: models.build("resnet20-standard", classes=10), images, 11),
    "plain cnn": Net(lambda: models.build("cnn8", classes=10), images, 8),
    "separable": Net(SeparableNet, images, 5),
    "dense": Net(DenseNet, images, 9),
    "vit": Net(SmallViT, images, 5),
    "decoder": Net(SmallDecoder, tokens, 5),
    "tied decoder": Net(lambda: SmallDecoder(tied=True), tokens, 5),
}


Model = TypeVar("Model", bound=nn.Module)


def seeded(build: Callable[[], Model], seed: int = 0) -> Model:
    """Build with layers' own random starts made repeatable."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
