"""Golden curves: tiny runs whose records are kept, so that a change that alters learning is seen.

Where torch, numpy and the processor are those of the record, every number must be the same bit for bit; elsewhere sums
come out in another order, and the numbers must be near. After a change that is meant to alter learning:

    python tests/runs/test_golden.py [NAME …]

writes the records, or those named, anew; say why in the commit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from budgeted.methods import METHODS
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from budgeted.runs.environment import environment

FOLDER = Path(__file__).parent / "golden"
ALIKE = ("torch", "numpy", "cpu_capability", "machine", "threads", "device")


def configs() -> dict[str, RunConfig]:
    """Every method on the embedded digits, and what else changes how is learned."""
    plain = {name: RunConfig(method=name) for name in ("vanilla", "er", "al", "sar", "al-sar")}
    others = {
        "al-sar-disjoint": RunConfig(
            method="al-sar", stream="disjoint", settings={"freezing.ema": "0.2", "freezing.head_fisher": "false"}
        ),
        "er-linear-freezing": RunConfig(method="er", freezing="linear"),
        "sar-class-gradients": RunConfig(
            method="sar", settings={"retrieval.similarity": "class_gradient", "retrieval.normalisation": "class"}
        ),
    }
    # for time on smaller models, at a higher learning rate: three accuracies each, and those of the tasks' ends
    rate = {"learner.learning_rate": "0.002"}
    quick = {name: RunConfig(method=name, settings=rate) for name in METHODS if name not in plain}
    egeria = {**rate, "freezing.period": "2", "freezing.window": "3"}
    ptlf = {**rate, "freezing.n_max": "4", "freezing.probe": "3"}
    watching = {
        "er-egeria": RunConfig(method="er", freezing="egeria", settings=egeria),
        "er-ptlf": RunConfig(method="er", freezing="ptlf", settings=ptlf),
    }
    shared = {"slots": 60, "iterations": 1.0, "seed": 3}
    sizes: list[tuple[dict[str, RunConfig], dict[str, Any]]] = [
        (plain | others, {"model": "resnet20", "limit": 80, "eval_every": 40}),
        (quick, {"model": "mlp", "limit": 150, "eval_every": 50}),
        (watching, {"model": "cnn8", "limit": 90, "eval_every": 30}),
    ]
    return {
        name: RunConfig.from_mapping({**config.to_json(), **shared, **size}, name)
        for group, size in sizes
        for name, config in group.items()
    }


def curve(config: RunConfig, folder: Path) -> dict[str, Any]:
    """What a run found, without what the clock said."""
    summary = runs.start(config, folder)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    kept = ("samples", "steps", "accuracy", "loss", "spent", "frozen_share", "stored", "bytes")
    return {
        "environment": {key: environment(config.threads, config.device)[key] for key in ALIKE},
        "weights_sha256": summary["weights_sha256"],
        "records": [{key: record[key] for key in kept} for record in records],
    }


@pytest.mark.parametrize("name", configs())
def test_learning_has_not_changed(name: str, tmp_path: Path) -> None:
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    found = curve(configs()[name], tmp_path / "run")
    if found["environment"] == golden["environment"]:
        assert found == golden
        return
    assert len(found["records"]) == len(golden["records"])
    for here, there in zip(found["records"], golden["records"], strict=True):
        for key in ("samples", "steps", "stored", "bytes"):
            assert here[key] == there[key]
        # The same batches, but sums in another order: a few of the 360 test digits may fall to the other side.
        assert here["accuracy"] == pytest.approx(there["accuracy"], abs=0.03)
        assert here["spent"]["real"] == pytest.approx(there["spent"]["real"], rel=0.02)
        assert here["frozen_share"] == pytest.approx(there["frozen_share"], abs=0.03)


def main(chosen: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, config in configs().items():
        if chosen and name not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(curve(config, Path(folder) / "run"), indent=1)
        (FOLDER / f"{name}.json").write_text(text + "\n")
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
