"""A tiny LLaVA with LoRA learns thirty new concepts from a stream of questions over pictures: the learner from Python.

By name the same is `budgeted run --dataset bongard-drawn-ca --method vanilla --unlimited --freezing adaptive`, with
records, checkpoints and a table; this shows the parts. Nothing is downloaded: pictures are drawn, and the base that the
adapters are put on is pretrained once, in less than a minute, into the user's cache.

    python examples/llava_bongard.py                                     # what do the positive pictures share?
    python examples/llava_bongard.py --questions pn --freezing none      # is the query positive or negative?
    python examples/llava_bongard.py --always multi_modal_projector      # the projector never rests: little is saved
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from budgeted import Learner, models, streams
from budgeted.budget import format_compute
from budgeted.learner import Settings
from budgeted.learner.evaluate import evaluate
from budgeted.learner.settings import LearnerSettings
from budgeted.methods import METHODS
from budgeted.problems import Questions
from budgeted.problems.llava_base import make_base


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", choices=("ca", "pn"), default="ca")
    parser.add_argument("--freezing", default="adaptive")
    parser.add_argument("--always", default="", help="modules that never rest")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--limit", type=int, help="samples of the stream; all if not given")
    parser.add_argument("--base", type=Path, help="folder of a LLaVA to start from")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()

    data = streams.load(f"bongard-drawn-{given.questions}")
    stream = streams.stream_of(data, "disjoint", given.seed, limit=given.limit)
    model = models.build(f"llava-tiny@{given.base or make_base()}", seed=given.seed)
    problem = Questions.of_data({}, data.info, model, "cpu")
    problem.classes, problem.samples = data.classes, len(stream)
    of_policy = {"ema_start": "corrected"} if given.freezing == "adaptive" else {}
    settings = Settings(LearnerSettings(optimizer="adamw", learning_rate=1e-3, always=given.always), freezing=of_policy)
    method = METHODS["vanilla"](freezing=given.freezing)
    learner = Learner(
        model, method, problem, iterations=given.steps / len(stream), settings=settings, seed=given.seed
    )  # fmt: skip
    for place in stream:
        learner.learn(*data.sample(place))
    score, _ = evaluate(learner, data.test_images, np.asarray(data.test_labels), data.classes)
    print(
        f"{given.questions} {given.freezing}: {score.accuracy:.1%} right, {score.beside['unparsed']:.0f} unparsed, "
        f"executed {format_compute(learner.ledger.spent.real, 'real')} in {learner.steps} steps, "
        f"{learner.mean_frozen_share:.1%} of the backward not run"
    )


if __name__ == "__main__":
    main()
