"""Hand-written nets of many families, each with its inputs and the blocks that it should have."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    conv = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(o), act())


class Bottleneck(nn.Module):
    def __init__(self, i: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        change = stride > 1 or i != 4 * width
        shortcut = nn.Sequential(nn.Conv2d(i, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.downsample: nn.Module | None = shortcut if change else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return torch.relu_(y)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Bottleneck(16, 8), Bottleneck(32, 8))
        self.layer2 = nn.Sequential(Bottleneck(32, 16, 2), Bottleneck(64, 16))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(64, 20)

    def forward(self, x: Tensor) -> Any:
        x = self.layer2(self.layer1(self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class InvertedResidual(nn.Module):
    """MobileNetV2 and EfficientNet: expand, depthwise, squeeze-excite, project; a skip where shapes allow."""

    def __init__(self, i: int, o: int, stride: int, expand: int) -> None:
        super().__init__()
        h = i * expand
        self.expand, self.depthwise = conv_bn(i, h, 1, act=nn.SiLU), conv_bn(h, h, 3, stride, h, nn.SiLU)
        self.squeeze, self.excite = nn.Conv2d(h, h // 4, 1), nn.Conv2d(h // 4, h, 1)
        self.project, self.skip = (
            nn.Sequential(nn.Conv2d(h, o, 1, bias=False), nn.BatchNorm2d(o)),
            stride == 1 and i == o,
        )

    def forward(self, x: Tensor) -> Any:
        y = self.depthwise(self.expand(x))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return x + self.project(y) if self.skip else self.project(y)


class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2, act=nn.ReLU6)
        stages = [(16, 16, 1, 1), (16, 24, 2, 4), (24, 24, 1, 4)]
        self.blocks = nn.Sequential(*[nn.Sequential(InvertedResidual(*stage)) for stage in stages])
        self.conv_head, self.classifier = (
            conv_bn(24, 48, 1),
            nn.Sequential(nn.Dropout(0.2), nn.Linear(48, 20)),
        )

    def forward(self, x: Tensor) -> Any:
        return self.classifier(F.adaptive_avg_pool2d(self.conv_head(self.blocks(self.stem(x))), 1).flatten(1))


class DenseLayer(nn.Module):
    def __init__(self, i: int, grow: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, 4 * grow, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * grow), nn.Conv2d(4 * grow, grow, 3, 1, 1, bias=False)

    def forward(self, features: list[Tensor]) -> Any:
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(torch.cat(features, 1)))))))


class DenseBlock(nn.ModuleDict):
    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.dense = DenseBlock({f"layer{j}": DenseLayer(16 + 8 * j, 8) for j in range(3)})
        self.transition = nn.Sequential(nn.BatchNorm2d(40), nn.ReLU(), nn.Conv2d(40, 24, 1), nn.AvgPool2d(2))
        self.norm, self.fc = nn.BatchNorm2d(24), nn.Linear(24, 20)

    def forward(self, x: Tensor) -> Any:
        return self.fc(F.relu(self.norm(self.transition(self.dense(self.stem(x)))), inplace=True).mean((2, 3)))


class Inception(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.b1, self.b2 = conv_bn(i, 8, 1), nn.Sequential(conv_bn(i, 8, 1), conv_bn(8, 8))
        self.b3 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_bn(i, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.b1(x), self.b2(x), self.b3(x)], 1)


class ChannelShuffle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        depthwise = nn.Sequential(nn.Conv2d(half, half, 3, 1, 1, groups=half), nn.BatchNorm2d(half))
        self.branch = nn.Sequential(conv_bn(half, half, 1), depthwise, conv_bn(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat((a, self.branch(b)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Branching(nn.Module):
    """Inception and ShuffleNet blocks, with an auxiliary classifier in a tuple of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.auxiliary = nn.Linear(32, 20), nn.Linear(32, 20)
        self.mixed = nn.ModuleList([Inception(16), Inception(32), ChannelShuffle(32), ChannelShuffle(32)])
        self.stem = conv_bn(3, 16, 3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.mixed[1](self.mixed[0](self.stem(x)))
        side = self.auxiliary(x.mean((2, 3)))
        return self.fc(F.adaptive_avg_pool2d(self.mixed[3](self.mixed[2](x)), 1).flatten(1)), side


class ConvNeXtBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d)
        self.pwconv1, self.pwconv2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Any:
        y = self.pwconv2(F.gelu(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1)))))
        return x + (self.gamma * y).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.downsample = nn.ModuleList([nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 32, 2, 2)])
        self.stages = nn.ModuleList([nn.Sequential(ConvNeXtBlock(d), ConvNeXtBlock(d)) for d in (16, 32)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Any:
        for down, stage in zip(self.downsample, self.stages, strict=True):
            x = stage(down(x))
        return self.head(self.norm(x.mean((-2, -1))))


class WindowAttention(nn.Module):
    """A Swin block: shifted windows, and a table of relative positions read by index."""

    def __init__(self, d: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm2, self.mlp = (
            nn.LayerNorm(d),
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)),
        )
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("index", torch.arange(window**4) % (2 * window - 1) ** 2)

    def forward(self, x: Tensor) -> Any:
        n, h, w, d = x.shape
        k, tokens = self.window, self.window**2
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(n, h // k, k, w // k, k, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, tokens, d)
        query, key, value = self.qkv(y).reshape(-1, tokens, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].view(tokens, tokens, -1).permute(2, 0, 1)  # type: ignore[index]
        y = (query @ key.transpose(-2, -1) + bias).softmax(-1) @ value
        y = self.proj(y.transpose(1, 2).reshape(-1, tokens, d)).view(n, h // k, w // k, k, k, d)
        x = x + torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, d), (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(*[WindowAttention(16, 2, 4, 2 * (j % 2)) for j in range(3)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.patch(x).permute(0, 2, 3, 1))).mean((1, 2)))


class UShape(nn.Module):
    """Skips over the whole net, a transposed convolution up, group and instance norm on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.join = nn.Linear(8, 20), nn.Conv2d(16, 8, 3, 1, 1)
        self.up, self.down = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 16, 3, 2, 1)
        self.enter, self.group = nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(4, 8)
        self.instance = nn.InstanceNorm2d(16, affine=True)

    def forward(self, x: Tensor) -> Any:
        top = F.relu(self.group(self.enter(x)))
        deep = F.leaky_relu(self.instance(self.down(top)), 0.1)
        return self.fc(F.adaptive_max_pool2d(self.join(torch.cat([self.up(deep), top], 1)), 1).flatten(1))


class Encoder(nn.Module):
    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(40, 32), nn.Parameter(torch.zeros(1, 12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.fc = nn.Linear(32, 20)

    def forward(self, tokens: Tensor) -> Any:
        return self.fc(self.encoder(self.embed(tokens) + self.position).mean(1))


class LoRA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.base, self.scaling = nn.Linear(d, d).requires_grad_(False), 2.0
        self.down, self.up = (
            nn.ModuleDict({"default": nn.Linear(d, 2)}),
            nn.ModuleDict({"default": nn.Linear(2, d)}),
        )

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + self.up["default"](self.down["default"](x)) * self.scaling


class Rotary(nn.Module):
    """Attention with rotary positions, real or complex, and a bias that another layer may give."""

    def __init__(self, d: int, kind: str, bias: bool) -> None:
        super().__init__()
        self.kind, linear = kind, LoRA if kind == "lora" else lambda d: nn.Linear(d, d, bias=False)
        self.norm1, self.query, self.value = nn.RMSNorm(d), linear(d), linear(d)
        self.key, self.out, self.norm2 = nn.Linear(d, d), nn.Linear(d, d), nn.RMSNorm(d)
        self.gate, self.rise, self.fall = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.relative = nn.Embedding(23, 4) if bias else None
        if kind == "lora":
            for module in (self.key, self.out, self.gate, self.rise, self.fall):
                module.requires_grad_(False)

    def turn(self, x: Tensor, angle: Tensor) -> Tensor:
        if self.kind == "complex":
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * angle).flatten(3)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    def forward(self, x: Tensor, angle: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        n, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (layer(y).view(n, t, 4, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        if self.relative is not None:
            steps = torch.arange(t)
            bias = self.relative(steps[None] - steps[:, None] + 11).permute(2, 0, 1)
        scores = self.turn(q, angle) @ self.turn(k, angle).transpose(-1, -2) / 8**0.5
        y = (scores if bias is None else scores + bias).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(n, t, d))
        y = self.norm2(x)
        return x + self.fall(F.silu(self.gate(y)) * self.rise(y)), bias


class ModelOutput(OrderedDict[str, Tensor]):
    """As in transformers: an ordered dictionary of another class."""


class Language(nn.Module):
    """GPT, T5, LLaMA: `kind` is real, complex, tied (embedding and head), bias (shared by layers) or lora."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.layers = nn.ModuleList(Rotary(32, kind, kind == "bias" and j == 0) for j in range(3))
        self.norm, self.head = nn.RMSNorm(32), nn.Linear(32, 40, bias=False)
        angle = torch.outer(torch.arange(12.0), torch.linspace(0.1, 1, 4))
        self.register_buffer("angle", torch.polar(torch.ones(12, 4), angle) if kind == "complex" else angle)
        if kind == "tied":
            self.head.weight = self.embed.weight
        if kind == "lora":
            self.embed.requires_grad_(False)

    def forward(self, *, input_ids: Tensor) -> ModelOutput:
        x, bias = self.embed(input_ids), None
        for layer in self.layers:
            x, bias = layer(x, self.angle, bias)
        return ModelOutput(logits=self.head(self.norm(x)))


class Wrapper(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **keywords: Any) -> Any:
        return self.model(**keywords)


class Functional(nn.Module):
    """No modules: parameters used directly, one of them twice by way of a view."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(32, 16), (32, 32), (20, 32)]
        self.w = nn.ParameterList([torch.zeros(size) for size in sizes])
        self.b = nn.Parameter(torch.zeros(32))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, self.w[0], self.b))
        return torch.einsum("bj,kj->bk", F.relu(x @ self.w[1].t()), self.w[2])


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = (
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32)),
            nn.Linear(64, 20),
        )

    def forward(self, left: Tensor, right: Tensor) -> Any:
        return self.head(torch.cat([self.encoder(left), self.encoder(right)], 1))


class InPlace(nn.Module):
    """In-place operators, writes into views, stopped gradients, and a parameter that is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.unused = nn.Linear(32, 20), nn.Linear(7, 7)
        self.third, self.second, self.first = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Any:
        y = self.first(x).relu_()
        z = self.second(y)
        z[:, :8] = 0
        z.mul_(2).add_(1)
        z[:, 8:16] += self.third(y)[:, :8]
        with torch.no_grad():
            target = self.second(y) * 0.1
        return self.head(z + target + z.detach())


def cross_entropy(outputs: Any) -> Tensor:
    if isinstance(outputs, tuple):
        return torch.stack([cross_entropy(output) for output in outputs]).sum()
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    logits = logits.reshape(-1, logits.shape[-1])
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    blocks: str
    inputs: tuple[Tensor, ...] = ()
    keywords: Mapping[str, Tensor] = field(default_factory=dict)


_draws = torch.Generator().manual_seed(5)
IMAGES = (torch.randn(4, 3, 32, 32, generator=_draws),)
VECTORS = (torch.randn(8, 16, generator=_draws),)
TOKENS = torch.randint(0, 40, (4, 12), generator=_draws)
IDS = {"input_ids": TOKENS}
CASES = {
    "bottleneck": Case(ResNet, "conv1 layer1.0 layer1.1 layer2.0 layer2.1 fc", IMAGES),
    "efficientnet": Case(EfficientNet, "stem.0 blocks.0.0 blocks.1.0 blocks.2.0 conv_head.0 classifier.1", IMAGES),
    "densenet": Case(DenseNet, "stem dense.layer0 dense.layer1 dense.layer2 transition.2 fc", IMAGES),
    "branching": Case(Branching, "stem.0 mixed.0 mixed.1 auxiliary mixed.2 mixed.3 fc", IMAGES),
    "convnext": Case(ConvNeXt, "downsample.0 stages.0.0 stages.0.1 downsample.1 stages.1.0 stages.1.1 head", IMAGES),
    "swin": Case(Swin, "patch blocks.0 blocks.1 blocks.2 head", IMAGES),
    "u-shape": Case(UShape, "enter down up join fc", IMAGES),
    "encoder": Case(lambda: Encoder(True), "embed encoder.layers.0 encoder.layers.1 encoder.layers.2 fc", (TOKENS,)),
    "post-norm": Case(lambda: Encoder(False), "embed encoder.layers.0 encoder.layers.1 encoder.layers.2 fc", (TOKENS,)),
    "rotary": Case(lambda: Language("real"), "embed layers.0 layers.1 layers.2 head", keywords=IDS),
    "complex": Case(lambda: Language("complex"), "embed layers.0 layers.1 layers.2 head", keywords=IDS),
    "tied": Case(lambda: Language("tied"), "embed layers.0 layers.1 layers.2 head", keywords=IDS),
    "shared-bias": Case(
        lambda: Wrapper(Language("bias")),
        "model.embed model.layers.0 model.layers.1 model.layers.2 model.head",
        keywords=IDS,
    ),
    "lora": Case(lambda: Language("lora"), "embed layers.0 layers.1 layers.2 head", keywords=IDS),
    "functional": Case(Functional, "w.0 w.1 w.2", VECTORS),
    "siamese": Case(Siamese, "encoder.0 encoder.2 head", VECTORS * 2),
    "in-place": Case(InPlace, "first second third head", VECTORS),
}


def built(case: Case) -> nn.Module:
    """The net with parameters drawn from a generator of its own."""
    generator, model = torch.Generator().manual_seed(7), case.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1
            parameter.copy_(noise * scale + (parameter.ndim == 1 and name.endswith("weight")))
    return model
