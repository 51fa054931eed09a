"""A trained model as files for others: weights and a description, ONNX, or a program of `torch.export`.

What is written takes uint8 images and answers with a logit for each class that was met: normalisation is part of it,
and so is what a method does to the logits before it answers (BiC), where that is a scale and a shift for each class.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.learner.files import write_json
from budgeted.runs.trained import Trained

Format = Literal["safetensors", "onnx", "torch"]
DESCRIPTION, WEIGHTS, ONNX, PROGRAM = "model.json", "model.safetensors", "model.onnx", "model.pt2"
_AGREE = 1e-3
"""how far logits of an exported model may lie from ours, in units of the largest"""


class Answering(nn.Module):
    """From uint8 images to a logit for each class that was met."""

    mean: Tensor
    std: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        learner = trained.learner
        self.model = learner.model
        self.seen = len(trained.names)
        shape = (1, -1, 1, 1)
        self.register_buffer("mean", torch.tensor(learner.data.mean).view(shape))
        self.register_buffer("std", torch.tensor(learner.data.std).view(shape))
        # a correction by class is two numbers for each; found by asking, whatever the method calls it
        zero = learner.method.corrected(torch.zeros(1, self.seen))
        scale = learner.method.corrected(torch.ones(1, self.seen)) - zero
        self.register_buffer("scale", scale)
        self.register_buffer("shift", zero)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model((images.float() / 255 - self.mean) / self.std)[:, : self.seen].float()
        return logits * self.scale + self.shift


def hand_on(trained: Trained, folder: Path, kind: Format = "safetensors") -> list[Path]:
    """Write the model into a new folder; the files that were written. What was written is asked, and must agree."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BudgetedError(f"{folder} is there already and not empty: choose another folder")
    answering = Answering(trained).cpu().eval()
    images = _some_images(trained)
    ours = trained.learner.logits(images)
    _refuse_other_answers(ours, answering(images).detach(), "the model")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with torch.no_grad():
            written = _write[kind](answering, images, ours, folder)
        write_json(folder / DESCRIPTION, _described(trained, kind, written.name))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # half of it is of no use
        raise
    return [written, folder / DESCRIPTION]


def _weights(answering: Answering, images: Tensor, ours: Tensor, folder: Path) -> Path:
    model = answering.model.state_dict()
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.items()}, folder / WEIGHTS)
    return folder / WEIGHTS


def _program(answering: Answering, images: Tensor, ours: Tensor, folder: Path) -> Path:
    """A program of `torch.export`: `torch.export.load(FILE).module()(images)` needs none of our code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(answering, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        torch.export.save(program, folder / PROGRAM)
        loaded = torch.export.load(folder / PROGRAM).module()
        _refuse_other_answers(ours, loaded(images).detach(), PROGRAM)
    return folder / PROGRAM


def _onnx(answering: Answering, images: Tensor, ours: Tensor, folder: Path) -> Path:
    for needed in ("onnx", "onnxscript"):
        if importlib.util.find_spec(needed) is None:
            raise BudgetedError(f"an ONNX file needs {needed}: pip install 'budgeted[onnx]'")
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                answering, (images,), folder / ONNX, dynamo=True, verbose=False, external_data=False,
                input_names=["images"], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )  # fmt: skip
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / ONNX), providers=["CPUExecutionProvider"])
        answer = session.run(None, {"images": images.numpy()})[0]
        _refuse_other_answers(ours, torch.from_numpy(answer), ONNX)
    return folder / ONNX


_write: dict[str, Callable[[Answering, Tensor, Tensor, Path], Path]] = {
    "safetensors": _weights,
    "torch": _program,
    "onnx": _onnx,
}


def _refuse_other_answers(ours: Tensor, theirs: Tensor, what: str) -> None:
    apart = float((ours - theirs).abs().max()) / max(1e-6, float(ours.abs().max()))
    if not apart <= _AGREE:
        raise BudgetedError(
            f"{what} answers otherwise than the learner (logits {apart:.2g} apart): this method's predictions are more "
            "than its model's; predict with `budgeted predict` instead"
        )


def _some_images(trained: Trained) -> Tensor:
    """Noise of the right shape, the same each time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (4, *trained.learner.data.input_shape), dtype=torch.uint8, generator=generator)


def _described(trained: Trained, kind: Format, file: str) -> dict[str, Any]:
    data = trained.learner.data
    found: dict[str, Any] = {
        "file": file,
        "model": trained.config.network,
        "classes": list(trained.names),
        "labels": list(trained.learner.class_labels),
        "input_shape": list(data.input_shape),
        "mean": list(data.mean),
        "std": list(data.std),
        "samples": trained.learner.arrived,
        "run": trained.config.to_json(),
    }
    found["note"] = (
        "weights of the model alone: inputs are uint8 / 255, minus mean, over std; row i of the head is classes[i]"
        if kind == "safetensors"
        else "images: uint8, batch x channels x height x width; logits: one for each of classes"
    )
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]
