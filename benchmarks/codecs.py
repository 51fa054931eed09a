"""What each codec of pictures costs and keeps: bytes, sharpness, and CPU time for encoding and decoding, on CIFAR-10.

For every codec and setting, over the same training pictures, spread evenly: bytes of a slot as the memory stores it
(its code, or its column; label and place in the arena aside), the mean over pictures of the peak signal-to-noise ratio,
CPU microseconds (one thread, median over rounds) for encoding one picture and for decoding one of a batch of 16, CPU
milliseconds for such a batch, and the operations that decoding a batch is charged.

    python benchmarks/codecs.py --data DIR [--pictures 1024] [--json codecs.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted import streams
from budgeted.replay import CODE, CODECS, Column
from budgeted.runs.environment import environment

BATCH, ROUNDS = 16, 5
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("raw", {}),
    ("webp", {"lossless": True, "quality": 0, "effort": 0}),
    ("ycc420", {"bits": 6}),
    ("ycc420", {"bits": 5}),
    ("ycc420", {"bits": 4}),
    ("half", {}),
    *(("jpeg", {"quality": quality}) for quality in (95, 90, 75, 50, 30)),
    ("jpeg", {"quality": 75, "subsampling": "4:4:4"}),
    *(("webp", {"quality": quality}) for quality in (90, 75, 50, 20)),
    *(("progressive", {"step": step}) for step in (2, 4, 8, 16, 32)),
)


def measured(name: str, settings: dict[str, Any], pictures: Tensor) -> dict[str, Any]:
    """One row of the table."""
    more = {"coarsest": settings["step"]} if name == "progressive" else {}
    codec = CODECS[name].made({**settings, **more})
    held = codec.columns([Column("sample", tuple(pictures.shape[1:]), torch.uint8)])
    encoded = [codec.encode(picture) for picture in pictures]
    batches = [_together(encoded[start : start + BATCH]) for start in range(0, len(encoded), BATCH)]
    decoded = torch.cat([codec.decode(batch) for batch in batches])
    error = ((decoded.double() - pictures.double()) ** 2).flatten(1).mean(1)
    encoding = _median(lambda: [codec.encode(picture) for picture in pictures]) / len(pictures)
    decoding = _median(lambda: [codec.decode(batch) for batch in batches]) / len(batches)
    codes = [len(each[CODE]) for each in encoded] if codec.varying else [sum(column.nbytes for column in held)]
    return {
        "codec": name,
        "settings": settings,
        "bytes": statistics.mean(codes),
        "largest": max(codes),
        "shared": codec.nbytes(),
        "psnr": None if float(error.max()) == 0 else float((10 * torch.log10(255**2 / error.clamp(min=1e-3))).mean()),
        "encode_us": 1e6 * encoding,
        "decode_us": 1e6 * decoding / BATCH,
        "batch_ms": 1e3 * decoding,
        "batch_operations": codec.operations(BATCH),
    }


def _together(encoded: list[dict[str, Tensor]]) -> dict[str, Any]:
    names = list(encoded[0])
    each = {name: [one[name] for one in encoded] for name in names}
    return {name: parts if name == CODE else torch.stack(parts) for name, parts in each.items()}


def _median(act: Callable[[], Any]) -> float:
    """CPU seconds."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        act()
        found.append(time.process_time() - start)
    return statistics.median(found)


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [
        "| codec | settings | bytes | PSNR, dB | encode, µs | decode, µs | batch of 16, ms | charged for the batch |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        settings = ", ".join(f"{name}={str(value).lower()}" for name, value in row["settings"].items())
        sharpness = "exact" if row["psnr"] is None else f"{row['psnr']:.1f}"
        lines.append(
            f"| `{row['codec']}` | {settings} | {row['bytes']:,.0f} | {sharpness} | {row['encode_us']:.0f} | "
            f"{row['decode_us']:.0f} | {row['batch_ms']:.2f} | {row['batch_operations'] / 1e6:.1f} MFLOP |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--pictures", type=int, default=1024, help="how many to look at, a multiple of 16")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = streams.load("cifar10", given.data, test=False).train_images
    places = np.linspace(0, len(images) - 1, given.pictures).astype(np.int64)
    pictures = torch.from_numpy(np.ascontiguousarray(images[places]))
    rows = []
    for name, settings in SETTINGS:
        rows.append(measured(name, settings, pictures))
        print(table(rows).splitlines()[-1] if len(rows) > 1 else table(rows), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"environment": environment(1, "cpu"), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
