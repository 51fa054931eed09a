"""Recipes: experiments as functions that return the runs they are made of.

Two protocols on real CIFAR-10, fixed so that all comparisons share them: `cpu` takes 10,000 samples of the stream,
about a quarter of an hour on one core, `cpu_fast` takes 5,000. Both train ResNet-20 (published variant) at one
iteration per sample within 5,000,000 bytes, and evaluate every 500 samples on 200 test images of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from budgeted.bench.bongard_recipes import KINDS, drawn_questions, paper_prices, paper_questions
from budgeted.bench.bongard_recipes import POLICIES as DRAWN_POLICIES
from budgeted.errors import UnknownName
from budgeted.runs.config import RunConfig


@dataclass(frozen=True)
class Recipe:
    """One experiment: a question, and the runs that answer it."""

    question: str
    runs: tuple[RunConfig, ...]
    prices: Callable[[tuple[RunConfig, ...]], Iterable[str]] | None = None
    """what is said of runs that are too large to be begun by mistake, before they start"""


def cpu(method: str, stream: str = "gaussian", *, settings: Mapping[str, str] | None = None) -> RunConfig:
    """Protocol `cpu`."""
    return RunConfig(
        method=method,
        dataset="cifar10",
        stream=stream,
        model="resnet20",
        iterations=1.0,
        memory="5000000B",
        limit=10_000,
        eval_every=500,
        eval_samples=2_000,
        settings=dict(settings or {}),
    )


def cpu_fast(method: str, stream: str = "gaussian", *, settings: Mapping[str, str] | None = None) -> RunConfig:
    """Protocol `cpu-fast`: the first to ask, and for screening."""
    return replace(cpu(method, stream, settings=settings), limit=5_000)


def over_seeds(configs: Sequence[RunConfig], seeds: Sequence[int]) -> tuple[RunConfig, ...]:
    """Seed by seed, so that an experiment that is cut short has the same seeds of everything."""
    return tuple(replace(config, seed=seed) for seed in seeds for config in configs)


COMPONENTS = ("vanilla", "al", "sar", "al-sar")


def balanced(config: RunConfig) -> RunConfig:
    """With every class replayed as often as every other."""
    return replace(config, retrieval="class-balanced")


def components_under(protocol: Callable[[str], RunConfig]) -> list[RunConfig]:
    """The paper's four, and class-balanced retrieval in the place of SAR."""
    return [*map(protocol, COMPONENTS), balanced(protocol("vanilla")), balanced(protocol("al"))]


def components() -> Recipe:
    return Recipe(
        "What do freezing and retrieval each add? Gaussian stream, protocol cpu.",
        over_seeds(components_under(cpu), (1, 2, 3)),
    )


def components_disjoint() -> Recipe:
    return Recipe(
        "The same on a disjoint stream, protocol cpu-fast.",
        over_seeds(components_under(lambda method: cpu_fast(method, "disjoint")), (1, 2)),
    )


PUBLISHED_GRADIENTS = {
    "retrieval.similarity": "class_gradient",
    "retrieval.class_gradient": "published",
    "retrieval.ema": "0.001",
}
"""S as the published code has it."""
OWN_CLASS = {"retrieval.similarity": "own_class", "retrieval.temperature": "0.5"}
"""No similarity between classes; a learned S has about a quarter on its diagonal, hence four times its temperature."""
EVEN_INSIDE_CLASSES = {
    "retrieval.frequency": "discounted",
    "retrieval.normalisation": "none",
    "retrieval.own": "class_mean",
    "retrieval.clamp": "false",
    "retrieval.temperature": "1.0",
}
"""The opposite of reading (a): every class as often as it is stored, the seldom used samples of a class first."""


def readings_sar() -> Recipe:
    """The readings that differ most, beside Vanilla and reading (a): the whole score divided by |M|."""
    variants: list[dict[str, str]] = [
        {},
        {"retrieval.normalisation": "class"},
        {"retrieval.normalisation": "none"},
        PUBLISHED_GRADIENTS,
        OWN_CLASS,
    ]
    configs = [cpu("vanilla"), balanced(cpu("vanilla")), *(cpu("sar", settings=variant) for variant in variants)]
    return Recipe(
        "Which reading of similarity-aware retrieval carries the gain? Gaussian stream, protocol cpu.",
        over_seeds(configs, (1, 2, 3)),
    )


