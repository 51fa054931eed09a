"""A recipe for every table and figure of the paper (aL-SAR, ICLR 2025), by the paper's own numbers, at two sizes.

`table-4` is size cpu: what two cores run in hours, on the shorter stream and the smaller network of our protocols, on
CIFAR-10 unless the question is about other data. `table-4-paper` is as published: its data sets, networks, budgets and
three seeds. Both charge every method all that it executes and stores; budgets in print that count MACs are given as
MACs. Values on the axes of the paper's figures are not in its text: where a figure asks for several budgets, they are a
half, one and two (paper: a quarter to four) times that of one ER iteration a sample.

What is no set of runs but a measurement (Figures 5, 8, 19 to 21) or a calculation (Tables 16 to 21) is in `measured`
and `budgeted costs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from budgeted.bench.bongard_recipes import drawn_questions, paper_prices, paper_questions
from budgeted.bench.protocols import (
    Recipe,
    at_compute,
    at_equal_compute,
    balanced,
    cpu,
    cpu_fast,
    over_seeds,
    with_settings,
)
from budgeted.runs.config import RunConfig

Runs = Sequence[RunConfig]
Make = Callable[[str], RunConfig]
"""a run of a method, under some protocol"""
COMPONENTS = ("vanilla", "al", "sar", "al-sar")
COMPARED = (
    "er", "der++", "mir", "memo", "remind", "ewc", "ocs", "lider-x-der", "x-der", "ccl-dc", "cama", "al-sar",
)  # fmt: skip
"""the paper's own comparison; its LiDER is over X-DER"""
COMPARED_HERE = ("er", "der++", "mir", "vanilla", "al-sar")
SETUPS = ("gaussian", "disjoint")
SETS = ("cifar10", "cifar100")
PAPER_SEEDS, SEEDS = (1, 2, 3), (1, 2)
SHARES, PAPER_SHARES = (0.5, 1, 2), (0.25, 0.5, 1, 2, 4)
"""of the compute of one ER iteration a sample"""
ITERATION_TMAC = 171.94
"""of ER over CIFAR with ResNet-32, as printed: one iteration of 16 a sample"""
ITERATION_OF = {"resnet20": 101.7, "resnet32": ITERATION_TMAC, "resnet56": 313.5}
"""the same of other networks, as counted here"""
SMALL, MIDDLE, LARGE = "7998016B", "13.44MiB", "30.4MiB"
"""the paper's 7.6, 13.44 and 30.4 MB; the first exactly, from its table of slots"""
BYTES, PAPER_BYTES = ("2500000B", "5000000B", "10000000B"), (SMALL, MIDDLE, "25.12MiB", LARGE)


# -- the paper's protocols --------------------------------------------------------------------------------------------


def published(method: str, dataset: str = "cifar10", stream: str = "gaussian", *, memory: str = SMALL) -> RunConfig:
    """ResNet-32, one iteration a sample, all test images every 100 samples."""
    return RunConfig(
        method=method, dataset=dataset, stream=stream, model="resnet32", iterations=1.0, memory=memory, eval_every=100
    )


def within(config: RunConfig, tmac: float) -> RunConfig:
    """As many iterations as so much compute pays, as the paper counts it."""
    return replace(config, iterations=None, compute=f"{tmac:g}TMAC")


def both_sets(runs_of: Callable[[Make], Runs], setup: str, iterations: float = 1.5) -> Runs:
    """CIFAR-10 within 7.6 MB at one iteration a sample, CIFAR-100 within 13.44 MB at so many."""
    ten = runs_of(partial(published, stream=setup))
    hundred = [replace(each, dataset="cifar100", memory=MIDDLE, iterations=iterations) for each in ten]
    return over_seeds([*ten, *hundred], PAPER_SEEDS)


def both_setups(runs_of: Callable[[Make], Runs], protocol: Callable[..., RunConfig]) -> list[RunConfig]:
    return [each for setup in SETUPS for each in runs_of(partial(protocol, stream=setup))]


# -- tables -----------------------------------------------------------------------------------------------------------


def table_1() -> Runs:
    """Tiny ImageNet in the place of ImageNet, and five data sets in the place of CLEAR's ten years."""
    large = [replace(cpu_fast(name), dataset="tinyimagenet", slots=2_000, memory=None) for name in COMPARED_HERE]
    return over_seeds([*large, *(_five(name) for name in COMPARED_HERE)], (1,))


