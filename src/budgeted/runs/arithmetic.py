"""The fingerprint of a machine's arithmetic: equal where the same program gives the same bits.

Versions, instruction set and threads do not decide it alone: the libraries below torch and numpy choose kernels and
the order of their sums by vendor and cache too. So a small fixed set of operations is run, at sizes that our networks
use, and their bits are hashed. Two machines with one fingerprint have agreed on all of them; it proves no more.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adam import adam

_BATCH = 16
# channels in, channels out, side, kernel, stride: stem, each stage, where a stage begins, a patch embedding
_CONVOLUTIONS = (
    (3, 16, 32, 3, 1),
    (16, 16, 32, 3, 1),
    (16, 32, 32, 3, 2),
    (16, 32, 32, 1, 2),
    (32, 32, 16, 3, 1),
    (64, 64, 8, 3, 1),
    (1, 8, 8, 3, 1),
    (3, 64, 32, 4, 4),
)
_PRODUCTS = ((16, 64, 10), (16, 784, 256), (256, 64, 5), (1040, 64, 192), (3, 233, 233))


@lru_cache
@torch.enable_grad()
def fingerprint(threads: int, device: str = "cpu") -> str:
    """Sixteen hexadecimal digits over the bits of the operations below, under so many threads; once per process."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        digest = hashlib.sha256()
        for result in _results(torch.device(device)):
            digest.update(result.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]
    finally:
        torch.set_num_threads(before)


def processor() -> str:
    """The processor's name, for people."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [
        f"{short} {facts[long]}" for short, long in (("family", "cpu family"), ("model", "model")) if long in facts
    ]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _results(device: torch.device) -> Iterator[Tensor]:
    # numpy's generator gives the same bits everywhere; torch's own normal numbers do not
    drawn = np.random.Generator(np.random.PCG64(1))

    def some(*shape: int) -> Tensor:
        return torch.from_numpy(drawn.random(shape, np.float32) - np.float32(0.5)).to(device)

    for layout in (torch.contiguous_format, torch.channels_last):
        for given, wanted, side, kernel, stride in _CONVOLUTIONS:
            images = some(_BATCH, given, side, side).contiguous(memory_format=layout).requires_grad_()
            weight = some(wanted, given, kernel, kernel).contiguous(memory_format=layout).requires_grad_()
            maps = F.conv2d(images, weight, stride=stride, padding=kernel // 2)
            scale, shift = some(wanted).requires_grad_(), some(wanted).requires_grad_()
            mean, variance = torch.zeros(wanted, device=device), torch.ones(wanted, device=device)
            normed = F.relu(F.batch_norm(maps, mean, variance, scale, shift, training=True))
            pooled = normed.mean((2, 3))
            yield from (maps, mean, variance, pooled)
            yield from torch.autograd.grad(pooled.square().sum(), (images, weight, scale, shift))
    for rows, inner, columns in _PRODUCTS:
        left, right = some(rows, inner).requires_grad_(), some(columns, inner).requires_grad_()
        loss = F.cross_entropy(F.linear(left, right), torch.arange(rows, device=device) % columns)
        yield loss
        yield from torch.autograd.grad(loss, (left, right))
    tokens = some(4, 3, 65, 32).requires_grad_()
    attended = F.gelu(F.layer_norm(F.scaled_dot_product_attention(tokens, tokens, tokens), (32,)))
    yield from (attended, *torch.autograd.grad(attended.sum(), (tokens,)))
    for length in (7, 464, 4608, 36864):
        numbers = some(length)
        yield from (numbers.sum(), numbers.norm(), numbers.softmax(0), numbers.double().log1p().sum(), numbers.tanh())
    yield from _updates(some)
    halved = some(_BATCH, 64).bfloat16(), some(32, 64).bfloat16()
    yield F.linear(*halved).float()
    if device.type == "cpu":
        yield from _of_numpy(drawn)


def _updates(some: Callable[..., Tensor]) -> Iterator[Tensor]:
    """Two steps of fused Adam, by the function: the class takes a second or two to load what compiles."""
    shape = (64, 64, 3, 3)
    weight, mean, square = some(*shape), torch.zeros_like(some(*shape)), torch.zeros_like(some(*shape))
    count = torch.zeros((), device=weight.device)
    for _ in range(2):
        adam(
            [weight], [some(*shape)], [mean], [square], [], [count], fused=True, amsgrad=False, maximize=False,
            beta1=0.9, beta2=0.999, lr=3e-4, weight_decay=0.0, eps=1e-8,
        )  # fmt: skip
    yield from (weight, mean, square)


def _of_numpy(drawn: np.random.Generator) -> Iterator[Tensor]:
    """What retrieval and selection compute in."""
    for numbers in (drawn.random((200, 233), np.float32), drawn.random((200, 233))):
        for found in (numbers @ numbers.T, np.exp(numbers), np.log(numbers + 1), numbers.sum(0), numbers.sum()):
            yield torch.from_numpy(np.atleast_1d(np.asarray(found)))
