"""Recipes of our own method beside the paper's and class-balanced replay, at the same bytes and executed compute.

Forwards and evaluations are in bfloat16, as in the fair table. The baselines get the learning rate that is best for
them of four, chosen as there on a seed that is in no table (`win-rates`): once as they are, and once with what ours has
for predictions, averaged weights and mirror images, so that what is ours and what is tuning can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from budgeted.bench.fair import CHOSEN_ON, RATE, Rates, at_rate
from budgeted.bench.protocols import (
    EQUAL_COMPUTE,
    Recipe,
    at_equal_compute,
    balanced,
    cpu_fast,
    in_lower_precision,
    over_seeds,
    with_settings,
)
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig

FULL_COMPUTE = "336.38TFLOP"
"""what Vanilla executes at the paper's size, 171.94 TMAC nominal, under rule `real`"""
CPU_COMPUTE = "39.69TFLOP"
"""what Vanilla executes under protocol `cpu`"""
PREDICTING = {
    key: value
    for key, value in METHODS["cram"].usual.items()
    if key.startswith("learner.average") or key == "learner.mirrored"
}
"""how ours predicts: averaged weights, and mirror images"""
RATES = ("3e-4", "1e-3", "2e-3", "4e-3")
STREAMS = ("gaussian", "disjoint")
OTHER_DATA = {
    "tinyimagenet": (5_000, "79.3TFLOP"),
    "svhn": (5_000, EQUAL_COMPUTE),
    "fashion-mnist": (5_000, "15.13TFLOP"),
}
"""data sets on which nothing was chosen: samples of the stream, and what Vanilla executes on them at one step each"""
ONE_LESS: tuple[dict[str, str], ...] = (
    {"learner.optimizer": "adam"},
    {"learner.average": "none"},
    {"learner.mirrored": "false"},
    {RATE: "3e-4"},
)
"""parts of ours that are settings, each taken away"""


def full_size(method: str, stream: str = "gaussian") -> RunConfig:
    """The paper's size: ResNet-32, the whole of CIFAR-10, its bytes and compute, all that is saved spent."""
    config = RunConfig(
        method=method, dataset="cifar10", stream=stream, model="resnet32", compute=FULL_COMPUTE, memory="7998016B",
        spend_savings=True, eval_every=1_000,
    )  # fmt: skip
    return in_lower_precision(config)


def win_full_size() -> Recipe:
    disjoint = [full_size(name, "disjoint") for name in ("cram", "vanilla", "al-sar")]
    runs = [*over_seeds([full_size("cram")], (2, 3, 4)), *over_seeds(disjoint, (1,))]  # by seed 1 a setting was chosen
    return Recipe("Our own method at the paper's size and budget: both streams.", tuple(runs))


def spending(method: str) -> RunConfig:
    return in_lower_precision(at_equal_compute(cpu_fast(method)))


def baselines(protocol: Callable[[str], RunConfig]) -> list[RunConfig]:
    """aL-SAR and class-balanced Vanilla, as they are and with ours in predictions."""
    plain = [protocol("al-sar"), balanced(protocol("vanilla"))]
    return [*plain, *(with_settings(config, PREDICTING) for config in plain)]


def win_rates() -> Recipe:
    return Recipe(
        "Which learning rate suits aL-SAR and class-balanced replay, predicting as they do and as ours does?",
        over_seeds([with_settings(each, {RATE: rate}) for each in baselines(spending) for rate in RATES], (CHOSEN_ON,)),
    )


def win_cpu(rates: Rates) -> Recipe:
    """Twice as long as `cpu-fast`, five seeds, both streams."""
    configs = [
        replace(each, stream=stream, limit=10_000, compute=CPU_COMPUTE)
        for stream in STREAMS
        for each in [spending("cram"), *(at_rate(baseline, rates) for baseline in baselines(spending))]
    ]
    return Recipe(
        "What is ours, and what is tuning? Baselines at their best rates, predicting as they do and as ours does.",
        over_seeds(configs, (1, 2, 3, 4, 5)),
    )


