"""REMIND's product quantiser beside faiss's: what each leaves of the variance, and CPU seconds of training.

Vectors of 64 channels that depend on each other, as they are (`plain`) or behind a ReLU (`rectified`, as features are);
3,000 to train on and 500 others to be restored, 32 codebooks of 256, 25 iterations. `staying` is ours with entries that
are nearest to nothing left where they are, so that the difference which halving makes can be seen.

faiss is not among this project's dependencies: `pip install faiss-cpu`.

    python benchmarks/quantisers.py --out results/quantisers.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted.network import quantiser
from budgeted.runs.environment import environment

CHANNELS, PARTS, ITERATIONS, TRAINED_ON, RESTORED = 64, 32, 25, 3000, 500
Restore = Callable[[Tensor], Tensor]


def drawn(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(CHANNELS, CHANNELS, generator=generator) / 8
    vectors = torch.randn(TRAINED_ON + RESTORED, CHANNELS, generator=generator) @ mixing
    if kind == "rectified":
        vectors = vectors.relu()
    return vectors[:TRAINED_ON], vectors[TRAINED_ON:]


def ours(vectors: Tensor, seed: int) -> Restore:
    like = torch.zeros(PARTS, quantiser.SIZE, CHANNELS // PARTS)
    centroids = quantiser.drawn_from(vectors, like, np.random.default_rng(seed))
    for _ in range(ITERATIONS):
        centroids = quantiser.improved(vectors, centroids)
    return lambda given: quantiser.restored(quantiser.codes_of(given, centroids), centroids)


def staying(vectors: Tensor, seed: int) -> Restore:
    halved, quantiser.halved = quantiser.halved, lambda means, *_: means
    try:
        return ours(vectors, seed)
    finally:
        quantiser.halved = halved


def of_faiss(vectors: Tensor, seed: int) -> Restore:
    import faiss  # type: ignore[import-not-found]

    faiss.omp_set_num_threads(1)
    product = faiss.ProductQuantizer(CHANNELS, PARTS, 8)
    product.cp.seed, product.cp.niter, product.cp.min_points_per_centroid = seed + 1, ITERATIONS, 1
    product.train(vectors.numpy())
    return lambda given: torch.from_numpy(product.decode(product.compute_codes(given.numpy())))


QUANTISERS = {"ours": ours, "staying": staying, "faiss": of_faiss}


def measured(kind: str, name: str, seed: int) -> dict[str, float]:
    vectors, others = drawn(kind, seed)
    begin = time.process_time()
    restore = QUANTISERS[name](vectors, seed)
    seconds = time.process_time() - begin
    left = (others - restore(others)).square().sum() / (others - others.mean(0)).square().sum()
    return {"left": round(float(left), 6), "seconds": round(seconds, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        import faiss
    except ImportError:
        sys.exit("faiss is not installed: pip install faiss-cpu")
    record: dict[str, Any] = {
        "faiss": faiss.__version__,
        "environment": environment(1, "cpu"),
        "seeds": arguments.seeds,
    }
    for kind in ("plain", "rectified"):
        for name in QUANTISERS:
            runs = [measured(kind, name, seed) for seed in range(arguments.seeds)]
            record[f"{kind}, {name}"] = runs
            left = [each["left"] for each in runs]
            print(
                f"{kind:10} {name:8} left {statistics.fmean(left):.4f} ± {statistics.stdev(left):.4f}, "
                f"{statistics.median(each['seconds'] for each in runs):.2f} s",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
