"""Recipes over Bongard: a tiny LLaVA on drawn questions, and the paper's two tables at the size of the paper.

The paper's runs need LLaVA-1.5-7B, the pictures and a GPU. They are priced before they start: from the model's config
alone, nothing frozen, so that whoever has all of it knows what is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import comb

from budgeted import streams
from budgeted.bench.llava_costs import PAPER_MODEL, PAPER_TFLOPS, llava_costs
from budgeted.budget import format_compute
from budgeted.models.llava import SHAPES
from budgeted.runs.config import RunConfig
from budgeted.streams.entry import split_options

POLICIES: dict[str, dict[str, str]] = {
    "none": {},
    "constant": {"freezing.n": "9"},
    "random": {"freezing.n_max": "12"},
    "adaptive": {"freezing.ema_start": "corrected"},
    "block-cyclic": {},
}
"""and their settings for the tiny LLaVA, of whose blocks twelve may rest"""
KINDS = ("ca", "pn")
TASKS = 5
STEPS = 300
PAPER_SETTINGS = {"learner.optimizer": "adamw", "learner.learning_rate": "5e-5", "learner.autocast": "bfloat16"}
BYTES_OF_A_TOKEN = 4
"""of the questions' English, about"""
RATE = 150e12
"""FLOP a second that a GPU of the paper's kind (A100) reaches in bfloat16, about half of its peak"""


def drawn_questions(kind: str, freezing: str) -> RunConfig:
    """Thirty new concepts in five tasks for the tiny LLaVA: 300 steps, everything stored, evaluated in the middle and
    at the end of every task. The averages of the adaptive policy start corrected, since 300 steps are few for its
    weight of 0.01."""
    samples = streams.info(f"bongard-drawn-{kind}").train_size
    return RunConfig(
        method="vanilla",
        dataset=f"bongard-drawn-{kind}",
        stream="disjoint",
        model="llava-tiny",
        iterations=STEPS / samples,
        unlimited=True,
        freezing=freezing,
        eval_every=samples // (2 * TASKS),
        checkpoint_every=samples // TASKS,
        settings={"learner.optimizer": "adamw", "learner.learning_rate": "1e-3", **POLICIES[freezing]},
    )


def paper_questions(name: str, method: str) -> RunConfig:
    """As the paper has it: batches of two, one step for two samples, everything stored, five tasks in their order."""
    samples = samples_of(name)
    return RunConfig(
        method=method,
        dataset=name,
        stream="domain",
        model=PAPER_MODEL,
        iterations=0.5,
        unlimited=True,
        batch_size=2,
        codec="pictures",
        eval_every=samples // TASKS,
        checkpoint_every=samples // TASKS,
        device="cuda",
        settings=dict(PAPER_SETTINGS),
    )


def samples_of(dataset: str) -> int:
    """Of a published set's stream; with `?items=every` a question for every three of seven pictures."""
    name, options = split_options(dataset)
    if options.get("items") != "every":
        return streams.info(name).train_size
    problems = streams.info(f"{name.rpartition('-')[0]}-ca").train_size
    return problems * comb(7, 3) * (2 if name.endswith("-pn") else 1)


def priced(config: RunConfig) -> str:
    """What a run at the size of the paper executes with nothing frozen, without its weights or data."""
    info = streams.info(config.dataset)
    steps = int(samples_of(config.dataset) * (config.iterations or 1))
    tokens = info.pictures * SHAPES[config.network].tokens_of_a_picture + len(info.longest_text) // BYTES_OF_A_TOKEN
    costs = llava_costs(config.network, tokens=tokens, pictures=info.pictures)
    whole = costs.step.total.real * config.batch_size * steps
    again = costs.checkpointed.total.real / costs.step.total.real
    return (
        f"{config.dataset}: {steps:,} steps of {config.batch_size} samples of about {tokens:,} tokens execute "
        f"{format_compute(whole, 'real')} with nothing frozen ({again:.2f} times that with gradient checkpointing), "
        f"about {whole / RATE / 3600:.1f} hours at {RATE / 1e12:.0f} TFLOP/s; a sample is "
        f"{info.nbytes_per_sample / 1e6:.2f} MB raw, codec `pictures` keeps each picture once"
    )


def paper_prices(configs: tuple[RunConfig, ...]) -> Iterator[str]:
    """A line for each data set among the runs."""
    first = {config.dataset: replace(config, seed=1) for config in configs}
    yield from map(priced, first.values())
    yield (
        f"the paper's own count ({PAPER_TFLOPS:,.0f} TFLOPs for Bongard-HOI P/N) sums adapters alone: "
        "`budgeted blocks llava-1.5-7b` says how it came about"
    )
