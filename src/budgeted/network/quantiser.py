"""A product quantiser: a vector as one byte for each of its parts, the number of the nearest entry in a codebook.

The parts are runs of channels of equal length, each with a codebook of 256 entries that Lloyd's k-means has found. It
is written in torch, so that what it runs is counted, its draws are the run's own and it is saved bit for bit; faiss has
threads and a seed of its own, and no dispatcher sees what it runs.

Behind a ReLU many vectors are alike, zeros above all: entries that begin at the same place leave all but one of them
nearest to nothing. Such an entry moves to where it is of most use, into the widest cluster, which it halves. faiss
halves crowded clusters; the most crowded one is that of the zeros, where a second entry gains nothing
(`benchmarks/quantisers.py`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

SIZE = 256
"""entries of a codebook: what a byte tells apart"""
_CHUNK = 512  # vectors whose distances are there at once: few enough to stay in the cache, a quarter of 4,096's time


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
    to none halves the widest cluster that no other halves."""
    parts, size, length = centroids.shape
    rows = (nearest(vectors, centroids) + torch.arange(0, parts * size, size, device=vectors.device)).flatten()
    pieces = vectors.reshape(-1, length)
    counts = torch.zeros(parts * size, device=vectors.device).index_add_(0, rows, vectors.new_ones(len(rows)))
    over = counts.clamp(min=1)[:, None]
    means = _summed(pieces, rows, parts * size) / over
    squares = _summed((pieces - means.index_select(0, rows)).square(), rows, parts * size)
    empty = (counts == 0).view(parts, size)
    means = torch.where(empty[:, :, None], centroids, means.view(centroids.shape))
    return halved(means, (squares / over).sqrt().view(centroids.shape), squares.sum(1).view(parts, size), empty)


def halved(means: Tensor, deviations: Tensor, widths: Tensor, empty: Tensor) -> Tensor:
    """The n-th empty entry of a codebook goes a deviation to one side of the n-th widest cluster's mean, that cluster's
    own entry to the other; where that has no width, it stays."""
    widest = widths.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(widths.shape[1], device=widths.device).expand_as(widths)
    halves = torch.zeros_like(empty).scatter(1, widest, places < empty.sum(1, keepdim=True))
    from_whom = widest.gather(1, (empty.cumsum(1) - 1).clamp(min=0))
    moves = (empty & (widths.gather(1, from_whom) > 0))[:, :, None]
    beside = torch.where(halves[:, :, None], means - deviations, means)
    return torch.where(moves, (means + deviations).gather(1, from_whom[:, :, None].expand_as(means)), beside)


def _summed(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return torch.zeros(count, values.shape[1], device=values.device).index_add_(0, rows, values)


def drawn_from(vectors: Tensor, like: Tensor, generator: np.random.Generator) -> Tensor:
    """Entries to begin with: vectors drawn without repetition, as far as there are so many."""
    parts, size, length = like.shape
    rows = (
        generator.permutation(len(vectors))[:size]
        if len(vectors) >= size
        else generator.integers(len(vectors), size=size)
    )
    return vectors[torch.from_numpy(rows)].view(size, parts, length).transpose(0, 1).contiguous()
