"""A product quantiser: a vector as one byte for each of its parts, the number of the nearest entry in a codebook.

The parts are runs of channels of equal length, each with a codebook of 256 entries that Lloyd's k-means has found. It
is written in torch, so that what it runs is counted, its draws are the run's own and it is saved bit for bit; faiss has
threads and a seed of its own, and no dispatcher sees what it runs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

SIZE = 256
"""entries of a codebook: what a byte tells apart"""
_CHUNK = 4096  # vectors whose distances are there at once


class ProductQuantiser(nn.Module):
    """Codebooks for vectors of so many channels; of the codebooks asked for, as many as divide the channels."""

    centroids: Tensor

    def __init__(self, channels: int, codebooks: int) -> None:
        super().__init__()
        parts = max(number for number in range(1, min(codebooks, channels) + 1) if channels % number == 0)
        self.register_buffer("centroids", torch.zeros(parts, SIZE, channels // parts))

    @property
    def parts(self) -> int:
        """Bytes of a code."""
        return len(self.centroids)

    def codes(self, features: Tensor) -> Tensor:
        """Of features [samples, channels, ...]: bytes [samples, ..., parts]."""
        return codes_of(features, self.centroids)

    def restored(self, codes: Tensor) -> Tensor:
        """Features of such codes."""
        return restored(codes, self.centroids)


def vectors_of(features: Tensor) -> Tensor:
    """One for every position of the maps."""
    return features.movedim(1, -1).reshape(-1, features.shape[1])


def codes_of(features: Tensor, centroids: Tensor) -> Tensor:
    found = nearest(vectors_of(features), centroids).to(torch.uint8)
    return found.view(len(features), *features.shape[2:], len(centroids))


def restored(codes: Tensor, centroids: Tensor) -> Tensor:
    parts, size, length = centroids.shape
    rows = codes.reshape(-1, parts).long() + torch.arange(0, parts * size, size, device=codes.device)
    entries = centroids.reshape(parts * size, length).index_select(0, rows.flatten().to(centroids.device))
    return entries.view(*codes.shape[:-1], parts * length).movedim(-1, 1)


def nearest(vectors: Tensor, centroids: Tensor) -> Tensor:
    """The number of the nearest entry, for every vector and part."""
    parts, _, length = centroids.shape
    norms, across = centroids.square().sum(2)[:, None], -2 * centroids.transpose(1, 2)
    found = []
    for chunk in vectors.split(_CHUNK):
        pieces = chunk.view(-1, parts, length).transpose(0, 1)
        # the squared distance, less that of the vector itself
        found.append(torch.baddbmm(norms, pieces, across).argmin(2).T)
    return torch.cat(found)


def improved(vectors: Tensor, centroids: Tensor) -> Tensor:
    """One iteration of Lloyd's: every entry becomes the mean of the vectors that it is nearest to; one that is nearest
    to none stays."""
    parts, size, length = centroids.shape
    rows = (nearest(vectors, centroids) + torch.arange(0, parts * size, size, device=vectors.device)).flatten()
    sums = torch.zeros(parts * size, length, device=vectors.device).index_add_(0, rows, vectors.reshape(-1, length))
    counts = torch.zeros(parts * size, device=vectors.device).index_add_(0, rows, vectors.new_ones(len(rows)))
    means = sums / counts.clamp(min=1)[:, None]
    return torch.where(counts[:, None] > 0, means, centroids.reshape(parts * size, length)).view(centroids.shape)


def drawn_from(vectors: Tensor, like: Tensor, generator: np.random.Generator) -> Tensor:
    """Entries to begin with: vectors drawn without repetition, as far as there are so many."""
    parts, size, length = like.shape
    rows = (
        generator.permutation(len(vectors))[:size]
        if len(vectors) >= size
        else generator.integers(len(vectors), size=size)
    )
    return vectors[torch.from_numpy(rows)].view(size, parts, length).transpose(0, 1).contiguous()