def win_ablation() -> Recipe:
    whole = spending("cram")
    without = [with_settings(whole, change) for change in ONE_LESS]
    others = [replace(whole, codec="raw"), replace(whole, retrieval="uniform")]
    return Recipe(
        "What does each part of our own method add? One taken away at a time, protocol cpu-fast.",
        over_seeds([whole, *without, *others], (1, 2, 3)),
    )


def win_other_data() -> Recipe:
    """Settings untouched: ours as it is, the others as published."""
    configs = [
        replace(config, dataset=name, limit=samples, compute=compute)
        for name, (samples, compute) in OTHER_DATA.items()
        for config in (spending("cram"), spending("vanilla"), balanced(spending("vanilla")), spending("al-sar"))
    ]
    return Recipe("Does it hold on data on which nothing was chosen?", over_seeds(configs, (1, 2)))


FIRST_CODECS: tuple[tuple[str, dict[str, str]], ...] = (
    ("raw", {}),
    ("jpeg", {"codec.quality": "75"}),
    ("jpeg", {"codec.quality": "95"}),
    ("progressive", {}),
)
"""at every size of the memory"""
OTHER_CODECS: tuple[tuple[str, dict[str, str]], ...] = (("webp", {"codec.quality": "75"}), ("ycc420", {}), ("half", {}))
"""at the smallest, where a codec matters most"""
CODEC_BYTES = ("2MB", "4MB", "8MB")


def codecs_on(samples: int, seeds: tuple[int, ...] = (1,)) -> Recipe:
    """Our own method with other memories, at the same compute whatever the length of the stream; two codecs also with
    the stream and the test passed through."""
    everywhere = {"codec.everywhere": "true"}
    whole = spending("cram")
    protocol = replace(whole, limit=samples, eval_every=whole.eval_every * samples // 5_000)
    configs = [
        replace(protocol, codec=name, memory=nbytes, settings={**protocol.settings, **settings})
        for nbytes in CODEC_BYTES
        for name, settings in (*FIRST_CODECS, *(OTHER_CODECS if nbytes == CODEC_BYTES[0] else ()))
    ]
    configs += [
        replace(protocol, codec=name, memory=CODEC_BYTES[0], settings={**protocol.settings, **settings, **everywhere})
        for name, settings in (("jpeg", {"codec.quality": "75"}), ("progressive", {}))
    ]
    return Recipe(
        f"Where does compression pay? Codecs at 2, 4 and 8 MB on {samples:,} samples, ResNet-20, one compute.",
        over_seeds(configs, seeds),
    )


NEW_BUDGETS = ((3_500, "3MB", "7TFLOP"), (7_000, "6MB", "16TFLOP"))
"""samples, bytes and compute that no record has from which recommendations are made"""


def recommended_sweep() -> Recipe:
    """What `plan --recommend` is held to; a seed of its own."""
    whole, plain = spending("cram"), balanced(spending("vanilla"))
    choices = [
        whole,
        replace(whole, codec="raw"),
        with_settings(whole, {"codec.quality": "95"}),
        with_settings(plain, {**PREDICTING, RATE: "1e-3"}),
        plain,
    ]
    configs = [
        replace(each, limit=samples, memory=memory, compute=compute)
        for samples, memory, compute in NEW_BUDGETS
        for each in choices
    ]
    return Recipe(
        "Budgets that are in no record: how near does what is recommended come to the best of a small sweep?",
        over_seeds(configs, (21,)),
    )


FROM_WIN_RATES: dict[str, Callable[[Rates], Recipe]] = {"win-cpu": win_cpu}
"""recipes that are made from the records of `win-rates`"""
WIN: dict[str, Callable[[], Recipe]] = {
    "win-full-size": win_full_size,
    "win-rates": win_rates,
    "win-cpu": lambda: win_cpu({}),
    "win-ablation": win_ablation,
    "win-other-data": win_other_data,
    "codecs-5000": partial(codecs_on, 5_000),
    "codecs-10000": partial(codecs_on, 10_000),
    "codecs-50000": partial(codecs_on, 50_000),
    "recommended-sweep": recommended_sweep,
}
