"""Recipes: experiments as functions that return the runs they are made of, under the protocols that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from budgeted.bench.bongard_recipes import KINDS, drawn_questions, paper_prices, paper_questions
from budgeted.bench.bongard_recipes import POLICIES as DRAWN_POLICIES
from budgeted.bench.fair import FROM_RATES, chosen_rates, unrated
from budgeted.bench.measured import measured_recipes
from budgeted.bench.paper_recipes import COMPONENTS, key, paper_recipes
from budgeted.bench.paper_recipes import vit as small_vit
from budgeted.bench.protocols import Recipe, at_equal_compute, balanced, cpu, cpu_fast, in_lower_precision, over_seeds
from budgeted.bench.win_recipes import FROM_WIN_RATES, WIN
from budgeted.errors import BudgetedError, UnknownName
from budgeted.registry import load
from budgeted.runs.config import RunConfig


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
        over_seeds(components_under(lambda method: cpu_fast(method, "disjoint")), (1, 2, 3)),
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


WITHOUT_STEM, WITHOUT_HEAD = {"freezing.stem_fisher": "false"}, {"freezing.head_fisher": "false"}
"""from the sums of adaptive freezing; the published code leaves out both"""


def readings_al() -> Recipe:
    """Each of the two alone tells which of them matters."""
    variants = [{}, {**WITHOUT_STEM, **WITHOUT_HEAD}, WITHOUT_STEM, WITHOUT_HEAD]
    return Recipe(
        "Does adaptive freezing without stem and head in its sums freeze by degrees? Gaussian stream, protocol cpu.",
        over_seeds([cpu("vanilla"), *(cpu("al", settings=variant) for variant in variants)], (1, 2, 3)),
    )


def at_full_size(method: str, settings: Mapping[str, str] | None = None) -> RunConfig:
    return RunConfig(
        method=method, dataset="cifar10", model="resnet32", iterations=1.0, memory="7998016B", eval_every=1_000, seed=1,
        settings=dict(settings or {}),
    )  # fmt: skip


def full_size() -> Recipe:
    return Recipe(
        "The paper's size: ResNet-32, 50,000 samples, 7,998,016 bytes, one seed.",
        (at_full_size("vanilla"), at_full_size("al-sar"), balanced(at_full_size("vanilla"))),
    )


def readings_al_full_size() -> Recipe:
    """In bfloat16: it takes an hour of a core; `full-size` has Vanilla, in float32."""
    reading = at_full_size("al", {**WITHOUT_STEM, **WITHOUT_HEAD})
    return Recipe(
        "At the paper's size, does adaptive freezing without stem and head in its sums freeze by degrees?",
        (in_lower_precision(reading),),
    )


def savings() -> Recipe:
    """What freezing saved buys more iterations; `components` holds the runs that do not spend it."""
    configs = [replace(cpu(name), spend_savings=True) for name in ("al", "al-sar")]
    return Recipe("At equal executed compute, what do the savings buy?", over_seeds(configs, (1, 2, 3)))


REPLAY_METHODS = ("er", "der++", "mir", "aser", "ewc", "ocs", "cama", "bic", "gdumb", "rm", "clib", "lider")
POLICIES = ("constant", "linear", "random", "egeria", "ptlf")


def methods() -> Recipe:
    configs = [at_equal_compute(cpu_fast(name)) for name in (*COMPONENTS, *REPLAY_METHODS)]
    return Recipe(
        "Which method learns most from the same executed compute and bytes? Gaussian stream, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


def freezing_policies() -> Recipe:
    """The adaptive policy under Vanilla is the method `al`."""
    vanilla, al = (in_lower_precision(at_equal_compute(cpu_fast(name))) for name in ("vanilla", "al"))
    configs = [vanilla, al, *(replace(vanilla, freezing=name) for name in POLICIES)]
    return Recipe(
        "Which freezing policy learns most from the same executed compute? Vanilla, Gaussian, protocol cpu-fast.",
        over_seeds(configs, (1, 2)),
    )


def vit() -> Recipe:
    """A vision transformer from scratch: its 2.7 million parameters alone are beyond the protocol's bytes."""
    return Recipe(
        "Does freezing keep a small ViT's accuracy? The stream of protocol cpu-fast, 500 slots.", tuple(small_vit())
    )


