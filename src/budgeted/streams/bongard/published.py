"""Readers of the published annotation files of Bongard-HOI and Bongard-OpenWorld (json, or json.gz).

Problems: fourteen pictures each. Items: questions as the published experiments asked them. Two oddities of the item
files are put right: the concept questions list five pictures for four places (the fifth is dropped), and
the ids of OpenWorld's items come twice, for the positive and the negative question (the answer is added to the id).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from budgeted.streams.bongard.items import NEGATIVE, POSITIVE, listed
from budgeted.streams.bongard.problem import PLACE, SIDE, Item, Problem
from budgeted.streams.dataset import DataError, DataMissing
from budgeted.streams.files import Capped, open_regular, read_at_most

MOST_BYTES = 256 * 2**20
"""of one file, unpacked: the largest published one has 20 million"""
_PREFIX = "images/"
Found = TypeVar("Found")


def read_hoi(path: str | Path) -> tuple[Problem, ...]:
    """Problems of Bongard-HOI: a concept is an action with an object."""

    def problem(entry: dict[str, Any]) -> Problem:
        pictures, actions = _texts(entry["image_files"]), _texts(entry["action_class"])
        objects = set(_texts(entry["object_class"]))
        if len(pictures) != 2 * SIDE or len(actions) != 2 * SIDE or len(objects) != 1:
            raise ValueError(f"{len(pictures)} pictures, {len(actions)} actions, {len(objects)} objects")
        if len(set(actions[:SIDE])) != 1 or actions[0] in actions[SIDE:]:
            raise ValueError("the positive pictures do not share an action that the negative ones lack")
        name = f"{Path(str(entry['type'])).stem}-{entry['id']}"
        return Problem(name, f"{actions[0]} {objects.pop()}", pictures, actions)

    return _read(path, problem)


def read_openworld(path: str | Path) -> tuple[Problem, ...]:
    """Problems of Bongard-OpenWorld: a sentence says the concept; tasks are made of the ten groups of concepts."""

    def problem(entry: dict[str, Any]) -> Problem:
        pictures = _texts(entry["imageFiles"])
        if len(pictures) != 2 * SIDE:
            raise ValueError(f"{len(pictures)} pictures")
        return Problem(str(entry["uid"]), str(entry["commonSense"]), pictures, caption=str(entry["caption"]))

    return _read(path, problem)


def read_items(path: str | Path) -> tuple[Item, ...]:
    """Questions of either set, P/N or CA, as published."""

    def item(entry: dict[str, Any]) -> Item:
        asked, said = (str(turn["value"]) for turn in entry["conversations"])
        places = asked.count(PLACE)
        pictures = tuple(_from_images(name) for name in _texts(entry["image"]))
        if places == 0 or len(pictures) < places:
            raise ValueError(f"{len(pictures)} pictures for {places} places")
        concept = entry.get("commonSense") or f"{entry['action_class']} {entry['object_class']}"
        name = str(entry["id"])
        if said in (POSITIVE, NEGATIVE) and not name.endswith(f"-{said.lower()}"):
            name = f"{name}-{said.lower()}"
        return Item(name, str(concept), asked, pictures[:places], said, listed(asked))

    return _read(path, item)


def _from_images(name: str) -> str:
    """Item files start names with the folder that their authors had."""
    _, found, rest = name.partition(_PREFIX)
    return found + rest if found else name


def _texts(entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, list) or not all(isinstance(text, str) for text in entry):
        raise ValueError("a list of names is something else")
    return tuple(entry)


def _read(path: str | Path, make: Callable[[dict[str, Any]], Found]) -> tuple[Found, ...]:
    found = []
    for number, entry in enumerate(_entries(Path(path))):
        try:
            found.append(make(entry))
        except (KeyError, TypeError, ValueError) as problem:
            what = f"it has no {problem}" if isinstance(problem, KeyError) else str(problem)
            raise DataError(f"{path}: entry {number} is not what it should be ({what}): fetch the file again") from None
    return tuple(found)


def _entries(path: Path) -> list[Any]:
    try:
        with open_regular(path) as file:
            packed = path.suffix == ".gz"
            source = Capped(gzip.GzipFile(fileobj=file) if packed else file, MOST_BYTES, str(path))
            entries = json.loads(read_at_most(source, MOST_BYTES + 1))
    except FileNotFoundError:
        raise DataMissing(f"{path} is not there: put the published annotation file there") from None
    except (OSError, EOFError, ValueError, RecursionError) as problem:
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise DataError(f"{path}: no whole json file ({reason}): fetch it again") from None
    if not isinstance(entries, list):
        raise DataError(f"{path}: a list of problems or items is expected, this is a {type(entries).__name__}")
    if not entries:
        raise DataError(f"{path}: its list is empty: fetch it again")
    return entries
