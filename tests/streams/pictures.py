"""Small pictures in files, and one set of them in every container."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image

WORDS = ("cat", "dog", "emu")


def pixels(seed: int, width: int = 8, height: int = 8) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(seed: int, form: str = "PNG", width: int = 8, height: int = 8) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels(seed, width, height)).save(out, form)
    return out.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@dataclass(frozen=True)
class Row:
    path: Path
    word: str


def rows_in(root: Path, each: int = 6, form: str = "JPEG") -> list[Row]:
    """A folder `tree` of `each` pictures of three classes, and its rows in the order in which a folder is listed."""
    rows = []
    for number, word in enumerate(WORDS):
        for i in range(each):
            path = write(root / "tree" / word / f"{i:02}.{form.lower()}", encoded(100 * number + i, form))
            rows.append(Row(path, word))
    return rows


def in_every_container(root: Path, rows: list[Row]) -> dict[str, str]:
    """The same rows as a folder, as manifests, as shards and as `datasets`; by kind, what `load` takes."""
    with open(root / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows((row.path.relative_to(root), row.word) for row in rows)
    words = [row.word for row in rows]
    paths = [str(row.path.relative_to(root)) for row in rows]
    pyarrow.parquet.write_table(pyarrow.table({"path": paths, "label": words}), root / "rows.parquet")
    images = [row.path.read_bytes() for row in rows]
    pyarrow.parquet.write_table(
        pyarrow.table({"image": images, "label": words}), root / "images.parquet", row_group_size=4
    )
    for shard in range(2):
        members = {}
        for i, row in list(enumerate(rows))[shard * len(rows) // 2 : (shard + 1) * len(rows) // 2]:
            members[f"{i:04}.jpg"] = row.path.read_bytes()
            members[f"{i:04}.cls"] = row.word.encode()
        write_tar(root / f"shard-{shard}.tar", members)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(WORDS))})
    table = {"image": [str(row.path) for row in rows], "label": [WORDS.index(row.word) for row in rows]}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(table, features=features).save_to_disk(root / "saved")
    return {
        "folder": f"folder:{root / 'tree'}",
        "csv": f"manifest:{root / 'rows.csv'}",
        "parquet": f"manifest:{root / 'rows.parquet'}",
        "parquet with pictures": f"manifest:{root / 'images.parquet'}",
        "shards": f"wds:{root}/shard-{{0..1}}.tar",
        "datasets": f"hf:{root / 'saved'}",
    }
