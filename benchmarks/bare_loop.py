"""The bare loop that the learner's speed is measured against: replay in plain PyTorch, as one would write it by hand.

Nothing is slowed down on purpose: channels_last where it helps, a fused optimizer, a preallocated uint8 memory, the
learner's own augmentation. What it leaves out is what the learner adds: freezing, similarity, prices, ledger, checks,
resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.problems.augment import Augmenter


def bare_replay(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    augmenter: Augmenter,
    stream: Iterable[tuple[Tensor, Tensor]],
    image_shape: tuple[int, int, int],
    slots: int,
    batch: int,
    seed: int,
    replay_only: bool = False,
) -> Iterator[Tensor]:
    """One training step, and its loss, for each group of new samples that the stream gives (uint8 images, labels).

    ER: a batch is the new samples and as many from the memory as fill it. `replay_only`: all of it is from the memory.
    """
    memory = torch.zeros(slots, *image_shape, dtype=torch.uint8)
    memory_labels = torch.zeros(slots, dtype=torch.int64)
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    rng = np.random.default_rng(seed)
    seen = 0
    for images, labels in stream:
        new, stored = 0 if replay_only else len(labels), min(seen, slots)
        if new + stored >= 2:  # batch norm needs two
            drawn = torch.from_numpy(rng.choice(stored, min(stored, batch - new), replace=False))
            inputs = augmenter(torch.cat([images[:new], memory[drawn]]), rng)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), torch.cat([labels[:new], memory_labels[drawn]]))
            loss.backward()
            optimizer.step()
            yield loss
        for image, label in zip(images, labels, strict=True):  # reservoir
            slot = seen if seen < slots else int(rng.integers(seen + 1))
            if slot < slots:
                memory[slot], memory_labels[slot] = image, label
            seen += 1
