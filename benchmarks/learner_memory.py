"""Peak resident memory of examples/learn_from_pictures.py, beside that of its network alone.

Each side is a process of its own. `learner` runs the example as it is, on 400 pictures that are drawn here. `network`
has the same network in plain torch: built, trained for as many steps on batches of the same size, asked, and exported
to ONNX, with nothing stored. What the learner takes beyond that must stay below the budget of 2 MB and 50 MB more. Both
read the same pictures by the same library, and import what they use. Printed are the peaks (VmHWM, so Linux) after the
imports, after the last prediction and after the export, and whether the ONNX file answers as the learner does.

    python benchmarks/learner_memory.py --json results/timing/learner_memory.json
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "learn_from_pictures.py"
BUDGET, MORE = 2.0, 50.0  # megabytes
SIDE, STEPS, BATCH = 16, 299, 16


def peak() -> float:
    """Megabytes, the most so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def draw_pictures() -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:400], digits.target[:400], strict=True)):
        folder = Path("pictures") / ["nought", "one", "two", "three", "four"][label % 5]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).resize((48, 40)).save(folder / f"{number}.png")


def of_learner() -> dict[str, float]:
    import budgeted
    from budgeted import Learner, save  # noqa: F401  # what the example imports

    found, write = {"imports": peak()}, budgeted.export

    def export(learner: Any, *arguments: Any) -> Any:
        found["learned"] = peak()
        written = write(learner, *arguments)
        found["exported"] = peak()
        found["apart"] = apart(learner, written[0])
        return written

    budgeted.export = export
    runpy.run_path(str(EXAMPLE))
    return found


def apart(learner: Any, file: Path) -> float:
    """The largest difference of a logit between the file and the learner, over all pictures."""
    import onnxruntime
    from PIL import Image

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    pictures = [Image.open(path) for path in sorted(Path("pictures").glob("*/*"))]
    batch = np.stack([learner.problem.check(picture).numpy() for picture in pictures])
    return float(np.abs(session.run(None, {"images": batch})[0] - learner.logits(pictures).numpy()).max())


def of_network() -> dict[str, float]:
    import torch
    from PIL import Image

    from budgeted import models

    found = {"imports": peak()}
    paths = sorted(Path("pictures").glob("*/*"))
    words = sorted({path.parent.name for path in paths})
    model = models.build("cnn8", classes=len(words), input_shape=(3, SIDE, SIDE), seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = [paths[(BATCH * number + place) % len(paths)] for place in range(BATCH)]
        images = [np.asarray(Image.open(path).convert("RGB").resize((SIDE, SIDE))) for path in chosen]
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
        return pixels, torch.tensor([words.index(path.parent.name) for path in chosen])

    for number in range(STEPS):
        inputs, labels = batch(number)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(inputs)
    found["learned"] = peak()
    program = torch.onnx.export(model, (inputs,), dynamo=True, verbose=False)
    assert program is not None
    program.save("plain.onnx")
    import onnxruntime

    onnxruntime.InferenceSession("plain.onnx", providers=["CPUExecutionProvider"])
    found["exported"] = peak()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    parser.add_argument("--one", choices=["learner", "network"], help="measure here (what each process does)")
    arguments = parser.parse_args()
    if arguments.one:
        found = of_learner() if arguments.one == "learner" else of_network()
        print(json.dumps(found))
        return
    peaks: dict[str, dict[str, float]] = {}
    for side in ("learner", "network"):
        with tempfile.TemporaryDirectory() as folder:
            draw = [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r})['draw_pictures']()"]
            subprocess.run(draw, cwd=folder, check=True)
            command = [sys.executable, str(Path(__file__).resolve()), "--one", side]
            done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
            peaks[side] = json.loads(done.stdout.splitlines()[-1])
    logits = peaks["learner"].pop("apart")
    print(f"{'MB':10} {'learner':>9} {'network':>9} {'more':>7}")
    for moment in ("imports", "learned", "exported"):
        ours, plain = peaks["learner"][moment], peaks["network"][moment]
        print(f"{moment:10} {ours:9.1f} {plain:9.1f} {ours - plain:7.1f}")
    print(f"limit: {BUDGET + MORE:.0f} MB more; logits of the ONNX file differ by at most {logits:.2g}")
    if arguments.json:
        from budgeted.runs.environment import environment

        record = {"machine": environment(1, "cpu"), "peak_megabytes": peaks, "logits_apart": logits}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
