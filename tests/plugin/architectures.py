"""Ten hand-written nets of the kinds that people bring: each with its batch, its loss and its blocks in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _norm_act(channels: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), act())


class BasicBlock(nn.Module):
    """torchvision's ResNet block: two convolutions and a skip, ReLU in place after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Any:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class SkipNet(nn.Module):
    """torchvision's ResNet: attributes in another order than they run."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 10)
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32))
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.maxpool, self.avgpool = nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Any:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layer2(self.layer1(x))), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Any:
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """timm's inverted residual: expand, depthwise, squeeze-excite, project."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = 3 * inputs
        self.pw, self.bn1 = nn.Conv2d(inputs, hidden, 1, bias=False), _norm_act(hidden, nn.SiLU)
        self.dw = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)
        self.bn2, self.se = _norm_act(hidden, nn.SiLU), SqueezeExcite(hidden)
        self.pwl, self.bn3 = nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.has_skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Any:
        y = self.bn3(self.pwl(self.se(self.bn2(self.dw(self.bn1(self.pw(x)))))))
        return x + y if self.has_skip else y


class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = nn.Conv2d(3, 12, 3, 2, 1, bias=False), _norm_act(12, nn.SiLU)
        self.blocks = nn.Sequential(
            nn.Sequential(MBConv(12, 12, 1)), nn.Sequential(MBConv(12, 20, 2), MBConv(20, 20, 1))
        )
        self.conv_head, self.bn2 = nn.Conv2d(20, 40, 1, bias=False), _norm_act(40, nn.SiLU)
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.bn2(self.conv_head(self.blocks(self.bn1(self.conv_stem(x)))))
        return self.classifier(F.dropout(self.global_pool(x), 0.1, self.training))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm_act(inputs), nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = _norm_act(2 * growth), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, *features: Tensor) -> Any:
        return self.conv2(self.norm2(self.conv1(self.norm1(torch.cat(features, 1)))))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.ModuleDict({"conv0": nn.Conv2d(3, 16, 3, 2, 1, bias=False)})
        for layer in range(3):
            self.features[f"dense{layer}"] = DenseLayer(16 + 8 * layer, 8)
        self.norm, self.classifier = nn.BatchNorm2d(40), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Any:
        features = [self.features["conv0"](x)]
        for layer in range(3):
            features.append(self.features[f"dense{layer}"](*features))
        return self.classifier(F.relu(self.norm(torch.cat(features, 1))).mean((2, 3)))


class Attention(nn.Module):
    """Multi-head attention written out, with a mask if it must not look ahead and a turn of query and key if given."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, turn: Callable[[Tensor], Tensor] | None = None) -> Any:
        n, t, d = x.shape
        query, key, value = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if turn is not None:
            query, key = turn(query), turn(key)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, t, d))


class PostNormLayer(nn.Module):
    """BERT: norm after the sum, dropout in every branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, 4), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Any:
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class PostNormEncoder(nn.Module):
    """Words, absolute positions and segments summed and normed; a pooler before the classifier."""

    def __init__(self, words: int = 40, width: int = 32) -> None:
        super().__init__()
        self.words, self.positions, self.segments = (nn.Embedding(n, width) for n in (words, 16, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(PostNormLayer(width) for _ in range(3))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens)))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class RotaryLayer(nn.Module):
    """LLaMA: RMS norm first, rotary positions, gated feed-forward without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width, 4, causal=True)
        self.norm2 = nn.RMSNorm(width)
        self.gate, self.up, self.down = (
            nn.Linear(*size, bias=False) for size in ((width, 2 * width), (width, 2 * width), (2 * width, width))
        )

    def forward(self, x: Tensor, turn: Callable[[Tensor], Tensor]) -> Any:
        x = x + self.attention(self.norm1(x), turn)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RotaryDecoder(nn.Module):
    """Tied embeddings: the head reads the same matrix as the words, so the stem's weight is trained by every step."""

    def __init__(self, tied: bool = True, words: int = 40, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(RotaryLayer(width) for _ in range(3))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight
        angles = torch.outer(torch.arange(16.0), 100.0 ** -torch.linspace(0, 1, 4))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def turn(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        length = x.shape[2]
        turned = torch.cat((-second, first), -1)
        return x * self.get_buffer("cos")[:length] + turned * self.get_buffer("sin")[:length]

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x, self.turn)
        return {"logits": self.lm_head(self.norm(x))}


class PreNormLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, 4), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        x = x + self.gamma * self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PreNormVision(nn.Module):
    """timm's ViT: patches, class token, learned absolute positions, layer scale."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, width))
        self.blocks = nn.Sequential(*[PreNormLayer(width) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class MixerLayer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix_tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.mix_channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Any:
        x = x + self.mix_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 8, 8), nn.Flatten(2))
        self.blocks = nn.Sequential(*[MixerLayer(16, width) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.stem(x).transpose(1, 2))).mean(1))


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.LeakyReLU(0.1),
            nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.LeakyReLU(0.1),
        )  # fmt: skip


class UNetClassifier(nn.Module):
    """Down and up again with skips over the whole net, then a classifier: every pixel gets a class."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = DoubleConv(3, 8), DoubleConv(8, 16), DoubleConv(16, 16)
        self.up2, self.join2 = nn.ConvTranspose2d(16, 16, 2, 2), DoubleConv(32, 16)
        self.up1, self.join1 = nn.Upsample(scale_factor=2), DoubleConv(24, 8)
        self.classify = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Any:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        deep = self.bottom(F.max_pool2d(two, 2))
        deep = self.join2(torch.cat([self.up2(deep), two], 1))
        return self.classify(self.join1(torch.cat([self.up1(deep), one], 1)))