def table_1_paper() -> Runs:
    imagenet = replace(
        within(published("er", "imagenet"), 112_000), model="resnet18", memory="5736MiB", batch_size=256,
        eval_every=8_000,
    )  # fmt: skip
    clear = [
        replace(within(published("er", dataset, "domain"), tmac), memory=memory)
        for dataset, tmac, memory in (("clear10", 716, "564MiB"), ("clear100", 5_250, "1148MiB"))
    ]
    large = over_seeds([replace(imagenet, method=name) for name in COMPARED], (1,))
    return (*large, *over_seeds([replace(each, method=name) for each in clear for name in COMPARED], PAPER_SEEDS))


FREEZING_COMPARED = (None, "ptlf", "egeria", "adaptive")


def freezing_compared(make: Make) -> list[RunConfig]:
    """Under SAR, whose adaptive freezing is the method aL-SAR; REMIND freezes by itself, and brings its own replay."""
    found = [replace(make("sar"), freezing=policy) for policy in FREEZING_COMPARED[:-1]]
    return [*found, make("al-sar"), make("remind")]


def bongard(kind: str) -> Runs:
    return over_seeds([drawn_questions(kind, policy) for policy in ("none", "adaptive")], PAPER_SEEDS)


def bongard_paper(kind: str) -> Runs:
    names = (f"bongard-hoi-{kind}", f"bongard-openworld-{kind}?items=every")
    return over_seeds([paper_questions(name, method) for name in names for method in ("vanilla", "al")], PAPER_SEEDS)


def components(setup: str) -> Runs:
    """As `components` and `components-disjoint`, which have these runs."""
    if setup == "gaussian":
        return over_seeds([*map(cpu, COMPONENTS), balanced(cpu("vanilla"))], (1, 2, 3))
    return over_seeds([cpu_fast(method, setup) for method in COMPONENTS], (1, 2, 3))


def components_paper(setup: str) -> Runs:
    return both_sets(lambda make: [make(method) for method in COMPONENTS], setup)


def naive_freezing(make: Make, quarter: int, half: int, whole: int) -> list[RunConfig]:
    """Blocks that hold a quarter, half and all of the layers, as the paper's n of 8, 16 and 32."""
    sar = make("sar")
    found = [sar]
    for policy, key, numbers in (
        ("random", "n_max", (half, whole)), ("constant", "n", (quarter, half)), ("linear", "n_max", (half, whole)),
    ):  # fmt: skip
        changed = replace(sar, freezing=policy)
        found += [with_settings(changed, {f"freezing.{key}": str(number)}) for number in numbers]
    return [*found, make("al-sar")]


def table_5() -> Runs:
    """ResNet-20: 3 of 10 blocks hold a quarter of its layers, 5 a half."""
    return over_seeds(both_setups(lambda make: naive_freezing(make, 3, 5, 10), cpu_fast), SEEDS)


def table_5_paper() -> Runs:
    return over_seeds(both_setups(lambda make: naive_freezing(make, 4, 9, 16), published), PAPER_SEEDS)


def sar_ablation(make: Make) -> list[RunConfig]:
    parts = [with_settings(make("sar"), {"retrieval.frequency": part}) for part in ("use", "discounted")]
    return [make("vanilla"), *parts, make("sar")]


def vit() -> Runs:
    """A small transformer from scratch: there are no pretrained weights on a machine without a network."""
    config = replace(cpu_fast("vanilla"), model="vit-tiny", memory=None, slots=500)
    return over_seeds([config, replace(config, method="al")], SEEDS)


def vit_paper(model: str, memory: str, choices: Sequence[tuple[str, str, float]]) -> Runs:
    """From scratch; its other half, pretrained weights, needs a model of one's own (`--model FILE.py:NAME`)."""
    configs = [
        replace(published(method, dataset, stream, memory=memory), model=model, iterations=iterations)
        for dataset, stream, iterations in choices
        for method in ("vanilla", "al")
    ]
    return over_seeds(configs, PAPER_SEEDS)


def another_network(model: str) -> Runs:
    """Baseline and aL-SAR in both setups, one iteration a sample."""
    configs = [replace(cpu_fast(name, setup), model=model) for setup in SETUPS for name in ("vanilla", "al-sar")]
    return over_seeds(configs, SEEDS)


def plain_cnn_paper(model: str) -> Runs:
    """Their memory is not in print: 2,000 slots, as for ResNet-32."""
    configs = [
        replace(published(name, dataset, setup), model=model, memory=None, slots=2_000, iterations=iterations)
        for dataset, iterations in zip(SETS, (1.0, 1.5), strict=True)
        for setup in SETUPS
        for name in ("vanilla", "al-sar")
    ]
    return over_seeds(configs, PAPER_SEEDS)