SCREENING_SEEDS = (11, 12, 13)
"""those of result tables are never chosen by"""
SCREENED = {
    "learner.autocast": "bfloat16",
    "learner.learning_rate": "2e-3",
    "learner.average": "bfloat16",
    "learner.average_decay": "0.995",
}
ONE_CHANGE: tuple[dict[str, str], ...] = (
    {},
    {"learner.average": "none"},
    {"learner.average_decay": "0.99"},
    {"learner.average_decay": "0.998"},
    {"learner.learning_rate": "1e-3"},
    {"learner.learning_rate": "3e-3"},
    {"learner.batch_size": "32"},
    {"learner.optimizer": "muon"},
    {"learner.optimizer": "muon", "learner.muon_iterations": "3"},
    {"learner.optimizer": "adamw", "learner.weight_decay": "0.05"},
    {"learner.schedule": "linear"},
    {"learner.warm_up": "30"},
    {"learner.label_smoothing": "0.1"},
    {"learner.norms": "memory"},
    {"learner.train_size": "24"},
    {"learner.train_size": "24", "learner.train_size_until": "0.7"},
    {"augmentation.randaugment_ops": "1"},
    {"augmentation.randaugment_ops": "0"},
    {"learner.autocast": "none"},
)
"""from the base; the last asks whether lower precision changes the picture"""


def screening(settings: Mapping[str, str]) -> RunConfig:
    """Protocol `screening`: cpu-fast with class-balanced retrieval, an averaged network and forwards in bfloat16, at
    equal compute. benchmarks/screen.py runs the same with several averages at once."""
    return at_equal_compute(balanced(cpu_fast("vanilla", settings={**SCREENED, **settings})))


def screened_parts() -> Recipe:
    return Recipe(
        "Which part earns its place? One change at a time, protocol screening.",
        over_seeds([screening(change) for change in ONE_CHANGE], SCREENING_SEEDS),
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


DATASET_STREAMS = (
    *((name, order) for order in ("disjoint", "gaussian") for name in (
        "cifar10", "svhn", "mnist", "fashion-mnist", "notmnist", "tinyimagenet",
    )),
    ("5-datasets", "domain"),
)  # fmt: skip


def on_datasets() -> Recipe:
    """Small enough for all of them: what each data set is like, not what a method can reach."""
    vanilla = RunConfig(
        method="vanilla", model="cnn8", slots=200, iterations=1.0, limit=1_000, eval_every=250, eval_samples=1_000,
        settings={"learner.autocast": "bfloat16"},
    )  # fmt: skip
    runs = [
        replace(config, dataset=name, stream=order, size=32 if name == "tinyimagenet" else None)
        for name, order in DATASET_STREAMS
        for config in (vanilla, balanced(vanilla), replace(vanilla, method="al-sar"))
    ]
    return Recipe("Does every data set run, and what comes of 1,000 samples of it?", over_seeds(runs, (1, 2)))


RECIPES: dict[str, Callable[[], Recipe]] = {
    "components": components,
    "components-disjoint": components_disjoint,
    "readings-sar": readings_sar,
    "settings-sar": settings_sar,
    "settings-al": settings_al,
    "readings-al": readings_al,
    "readings-al-full-size": readings_al_full_size,
    "full-size": full_size,
    "savings": savings,
    "methods": methods,
    "freezing-policies": freezing_policies,
    "vit": vit,
    "datasets": on_datasets,
    **unrated(),
    "screening": screened_parts,
    **WIN,
    "bongard-drawn": bongard_drawn,
    "bongard-hoi": lambda: bongard_paper("bongard-hoi", "Bongard-HOI"),
    "bongard-openworld": lambda: bongard_paper("bongard-openworld", "Bongard-OpenWorld", "?items=every"),
    **paper_recipes(),
    **measured_recipes(),
}


def recipe(name: str, out: Path | None = None) -> Recipe:
    """By its name (`Table 4` is `table-4`), or a user's own as FILE.py:NAME: a `Recipe`, or a function that makes one.
    One that is made from records of others finds them among the runs in `out`."""
    if ":" in name:
        found = load(name)
        found = found() if callable(found) else found
        if not isinstance(found, Recipe):
            raise BudgetedError(f"{name} is no recipe: give a Recipe of budgeted.bench.protocols, or what makes one")
        return found
    if name.endswith(".py") and Path(name).is_file():
        raise BudgetedError(f"which recipe of {name}? Give it as {name}:NAME, with the name of what makes it")
    name = key(name)
    if name not in RECIPES:
        raise UnknownName("recipe", name, RECIPES)
    for choosing, made in {"choose-rate": FROM_RATES, "win-rates": FROM_WIN_RATES}.items():
        if out is not None and name in made:
            return made[name](chosen_rates(RECIPES[choosing](), choosing, out))
    return RECIPES[name]()