class Adapter(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Any:
        return x + self.up(F.relu(self.down(x)))


class AdaptedLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.adapter = PreNormLayer(width).requires_grad_(False), Adapter(width)

    def forward(self, x: Tensor) -> Any:
        return self.adapter(self.layer(x))


class PartlyFrozen(nn.Module):
    """Fine-tuning: patches fixed, the first layers fixed altogether, the others fixed but for small adapters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8).requires_grad_(False)
        self.fixed = nn.ModuleList(PreNormLayer(width).requires_grad_(False) for _ in range(2))
        self.adapted = nn.ModuleList(AdaptedLayer(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in (*self.fixed, *self.adapted):
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class SharedBranch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        return x + self.linear2(F.relu(self.linear1(x)))


class SharedAndUnused(nn.Module):
    """Two layers share a matrix, a branch is for another task, a parameter is never read, and one module has none."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(20, width)
        self.layers = nn.ModuleList(SharedBranch(width) for _ in range(3))
        self.layers[2].linear1.weight = self.layers[0].linear1.weight  # type: ignore[union-attr]
        self.other_task, self.never = nn.Linear(width, 3), nn.Parameter(torch.zeros(7))
        self.activation, self.head = nn.Softplus(), nn.Linear(width, 6)

    def forward(self, x: Tensor, task: str = "classes") -> Any:
        x = self.activation(self.enter(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x) if task == "classes" else self.other_task(x)


def classes(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def next_words(outputs: Any, targets: Tensor) -> Tensor:
    logits = outputs["logits"]
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def labels_at_once(outputs: Any, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, targets)


def numbers(outputs: Any, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


@dataclass(frozen=True)
class Architecture:
    """How to build it, what it is trained on, and its blocks in order."""

    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    targets: Tensor
    blocks: str
    loss: Callable[[Any, Tensor], Tensor] = classes
    keywords: Mapping[str, Any] = field(default_factory=dict)


_draws = torch.Generator().manual_seed(11)
IMAGES = (torch.randn(4, 3, 32, 32, generator=_draws),)
TOKENS = torch.randint(0, 40, (4, 12), generator=_draws)
TEN = torch.randint(0, 10, (4,), generator=_draws)
SOME = torch.where(torch.rand(4, 12, generator=_draws) < 0.3, -100, TOKENS.roll(-1, 1))
VECTORS = (torch.randn(16, 20, generator=_draws),)

TEN_ARCHITECTURES: dict[str, Architecture] = {
    "skip": Architecture(SkipNet, IMAGES, TEN, "conv1 layer1.0 layer1.1 layer2.0 layer2.1 fc"),
    "depthwise, squeeze-excite": Architecture(
        EfficientNet, IMAGES, TEN, "conv_stem blocks.0.0 blocks.1.0 blocks.1.1 conv_head classifier"
    ),
    "dense": Architecture(
        DenseNet,
        IMAGES,
        torch.rand(4, 10, generator=_draws).round(),
        "features.conv0 features.dense0 features.dense1 features.dense2 classifier",
        labels_at_once,
    ),
    "post-norm encoder": Architecture(
        PostNormEncoder,
        (TOKENS,),
        TEN,
        "words segments layers.0 layers.1 layers.2 pooler classifier",  # positions read no data and go with the words
    ),
    "tied rotary decoder": Architecture(
        RotaryDecoder, (), SOME, "embed layers.0 layers.1 layers.2 lm_head", next_words, {"input_ids": TOKENS}
    ),
    "pre-norm, absolute positions": Architecture(
        PreNormVision, IMAGES, TEN, "patch_embed blocks.0 blocks.1 blocks.2 blocks.3 head"
    ),
    "mixer": Architecture(Mixer, IMAGES, TEN, "stem.0 blocks.0 blocks.1 blocks.2 head"),
    "u-shape": Architecture(
        UNetClassifier,
        (IMAGES[0][:2],),
        torch.randint(0, 5, (2, 32, 32), generator=_draws),
        "down1 down2 bottom up2 join2 join1 classify",
    ),
    "parts frozen already": Architecture(
        PartlyFrozen, IMAGES, TEN, "patches fixed.0 fixed.1 adapted.0 adapted.1 adapted.2 head"
    ),
    "shared and unused": Architecture(
        SharedAndUnused,
        VECTORS,
        torch.randn(16, 6, generator=_draws),
        "enter layers.0 layers.1 layers.2 head",
        numbers,
    ),
}