def settings_sar() -> Recipe:
    """One change at a time, from reading (a); a plain reservoir for Vanilla too."""
    reservoir = {"learner.selection": "reservoir"}
    variants: list[dict[str, str]] = [
        {},
        {"retrieval.similarity": "class_gradient"},
        {"retrieval.ema": "0.001"},
        {"retrieval.self_term": "double"},
        {"retrieval.temperature": "0.03125"},
        {"retrieval.temperature": "0.5"},
        {"retrieval.new_class": "mean"},
        {"retrieval.eviction": "keep"},
        {"learner.sampled_mode": "evaluation"},
        reservoir,
        EVEN_INSIDE_CLASSES,
    ]
    vanilla = [cpu_fast("vanilla"), cpu_fast("vanilla", settings=reservoir)]
    configs = [*vanilla, *(cpu_fast("sar", settings=variant) for variant in variants)]
    return Recipe(
        "Does any single setting of similarity-aware retrieval matter? Screening, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


def settings_al() -> Recipe:
    """One change at a time, beside Vanilla and Vanilla with about as much compute as aL leaves."""
    variants: list[dict[str, str]] = [
        {},
        {"freezing.head_fisher": "false"},
        {"freezing.ema_start": "first"},
        {"freezing.ema_start": "corrected"},
        {"freezing.ema": "0.001"},
        {"freezing.refresh_every": "2"},
        {"freezing.refresh_every": "8"},
        {"learner.batch_norm": "hold"},
    ]
    less = replace(cpu_fast("vanilla"), iterations=0.833)
    return Recipe(
        "Which setting of adaptive freezing keeps the accuracy? Screening, protocol cpu-fast.",
        over_seeds([cpu_fast("vanilla"), less, *(cpu_fast("al", settings=variant) for variant in variants)], (1, 2)),
    )


def full_size() -> Recipe:
    config = RunConfig(dataset="cifar10", model="resnet32", iterations=1.0, memory="7998016B", eval_every=1_000, seed=1)
    return Recipe(
        "The paper's size: ResNet-32, 50,000 samples, 7,998,016 bytes, one seed.",
        (
            replace(config, method="vanilla"),
            replace(config, method="al-sar"),
            balanced(replace(config, method="vanilla")),
        ),
    )


def savings() -> Recipe:
    """What freezing saved buys more iterations; `components` holds the runs that do not spend it."""
    configs = [replace(cpu(name), spend_savings=True) for name in ("al", "al-sar")]
    return Recipe("At equal executed compute, what do the savings buy?", over_seeds(configs, (1, 2, 3)))


EQUAL_COMPUTE = "19.83TFLOP"
"""What Vanilla executes on `cpu-fast` at one iteration per sample, under rule `real`."""

REPLAY_METHODS = ("er", "der++", "mir", "aser", "ewc", "ocs", "cama", "bic", "gdumb", "rm", "clib", "lider")
POLICIES = ("constant", "linear", "random", "egeria", "ptlf")


def at_equal_compute(config: RunConfig) -> RunConfig:
    """As many iterations as EQUAL_COMPUTE pays for, with everything the method executes; savings are spent."""
    return replace(config, iterations=None, compute=EQUAL_COMPUTE, spend_savings=True)


def methods() -> Recipe:
    configs = [at_equal_compute(cpu_fast(name)) for name in (*COMPONENTS, *REPLAY_METHODS)]
    return Recipe(
        "Which method learns most from the same executed compute and bytes? Gaussian stream, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


PAPER_CHARGES = {"ewc": 1.0, "mir": 4.12, "ocs": 2.0, "lider": 2.33}
"""An iteration over ER's, as the paper prints it: of its methods whose compute or bytes we charge otherwise."""


def paper_charges() -> Recipe:
    """The iterations and slots that the paper's own accounting gives; `methods` has all at an honest price."""
    configs = [
        replace(cpu_fast(name), iterations=round(1 / charge, 3), byte_rule="paper")
        for name, charge in PAPER_CHARGES.items()
    ]
    return Recipe(
        "Does it change the order of methods to charge them as the paper does? Gaussian stream, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


def freezing_policies() -> Recipe:
    """The adaptive policy under Vanilla is the method `al`."""
    vanilla, al = (at_equal_compute(cpu_fast(name)) for name in ("vanilla", "al"))
    configs = [vanilla, al, *(replace(vanilla, freezing=name) for name in POLICIES)]
    return Recipe(
        "Which freezing policy learns most from the same executed compute? Vanilla, Gaussian, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


def vit() -> Recipe:
    """A vision transformer from scratch: its 2.7 million parameters alone are beyond the protocol's bytes."""
    config = replace(cpu_fast("vanilla"), model="vit-tiny", memory=None, slots=500)
    return Recipe(
        "Does freezing keep a small ViT's accuracy? The stream of protocol cpu-fast, 500 slots.",
        over_seeds([config, replace(config, method="al")], (1, 2)),
    )


def bongard_drawn() -> Recipe:
    return Recipe(
        "What does freezing save a tiny LLaVA with LoRA, and what does it cost? Drawn Bongard, both kinds of question.",
        over_seeds([drawn_questions(kind, policy) for kind in KINDS for policy in DRAWN_POLICIES], (1, 2, 3)),
    )


def bongard_paper(name: str, title: str, items: str = "") -> Recipe:
    """Needs the weights, the pictures and a GPU; the adaptive policy under Vanilla is the method `al`."""
    configs = [paper_questions(f"{name}-{kind}{items}", method) for kind in KINDS for method in ("vanilla", "al")]
    runs = over_seeds(configs, (1, 2, 3))
    return Recipe(f"The paper's table of {title}: LLaVA-1.5-7B with LoRA, with and without aL.", runs, paper_prices)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "components": components,
    "components-disjoint": components_disjoint,
    "readings-sar": readings_sar,
    "settings-sar": settings_sar,
    "settings-al": settings_al,
    "full-size": full_size,
    "savings": savings,
    "methods": methods,
    "paper-charges": paper_charges,
    "freezing-policies": freezing_policies,
    "vit": vit,
    "bongard-drawn": bongard_drawn,
    "bongard-hoi": lambda: bongard_paper("bongard-hoi", "Bongard-HOI"),
    "bongard-openworld": lambda: bongard_paper("bongard-openworld", "Bongard-OpenWorld", "?items=every"),
}


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    return RECIPES[name]()
