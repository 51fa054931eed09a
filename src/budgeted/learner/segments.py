"""The log of a run's memory: segments of rows on disk, written once, named by the checkpoints that need them.

A segment is a safetensors file in a folder beside that of the checkpoints, called by its digest. A checkpoint names its
segments with their lengths and digests, and holds the place of every row; so any checkpoint that is kept can be put
together again, and segments that none names are removed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner.files import read_bytes, remove, replace_file
from budgeted.replay.journal import UNWRITTEN, Journal, Places, Segment, in_segment

FOLDER = "memory_log"
NAME = re.compile(r"rows-[0-9a-f]{32}\.safetensors")
SEGMENT_BYTES = 32 * 2**20
"""of the rows in a segment, about: what a checkpoint and a resume hold of the memory beside the memory itself"""
_LENGTHS = ".lengths"


def beside(checkpoint: Path) -> Path:
    """Where the log is that a checkpoint needs."""
    return checkpoint.absolute().parent.with_name(FOLDER)


def write(journal: Journal, folder: Path) -> tuple[Places, tuple[Segment, ...]]:
    """Write what changed; answers with the places of all rows and the segments that hold them. The journal learns of
    it by `settle`, when the checkpoint that names them is whole."""
    places, segments = journal.due()
    due = np.flatnonzero(places == UNWRITTEN)
    at_once, first = max(1, int(SEGMENT_BYTES // max(1.0, journal.rows.row_nbytes()))), journal.next_place
    for start in range(0, len(due), at_once):
        rows = due[start : start + at_once]
        content = save(_flat(journal.rows.content(rows)))
        digest = hashlib.sha256(content).hexdigest()
        name = f"rows-{digest[:32]}.safetensors"
        replace_file(folder / name, content)
        places[rows] = np.arange(first, first + len(rows))
        segments = (*segments, Segment(name, first, len(rows), len(content), digest))
        first += len(rows)
    return places, segments


def _flat(content: Mapping[str, Tensor | list[Tensor]]) -> dict[str, Tensor]:
    """Rows of differing lengths one after another, and how long each is."""
    found: dict[str, Tensor] = {}
    for name, rows in content.items():
        if isinstance(rows, list):
            found[name] = torch.cat(rows)
            found[name + _LENGTHS] = torch.tensor([len(row) for row in rows])
        else:
            found[name] = rows.contiguous()
    return found


def read(folder: Path, segments: Sequence[Segment], places: Places) -> dict[str, Tensor]:
    """The rows as a state has them, in the order of `places`; only one segment at a time is held beside them."""
    if sum(int(in_segment(places, segment).sum()) for segment in segments) != len(places):
        raise BudgetedError(f"the checkpoint names no segments for some of its {len(places)} rows: it is damaged")
    whole: dict[str, Tensor] = {}
    codes: dict[str, list[Tensor | None]] = {}
    for segment in segments:
        rows = torch.from_numpy(np.flatnonzero(in_segment(places, segment)))
        found = _checked(folder, segment)
        inside = torch.from_numpy(places)[rows] - segment.first
        for name in [name for name in found if not name.endswith(_LENGTHS)]:
            if name + _LENGTHS in found:
                each = found[name].split(found[name + _LENGTHS].tolist())
                kept = codes.setdefault(name, [None] * len(places))
                for row, place in zip(rows.tolist(), inside.tolist(), strict=True):
                    kept[row] = each[place].clone()  # a view would hold the whole segment
            else:
                if name not in whole:
                    whole[name] = torch.zeros((len(places), *found[name].shape[1:]), dtype=found[name].dtype)
                whole[name][rows] = found[name][inside]
    return whole | {name: torch.cat([row for row in rows if row is not None]) for name, rows in codes.items()}


def _checked(folder: Path, segment: Segment) -> dict[str, Tensor]:
    if not NAME.fullmatch(segment.file):  # it could name any file
        raise BudgetedError(f"{segment.file!r} is no segment of ours: the checkpoint is damaged")
    path = folder / segment.file
    content = read_bytes(path, segment.nbytes)
    if hashlib.sha256(content).hexdigest() != segment.sha256:
        raise BudgetedError(f"{path} does not have the checksum that the checkpoint names: it is damaged")
    return load(content)


def to_json(segments: Iterable[Segment]) -> list[list[Any]]:
    return [list(segment) for segment in segments]


def from_json(written: Any) -> tuple[Segment, ...]:
    return tuple(
        Segment(str(file), int(first), int(rows), int(nbytes), str(digest))
        for file, first, rows, nbytes, digest in written
    )


def drop(folder: Path, needed: Collection[str]) -> None:
    """Remove the segments that nobody needs, and what a killed writer left; files of others stay."""
    if not os.path.lexists(folder):
        return
    for path in folder.iterdir():
        own = NAME.fullmatch(path.name) or NAME.fullmatch(path.name.removeprefix(".").removesuffix(".part"))
        if own and path.name not in needed:
            remove(path)
