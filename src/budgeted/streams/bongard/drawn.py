"""A Bongard of our own: coloured figures, drawn from a seed; nothing is downloaded.

An object is a figure (disc, square, …), an action is its colour: the positive pictures of a problem show one
figure in one colour, the negative ones the same figure in others, as Bongard-HOI has one object in different actions.
Place, size, shade and background vary, and a colour is a range of hues. Half of the twelve colours are known before
the stream starts (a pretrained model knows some concepts); the stream brings the others, in five tasks of six concepts.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from budgeted.errors import BudgetedError
from budgeted.streams.bongard.problem import SIDE, Picture, Problem

Plane = npt.NDArray[np.float64]
Points = npt.NDArray[np.bool_]
PIXELS = 16
FIGURES = ("disc", "square", "triangle", "cross", "ring")
COLOURS = ("red", "orange", "yellow", "lime", "green", "mint", "cyan", "azure", "blue", "violet", "magenta", "rose")
"""thirty degrees of hue apart"""
KNOWN, NEW = COLOURS[::2], COLOURS[1::2]
WOBBLE = 5.0
"""degrees that a hue may be off"""
TASKS = 5


@dataclass(frozen=True, slots=True)
class DrawnBongard:
    """Problems for before the stream, in the stream and to test on; a picture follows from its name and the seed."""

    known: tuple[Problem, ...]
    train: tuple[Problem, ...]
    test: tuple[Problem, ...]
    seed: int

    def picture(self, name: str) -> Picture:
        """Height x width x 3, uint8."""
        return draw(name, self.seed)

    def words(self) -> list[str]:
        """Every word that an answer may have."""
        return [*COLOURS, *FIGURES]


def drawn_bongard(seed: int = 0, known: int = 600, train: int = 20, test: int = 4) -> DrawnBongard:
    """`known` problems over the known concepts, `train` and `test` problems for each of the thirty new ones."""
    if min(known, train, test) < 1:
        raise BudgetedError(f"{min(known, train, test)} problems: draw at least one of each part")
    generator = np.random.default_rng(seed)
    concepts = [(colour, figure) for colour in NEW for figure in FIGURES]
    order = [concepts[i] for i in generator.permutation(len(concepts))]
    per_task = len(order) // TASKS
    stream: list[tuple[str, str]] = []
    for task in range(TASKS):
        here = [concept for concept in order[task * per_task : (task + 1) * per_task] for _ in range(train)]
        stream += [here[i] for i in generator.permutation(len(here))]
    before = [(str(generator.choice(KNOWN)), str(generator.choice(FIGURES))) for _ in range(known)]
    tested = [concept for concept in order for _ in range(test)]
    return DrawnBongard(
        known=_problems("known", before, KNOWN, generator),
        train=_problems("train", stream, NEW, generator),
        test=_problems("test", tested, NEW, generator),
        seed=seed,
    )


def _problems(
    part: str, concepts: Sequence[tuple[str, str]], colours: Sequence[str], generator: np.random.Generator
) -> tuple[Problem, ...]:
    found = []
    for number, (colour, figure) in enumerate(concepts):
        others = [other for other in colours if other != colour]
        shown = [others[i] for i in generator.permutation(len(others))[: int(generator.integers(1, 4))]]
        negative = [*shown, *(str(generator.choice(shown)) for _ in range(SIDE - len(shown)))]
        actions = (*[colour] * SIDE, *(negative[i] for i in generator.permutation(SIDE)))
        name = f"{part}-{number:04d}"
        pictures = tuple(f"{name}/{index:02d} {action} {figure}" for index, action in enumerate(actions))
        found.append(Problem(name, f"{colour} {figure}", pictures, actions))
    return tuple(found)


def draw(name: str, seed: int) -> Picture:
    """The picture that a name such as `train-0003/07 lime disc` stands for."""
    try:
        _, colour, figure = name.rsplit("/", 1)[1].split(" ")
        hue = COLOURS.index(colour) * 360 / len(COLOURS)
        FIGURES.index(figure)
    except (IndexError, ValueError):
        raise BudgetedError(f"{name!r} is no drawn picture: its name ends in /NUMBER COLOUR FIGURE") from None
    generator = np.random.default_rng([seed, *name.encode()])
    radius = generator.uniform(0.3, 0.45) * PIXELS
    x, y = generator.uniform(radius, PIXELS - radius, size=2)
    shade = colorsys.hsv_to_rgb(
        ((hue + generator.uniform(-WOBBLE, WOBBLE)) % 360) / 360, generator.uniform(0.8, 1), generator.uniform(0.75, 1)
    )
    ground = np.full((PIXELS, PIXELS, 3), generator.uniform(0.1, 0.4)) + generator.normal(0, 0.02, (PIXELS, PIXELS, 3))
    across, down = np.meshgrid(np.arange(PIXELS) + 0.5 - x, np.arange(PIXELS) + 0.5 - y)
    inside = _inside(figure, across / radius, down / radius)
    image = np.where(inside[..., None], np.asarray(shade), ground)
    return (image.clip(0, 1) * 255).round().astype(np.uint8)


def _inside(figure: str, across: Plane, down: Plane) -> Points:
    """Which points of a plane, with the figure's radius as its unit, lie in the figure."""
    far = np.hypot(across, down)
    if figure == "disc":
        return far < 1
    if figure == "ring":
        return (far < 1) & (far > 0.5)
    if figure == "square":
        return np.maximum(abs(across), abs(down)) < 0.85
    if figure == "cross":
        return (np.minimum(abs(across), abs(down)) < 0.3) & (np.maximum(abs(across), abs(down)) < 1)
    return (down < 0.8) & (down > 1.8 * abs(across) - 1)
