"""A trained model as files for others: weights and a description, ONNX, or a program of `torch.export`.

What is written as ONNX or as a program takes samples as the learner does and answers with a logit for each class that
was met: normalisation is part of it, and so is what a method does to the logits before it answers (BiC), where that is
a scale and a shift for each class. What was written is loaded again and asked, and must answer as the learner does.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.learner.learner import Learner
from budgeted.problems import Classification

Format = Literal["safetensors", "onnx", "torch"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt2"}
_AGREE = 1e-3
"""how far logits of an exported model may lie from ours, in units of the largest"""


class _Says(nn.Module):
    """A model that says one number of every class."""

    def __init__(self, number: float, classes: int) -> None:
        super().__init__()
        self.said = torch.full((1, classes), number)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.said


class Answering(nn.Module):
    """From samples to a logit for each class that was met."""

    mean: Tensor
    std: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.model = learner.model
        self.seen = len(learner.class_labels)
        self.mirrored = _mirrored(learner)
        self.largest = 255.0 if learner.data.dtype == "uint8" else 1.0
        shape = (1, -1, *(1,) * (len(learner.data.input_shape) - 1))
        self.register_buffer("mean", torch.tensor(learner.data.mean).view(shape))
        self.register_buffer("std", torch.tensor(learner.data.std).view(shape))
        # a correction by class is two numbers for each; found by asking, whatever the method calls it
        zero = learner.method.respond(_Says(0.0, self.seen), torch.zeros(1))
        scale = learner.method.respond(_Says(1.0, self.seen), torch.zeros(1)) - zero
        self.register_buffer("scale", scale)
        self.register_buffer("shift", zero)

    def forward(self, images: Tensor) -> Tensor:
        inputs = (images.float() / self.largest - self.mean) / self.std
        logits: Tensor = self.model(inputs)
        if self.mirrored:
            logits = (logits + self.model(inputs.flip(-1))) / 2
        return logits[:, : self.seen].float() * self.scale + self.shift


def hand_on(learner: Learner, path: Path, kind: Format, facts: str) -> None:
    """Write the model to a file; `facts` go into the metadata of weights."""
    if not isinstance(learner.problem, Classification):
        raise BudgetedError(
            "only what classifies is exported: take learner.model, and save it as your problem wants it"
        )
    if not learner.class_labels:
        raise BudgetedError("nothing was learned yet: call learn() before exporting")
    samples = _some_samples(learner)
    ours = learner.logits(samples)
    with learner.lock, learner.network.predicting(), torch.no_grad():
        answering = Answering(learner).cpu().eval()
        _refuse_other_answers(ours, answering(samples), "the model")
        if kind == "safetensors":
            weights = {
                name: tensor.detach().cpu().contiguous().clone()
                for name, tensor in answering.model.state_dict().items()
            }
            save_file(weights, path, {"facts": facts})
        else:
            answer = (_onnx if kind == "onnx" else _program)(answering, samples, path)
            if answer is not None:
                _refuse_other_answers(ours, answer, path.name)


def described(learner: Learner, kind: Format) -> dict[str, Any]:
    """What another program must know of the file."""
    data = learner.data
    return {
        "classes": learner.class_labels,
        "input_shape": list(data.input_shape),
        "dtype": data.dtype,
        "mean": list(data.mean),
        "std": list(data.std),
        "mirrored": _mirrored(learner),
        "samples": learner.arrived,
        "note": _NOTES[kind == "safetensors"],
    }


_NOTES = (
    "samples: a batch as the learner takes them; logits: one for each of classes, normalisation is part of the file",
    "weights of the model alone: row i of the head is classes[i]; inputs are (uint8 over 255) minus mean, over std; if "
    "mirrored, we answer with the mean of the logits of a sample and of its mirror image",
)


def is_description(found: dict[str, Any]) -> bool:
    return found.get("note") in _NOTES


def _mirrored(learner: Learner) -> bool:
    return isinstance(learner.problem, Classification) and learner.problem.mirrored


def _program(answering: Answering, samples: Tensor, path: Path) -> Tensor:
    """A program of `torch.export`: `torch.export.load(FILE).module()(images)` needs none of our code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(answering, (samples,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        with path.open("wb") as file:  # torch looks at the name of a path
            torch.export.save(program, file)
        with path.open("rb") as file:
            answer: Tensor = torch.export.load(file).module()(samples).detach()
    return answer


def _onnx(answering: Answering, samples: Tensor, path: Path) -> Tensor | None:
    for needed in ("onnx", "onnxscript"):
        if importlib.util.find_spec(needed) is None:
            raise BudgetedError(f"an ONNX file needs {needed}: pip install 'budgeted[onnx]'")
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                answering, (samples,), path, dynamo=True, verbose=False, external_data=False,
                input_names=["images"], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            )  # fmt: skip
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"images": samples.numpy()})[0])


def _refuse_other_answers(ours: Tensor, theirs: Tensor, what: str) -> None:
    apart = float((ours - theirs).abs().max()) / max(1e-6, float(ours.abs().max()))
    if not apart <= _AGREE:
        raise BudgetedError(
            f"{what} answers otherwise than the learner (logits {apart:.2g} apart): this method's predictions are more "
            "than its model's; predict with `budgeted predict` instead"
        )


def _some_samples(learner: Learner) -> Tensor:
    """Noise of the right kind, the same each time."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, *learner.data.input_shape)
    if learner.data.dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return torch.randn(shape, generator=generator)
