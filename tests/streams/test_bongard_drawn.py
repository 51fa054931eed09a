"""The drawn Bongard: what a picture's name says is on it, the same seed draws the same, tasks are disjoint."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest

from budgeted.errors import BudgetedError
from budgeted.streams.bongard.drawn import COLOURS, FIGURES, KNOWN, NEW, PIXELS, draw, drawn_bongard
from budgeted.streams.bongard.tasks import task_starts


def test_thirty_new_concepts_in_five_disjoint_tasks() -> None:
    data = drawn_bongard(seed=1, known=50, train=3, test=2)
    assert (len(data.known), len(data.train), len(data.test)) == (50, 90, 60)
    assert task_starts(data.train) == [0, 18, 36, 54, 72]
    for start in task_starts(data.train):
        assert len({one.concept for one in data.train[start : start + 18]}) == 6
    assert {one.concept for one in data.train} == {f"{colour} {figure}" for colour in NEW for figure in FIGURES}
    assert {one.concept for one in data.train} == {one.concept for one in data.test}
    assert {one.actions[0] for one in data.known} <= set(KNOWN)
    names = [name for part in (data.known, data.train, data.test) for one in part for name in one.pictures]
    assert len(names) == len(set(names)) == 14 * 200


def test_positive_pictures_share_what_no_negative_one_has() -> None:
    for problem in drawn_bongard(seed=2, known=20, train=1, test=1).train:
        assert len(problem.pictures) == len(problem.actions) == 14
        assert len(set(problem.actions[:7])) == 1
        assert problem.actions[0] not in problem.actions[7:]
        assert 1 <= len(set(problem.actions[7:])) <= 3
        assert problem.concept.split()[0] == problem.actions[0]
        assert len({name.split()[-1] for name in problem.pictures}) == 1


@pytest.mark.parametrize("figure", FIGURES)
def test_a_picture_shows_its_colour(figure: str) -> None:
    for number, colour in enumerate(COLOURS):
        picture = draw(f"test-0000/00 {colour} {figure}", seed=4)
        assert picture.shape == (PIXELS, PIXELS, 3)
        assert picture.dtype == np.uint8
        shares = [colorsys.rgb_to_hsv(*pixel) for pixel in picture.reshape(-1, 3) / 255]
        hues = [360 * hue for hue, saturation, value in shares if saturation > 0.6 and value > 0.6]  # no ground
        assert 10 < len(hues) < PIXELS**2 * 0.9
        away = [min(abs(hue - 30 * number), 360 - abs(hue - 30 * number)) for hue in hues]
        assert max(away) < 7  # 15 would be half way to the next


def test_the_same_name_and_seed_draw_the_same() -> None:
    data, again, other = drawn_bongard(seed=5), drawn_bongard(seed=5), drawn_bongard(seed=6)
    assert data == again
    assert data.train != other.train
    name = data.train[0].pictures[3]
    assert np.array_equal(data.picture(name), again.picture(name))
    assert not np.array_equal(data.picture(name), other.picture(name))
    assert not np.array_equal(data.picture(name), data.picture(data.train[0].pictures[4]))


def test_bad_requests() -> None:
    with pytest.raises(BudgetedError, match="draw at least one"):
        drawn_bongard(train=0)
    for name in ("x", "a/1 red", "a/1 pink disc", "a/1 red blob"):
        with pytest.raises(BudgetedError, match="is no drawn picture"):
            draw(name, seed=0)
