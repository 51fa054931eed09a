"""A forger with patience: edits a run's folder and writes every digest anew, so that only a replay can tell."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from budgeted.learner.files import file_digest, replace_file, sealed, write_json
from budgeted.learner.state import NUMBERS, SEAL, TENSORS, read_numbers
from budgeted.runs.config import RunConfig
from budgeted.runs.environment import environment
from budgeted.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    RECORDS,
    SUMMARY,
    RunFolder,
    read_config,
    read_summary,
    write_config,
    write_summary,
)
from budgeted.runs.records import read_records, records_digest
from budgeted.runs.run import Run, summarise


class Checkpoint:
    def __init__(self, path: Path, lines: bytes) -> None:
        self.name = path.name
        self.tensors: dict[str, Tensor] = load_file(path / TENSORS)
        self.numbers: dict[str, Any] = read_numbers(path)
        self.records = lines[: self.numbers["records"]["bytes"]].count(b"\n")

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        save_file(self.tensors, folder / TENSORS)
        self.numbers |= {"tensors_bytes": (folder / TENSORS).stat().st_size}
        self.numbers |= {"tensors_sha256": file_digest(folder / TENSORS)}
        replace_file(folder / NUMBERS, json.dumps(sealed(self.numbers, SEAL)).encode())


class Forged:
    """All of a run's folder, to be changed and written to another place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path / CONFIG)
        self.records = read_records(path / RECORDS)
        self.summary = read_summary(path / SUMMARY)
        lines = (path / RECORDS).read_bytes()
        self.checkpoints = [Checkpoint(each, lines) for each in sorted((path / CHECKPOINTS).iterdir())]

    def configure(self, **changes: Any) -> None:
        """The configuration everywhere, and what of the stream and the data follows from it."""
        self.config |= changes
        config = RunConfig.from_mapping(self.config, "the forgery")
        run = Run(config, RunFolder(self.path / "nowhere"), environment(1, "cpu"))
        self.summary |= {"config": dict(self.config), "seed": config.seed, "data": run.content}
        for each in self.checkpoints:
            each.numbers |= {"config": dict(self.config), "stream": run.stream.fingerprint(), "data": run.content}

    def write(self, to: Path) -> Path:
        shutil.copytree(self.path, to)
        shutil.rmtree(to / CHECKPOINTS)
        write_config(to / CONFIG, self.config)
        lines = [(json.dumps(record) + "\n").encode() for record in self.records]
        (to / RECORDS).write_bytes(b"".join(lines))
        for each in self.checkpoints:
            known = b"".join(lines[: each.records])
            each.numbers["records"] = {"bytes": len(known), "sha256": hashlib.sha256(known).hexdigest()}
            each.write(to / CHECKPOINTS / each.name)
        write_summary(to / SUMMARY, self.summary)
        return to

    def follow(self) -> Forged:
        """A summary that follows from records and weights."""
        run = Run(RunConfig.from_mapping(self.config, "the forgery"), RunFolder(self.path), environment(1, "cpu"))
        self.summary |= summarise(self.records, run.moments)
        self.summary |= {"records_sha256": records_digest(self.records), "spent": self.records[-1]["spent"]}
        self.summary |= {"spent_on": self.records[-1]["spent_on"], "samples": self.records[-1]["samples"]}
        digest = hashlib.sha256()
        weights = {name.removeprefix("model."): each for name, each in self.checkpoints[-1].tensors.items()
                   if name.startswith("model.")}  # fmt: skip
        for name, tensor in sorted(weights.items()):
            digest.update(name.encode())
            digest.update(tensor.numpy().tobytes())
        self.summary["weights_sha256"] = digest.hexdigest()
        return self


def claim_machine(folder: Path, **changes: Any) -> None:
    """As if the run had been made elsewhere."""
    forged = Forged(folder)
    elsewhere = {**forged.summary["environments"][0], **changes}
    forged.summary["environments"] = [elsewhere]
    for each in forged.checkpoints:
        each.numbers["environments"] = [elsewhere]
        shutil.rmtree(folder / CHECKPOINTS / each.name)
        each.write(folder / CHECKPOINTS / each.name)
    write_json(folder / "environment.json", elsewhere)
    write_summary(folder / SUMMARY, forged.summary)
