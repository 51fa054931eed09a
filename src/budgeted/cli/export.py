"""`budgeted export`: the model that a run has trained, as files for others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.budget import format_bytes
from budgeted.errors import BudgetedError
from budgeted.learner.handing_on import Format
from budgeted.learner.saving import export
from budgeted.runs.trained import trained


@dataclass(frozen=True)
class Export:
    """Write the model of a run: its weights with a description, ONNX, or a program of torch.export.

    Example: budgeted export runs/first --format onnx --out first-onnx. What was written is loaded again and asked, and
    must answer as the run's learner does.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run; its newest checkpoint counts."""
    out: Path | None = None
    """A new folder for the files; RUN/export-FORMAT if not given."""
    format: Format = "safetensors"
    """safetensors: the weights. onnx: for other programs (pip install 'budgeted[onnx]'). torch: a .pt2 file for
    torch.export.load."""

    def run_(self) -> None:
        out = self.out or self.run / f"export-{self.format}"
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BudgetedError(f"{out} is there already and not empty: choose another folder with --out")
        found = trained(self.run)
        more = {"model": found.config.network, "run": found.config.to_json()}
        for path in export(found.learner, out / "model", self.format, names=found.names, more=more):
            print(f"{path} ({format_bytes(path.stat().st_size, 3)})")
        state = "" if found.finished else ", of a run that has not ended"
        print(f"{len(found.names)} classes after {found.learner.arrived} samples{state}: {_some(found.names)}")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