# -- figures ----------------------------------------------------------------------------------------------------------


def figure_1() -> Runs:
    """Left: as many iterations and slots for all. Right: as much compute and as many bytes for all."""
    methods = ("er", "der++", "mir", "ewc", "ocs", "al-sar")
    conventional = [replace(cpu_fast(name), memory=None, slots=1_268) for name in methods]
    return over_seeds([*conventional, *(at_equal_compute(cpu_fast(name)) for name in methods)], SEEDS)


def figure_1_paper() -> Runs:
    conventional = [replace(published(name), memory=None, slots=2_000) for name in COMPARED]
    total = [replace(within(published(name), ITERATION_TMAC), spend_savings=True) for name in COMPARED]
    return over_seeds([*conventional, *total], PAPER_SEEDS)


def over_compute(
    methods: Iterable[str] = COMPARED_HERE, shares: Iterable[float] = SHARES, setups: Iterable[str] = ("gaussian",)
) -> list[RunConfig]:
    methods = list(methods)
    return [at_compute(cpu_fast(name, setup), share) for setup in setups for share in shares for name in methods]


def over_compute_paper(
    methods: Iterable[str] = COMPARED, *, memory: str | None = LARGE, model: str = "resnet32"
) -> Runs:
    """All budgets on both sets in both setups; without bytes everything is stored."""
    configs = []
    for dataset in SETS:
        for setup in SETUPS:
            for name in methods:
                one = replace(published(name, dataset, setup), model=model, memory=memory, unlimited=memory is None)
                configs += [within(one, ITERATION_OF[model] * share) for share in PAPER_SHARES]
    return over_seeds(configs, PAPER_SEEDS)


def figure_4() -> Runs:
    configs = [at_equal_compute(replace(cpu_fast(name), memory=size)) for size in BYTES for name in COMPARED_HERE]
    return over_seeds(configs, SEEDS)


def figure_4_paper() -> Runs:
    configs = [
        replace(within(published(name, dataset, setup), ITERATION_TMAC), memory=size)
        for dataset in SETS for setup in SETUPS for size in PAPER_BYTES for name in COMPARED
    ]  # fmt: skip
    return over_seeds(configs, PAPER_SEEDS)


def figure_7() -> Runs:
    """Runs of `components`: what SAR spends with adaptive freezing and without."""
    return over_seeds([cpu("sar"), cpu("al-sar")], (1, 2, 3))


def _five(name: str) -> RunConfig:
    return replace(cpu_fast(name, "domain"), dataset="5-datasets")


def figure_9() -> Runs:
    configs = [replace(at_compute(_five(name), share)) for share in (1, 2) for name in COMPARED_HERE]
    return over_seeds(configs, (1,))


def figure_9_paper() -> Runs:
    """As many iterations a sample as on CIFAR; the paper prints neither budget nor bytes: those of its Figure 3."""
    per_sample = ITERATION_TMAC / 50_000 * 260_109
    configs = [
        within(published(name, "5-datasets", "domain", memory=LARGE), per_sample * share)
        for share in PAPER_SHARES for name in COMPARED
    ]  # fmt: skip
    return over_seeds(configs, PAPER_SEEDS)


DENSITIES = ("0.25", "0.1")
"""what sparsities of 0.75 and 0.9 leave"""


def efficient(make: Make) -> list[RunConfig]:
    sparse = [with_settings(make("sparcl"), {"method.density": density}) for density in DENSITIES]
    return [*sparse, make("trire"), make("al-sar")]


def figure_10_paper() -> Runs:
    found = [each for dataset in SETS for each in both_setups(efficient, partial(published, dataset=dataset))]
    within_all = [within(each, ITERATION_TMAC * share) for each in found for share in PAPER_SHARES]
    return over_seeds(within_all, PAPER_SEEDS)


TEMPERATURES = ("0.03125", "0.125", "0.5", "2")


def temperatures(make: Make, values: Iterable[str]) -> list[RunConfig]:
    usual = "0.125"
    sar = make("sar")
    return [sar if value == usual else with_settings(sar, {"retrieval.temperature": value}) for value in values]


def figure_17() -> Runs:
    configs = [replace(each, memory=None, unlimited=True) for each in over_compute(("er", "vanilla", "al-sar"), (1, 2))]
    return over_seeds(configs, SEEDS)


