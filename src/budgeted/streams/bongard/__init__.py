"""Bongard: questions over several pictures; the published sets, and one of our own that is drawn.

>>> from budgeted.streams import bongard
>>> data = bongard.drawn_bongard(seed=1)
>>> bongard.task_starts(data.train)
[0, 120, 240, 360, 480]
>>> item = bongard.items_of(data.train, "ca", bongard.SHORT)[0]
>>> len(item.pictures), item.answer in item.choices, data.picture(item.pictures[0]).shape
(4, True, (16, 16, 3))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later

if TYPE_CHECKING:
    from budgeted.streams.bongard.answers import Scored, chosen, chrf, score_choices, token_f1
    from budgeted.streams.bongard.drawn import DrawnBongard, drawn_bongard
    from budgeted.streams.bongard.facts import Facts, facts_of
    from budgeted.streams.bongard.items import HOI, OPENWORLD, SHORT, Kind, Wording, every_triple, items_of
    from budgeted.streams.bongard.judge import Judge, Judged
    from budgeted.streams.bongard.pictures import Pictures, with_pictures
    from budgeted.streams.bongard.problem import PLACE, Item, Picture, Problem
    from budgeted.streams.bongard.published import read_hoi, read_items, read_openworld
    from budgeted.streams.bongard.tasks import dealt, task_starts

__all__ = [
    "HOI",
    "OPENWORLD",
    "PLACE",
    "SHORT",
    "DrawnBongard",
    "Facts",
    "Item",
    "Judge",
    "Judged",
    "Kind",
    "Picture",
    "Pictures",
    "Problem",
    "Scored",
    "Wording",
    "chosen",
    "chrf",
    "dealt",
    "drawn_bongard",
    "every_triple",
    "facts_of",
    "items_of",
    "read_hoi",
    "read_items",
    "read_openworld",
    "score_choices",
    "task_starts",
    "token_f1",
    "with_pictures",
]

_FILES = {
    "answers": ("Scored", "chosen", "chrf", "score_choices", "token_f1"),
    "drawn": ("DrawnBongard", "drawn_bongard"),
    "facts": ("Facts", "facts_of"),
    "items": ("HOI", "OPENWORLD", "SHORT", "Kind", "Wording", "every_triple", "items_of"),
    "judge": ("Judge", "Judged"),
    "pictures": ("Pictures", "with_pictures"),
    "problem": ("PLACE", "Item", "Picture", "Problem"),
    "published": ("read_hoi", "read_items", "read_openworld"),
    "tasks": ("dealt", "task_starts"),
}
__getattr__, __dir__ = later(__name__, _FILES)
