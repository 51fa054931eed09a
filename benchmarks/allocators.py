"""What a training step takes under other allocators of memory, in CPU time on one thread.

    python benchmarks/allocators.py [--model resnet20] [--rounds 3] [--json FILE]

Each allocator that is found has a process of its own, in turns: glibc's as it comes, glibc's as `budgeted run` tells it
to keep what is freed, tcmalloc and jemalloc where they are installed (Debian: libtcmalloc-minimal4, libjemalloc2). All
must end with the same weights.
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BATCH, WARM_UP, STEPS = 16, 5, 40
PRELOADED = {"tcmalloc": "tcmalloc_minimal", "jemalloc": "jemalloc"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--one", choices=("as it comes", "kept"), help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(one(chosen.model, chosen.precision, kept=chosen.one == "kept")))
        return
    from budgeted.runs.environment import environment  # torch is imported where it is needed

    record: dict[str, Any] = {"machine": environment(1, "cpu"), "model": chosen.model, "batch": BATCH, "runs": {}}
    for precision in ("float32", "bfloat16"):
        found: dict[str, list[float]] = {}
        digests = set()
        for _ in range(chosen.rounds):
            for name, library in allocators().items():
                milliseconds, digest = child(chosen.model, precision, library, kept=name == "glibc, kept")
                found.setdefault(name, []).append(milliseconds)
                digests.add(digest)
        assert len(digests) == 1, "an allocator changed the weights"
        usual = statistics.median(found["glibc, kept"])
        for name, times in found.items():
            print(f"{chosen.model}, {precision}: {name:12} {statistics.median(times):6.1f} ms a step, "
                  f"{statistics.median(times) / usual:.2f} of what budgeted run takes")  # fmt: skip
        record["runs"][precision] = found
    if chosen.json:
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


def allocators() -> dict[str, str | None]:
    """By name, with the library to load first."""
    libraries = {name: ctypes.util.find_library(library) for name, library in PRELOADED.items()}
    return {"glibc": None, "glibc, kept": None, **{name: found for name, found in libraries.items() if found}}


def child(model: str, precision: str, library: str | None, *, kept: bool) -> tuple[float, str]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": library or ""}
    how = ["--one", "kept" if kept else "as it comes", "--precision", precision, "--model", model]
    done = subprocess.run(
        [sys.executable, __file__, *how], env=surroundings, check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    return found["milliseconds"], found["weights"]


def one(name: str, precision: str, *, kept: bool) -> dict[str, Any]:
    """The median step of this process."""
    import torch
    from torch.nn.functional import cross_entropy

    from budgeted import models
    from budgeted.runs.allocation import keep_freed_memory

    if kept:
        keep_freed_memory()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = models.build(name, classes=10, input_shape=(3, 32, 32), seed=0).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,), generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    taken = []
    for _ in range(WARM_UP + STEPS):
        begin = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        taken.append(1e3 * (time.process_time() - begin))
    digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters()))
    return {"milliseconds": statistics.median(taken[WARM_UP:]), "weights": digest.hexdigest()}


if __name__ == "__main__":
    main()