def figure_17_paper() -> Runs:
    imagenet = [
        replace(within(published(name, "imagenet", setup), 112_000 * share), model="resnet18", memory=None,
                unlimited=True, batch_size=256, eval_every=8_000)
        for setup in SETUPS for share in (0.25, 0.5, 1) for name in COMPARED
    ]  # fmt: skip
    return (*over_compute_paper(memory=None), *over_seeds(imagenet, (1,)))


def figure_18() -> Runs:
    """Figure 3's runs, and the disjoint setup, where F_last is read off."""
    disjoint = over_compute(("er", "vanilla", "al-sar"), SHARES, ("disjoint",))
    return (*over_seeds(over_compute(), SEEDS), *over_seeds(disjoint, SEEDS))


def table_22() -> Runs:
    return tuple(run for run in table_1() if run.dataset == "tinyimagenet")


# -- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A table or a figure of the paper."""

    question: str
    cpu: Callable[[], Runs]
    paper: Callable[[], Runs]
    prices: Callable[[tuple[RunConfig, ...]], Iterable[str]] | None = None
    """of the paper's size"""


ITEMS: dict[str, Item] = {
    "Figure 1": Item(
        "Who is ahead at equal iterations and slots, and who at equal compute and bytes?", figure_1, figure_1_paper
    ),
    "Figure 3": Item(
        "How does accuracy grow with compute?", lambda: over_seeds(over_compute(), SEEDS), over_compute_paper
    ),
    "Figure 4": Item("How does accuracy grow with bytes?", figure_4, figure_4_paper),
    "Table 1": Item("Does the order hold on large data and shifting domains?", table_1, table_1_paper),
    "Table 2": Item(
        "What do freezing methods save, and cost, under SAR? Gaussian.",
        lambda: over_seeds(freezing_compared(cpu_fast), SEEDS), lambda: both_sets(freezing_compared, "gaussian", 3.0),
    ),
    "Table 3": Item("Freezing in a multimodal model: P/N questions.", lambda: bongard("pn"),
                    lambda: bongard_paper("pn"), paper_prices),
    "Table 4": Item("What do freezing and retrieval each add? Gaussian.", lambda: components("gaussian"),
                    lambda: components_paper("gaussian")),
    "Figure 6": Item(
        "How does accuracy grow with compute when bytes are few?",
        lambda: over_seeds([replace(each, memory=BYTES[0]) for each in over_compute(("er", "vanilla", "al-sar"))],
                           SEEDS),
        lambda: over_compute_paper(memory=SMALL),
    ),
    "Table 5": Item("Is adaptive freezing better than naive freezing? Both setups.", table_5, table_5_paper),
    "Table 6": Item("What do freezing and retrieval each add? Disjoint.", lambda: components("disjoint"),
                    lambda: components_paper("disjoint")),
    "Table 7": Item("Which part of SAR helps? Gaussian.", lambda: over_seeds(sar_ablation(cpu_fast), SEEDS),
                    lambda: both_sets(sar_ablation, "gaussian")),
    "Table 8": Item(
        "Which part of SAR helps? Disjoint.",
        lambda: over_seeds(sar_ablation(lambda method: cpu_fast(method, "disjoint")), SEEDS),
        lambda: both_sets(sar_ablation, "disjoint"),
    ),
    "Figure 7": Item("How much compute does freezing save over the stream?", figure_7,
                     lambda: over_seeds([published("sar"), published("al-sar")], PAPER_SEEDS)),
    "Figure 9": Item("Does the order hold on five data sets, one after the other?", figure_9, figure_9_paper),
    "Figure 10": Item("Against other efficient methods: SparCL, TriRE.",
                      lambda: over_seeds(efficient(lambda name: at_equal_compute(cpu_fast(name))), SEEDS),
                      figure_10_paper),
    "Table 9": Item("Freezing in a multimodal model: open questions.", lambda: bongard("ca"),
                    lambda: bongard_paper("ca"), paper_prices),
    "Table 10": Item(
        "What do freezing methods save, and cost, under SAR? Disjoint.",
        lambda: over_seeds(freezing_compared(lambda method: cpu_fast(method, "disjoint")), SEEDS),
        lambda: both_sets(freezing_compared, "disjoint", 3.0),
    ),
    "Table 11": Item("Does freezing keep a vision transformer's accuracy? ViT-B.", vit,
                     lambda: vit_paper("vit-b", "334.76MiB",
                                       (("cifar10", "gaussian", 1.0), ("cifar100", "gaussian", 1.5)))),
    "Table 12": Item("The same with ViT-L, in both setups; size cpu is that of Table 11, disjoint.",
                     lambda: tuple(replace(run, stream="disjoint") for run in vit()),
                     lambda: vit_paper("vit-l", "1.2GiB",
                                       (("cifar10", "disjoint", 1.0), ("cifar10", "gaussian", 1.0)))),
    **{
        f"Table {number}": Item(
            f"Baseline and aL-SAR on a plain CNN of {layers} layers.",
            lambda layers=layers: another_network(f"cnn{layers}"),  # type: ignore[misc]
            lambda layers=layers: plain_cnn_paper(f"cnn{layers}-wide"),  # type: ignore[misc]
        )
        for number, layers in ((13, 8), (14, 16), (15, 32))
    },
    "Figure 11": Item("Baseline and aL-SAR on ResNet-20.", lambda: another_network("resnet20"),
                      lambda: over_compute_paper(("vanilla", "al-sar"), model="resnet20")),
    "Figure 12": Item("Baseline and aL-SAR on ResNet-56.", lambda: another_network("resnet56"),
                      lambda: over_compute_paper(("vanilla", "al-sar"), model="resnet56")),
    "Figure 13": Item("All methods on ResNet-20; size cpu is that of Figure 3.",
                      lambda: over_seeds(over_compute(), SEEDS), lambda: over_compute_paper(model="resnet20")),
    "Figure 14": Item(
        "All methods on ResNet-56.",
        lambda: over_seeds([replace(cpu_fast(name), model="resnet56") for name in COMPARED_HERE], (1,)),
        lambda: over_compute_paper(model="resnet56"),
    ),
    "Figure 15": Item(
        "Which retrieval learns most from the same compute?",
        lambda: over_seeds([at_equal_compute(cpu_fast(name)) for name in ("er", "mir", "aser", "sar", "al-sar")],
                           SEEDS),
        lambda: over_compute_paper(("er", "mir", "aser", "al-sar")),
    ),
    "Figure 16": Item("How much does SAR's temperature matter?",
                      lambda: over_seeds(temperatures(cpu_fast, TEMPERATURES), SEEDS),
                      lambda: over_seeds(temperatures(published, ("0.0078125", *TEMPERATURES)), PAPER_SEEDS)),
    "Figure 17": Item("Who learns most when everything can be stored?", figure_17, figure_17_paper),
    "Figure 18": Item("Who forgets least, by F_last and by KLR?", figure_18, over_compute_paper),
    "Table 22": Item("Who forgets least on ImageNet (size cpu: Tiny ImageNet)?", table_22,
                     lambda: tuple(run for run in table_1_paper() if run.dataset == "imagenet")),
}  # fmt: skip
"""in the paper's order"""


ACCOUNTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Table 16": ("What does an iteration of each method cost?", ("multipliers", "--dataset", "cifar10")),
    "Table 17": ("How many slots does each method have? CIFAR-10.", ("slots", "--dataset", "cifar10")),
    "Table 18": ("How many slots does each method have? CIFAR-100.", ("slots", "--dataset", "cifar100")),
    "Table 19": ("How many slots does each method have? CLEAR-10.", ("slots", "--dataset", "clear10")),
    "Table 20": ("How many slots does each method have? CLEAR-100.", ("slots", "--dataset", "clear100")),
    "Table 21": ("How many slots does each method have? ImageNet.", ("slots", "--dataset", "imagenet")),
}
"""calculated at once, at the paper's size alone: budgets are there for the asking"""


def key(title: str) -> str:
    """`Table 4` as a word of a command line."""
    return title.lower().replace(" ", "-")


def paper_recipes() -> dict[str, Callable[[], Recipe]]:
    """`table-4` and `table-4-paper`, for all."""
    found: dict[str, Callable[[], Recipe]] = {}
    for title, item in ITEMS.items():
        found[key(title)] = lambda t=title, i=item: Recipe(f"{t}. {i.question}", tuple(i.cpu()))  # type: ignore[misc]
        found[f"{key(title)}-paper"] = lambda t=title, i=item: Recipe(  # type: ignore[misc]
            f"{t}, as published. {i.question}", tuple(i.paper()), i.prices
        )
    for title, (question, command) in ACCOUNTS.items():
        recipe = Recipe(f"{title}. {question}", (), command=("costs", *command))
        found[key(title)] = lambda made=recipe: made  # type: ignore[misc]
    return found
