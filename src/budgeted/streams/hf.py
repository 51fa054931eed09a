"""Hugging Face `datasets`: from the hub, from a folder that `save_to_disk` wrote, or from local files.

    hf:NAME?config=…&split=train&test=test&image=image&label=label&streaming=1

Pictures are taken as encoded bytes and decoded here, so that they have the same pixels as in any other container. With
`streaming=1` nothing is downloaded as a whole: labels are gone through once, pictures as the stream comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from budgeted.errors import BudgetedError, needed
from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.entry import refuse_others
from budgeted.streams.iterated import Walk
from budgeted.streams.labels import word
from budgeted.streams.listing import Builder, Listing
from budgeted.streams.own import dataset_of
from budgeted.streams.times import Times

OPTIONS = ("config", "split", "test", "image", "label", "time", "streaming", "files", "revision")


def read(place: str, request: Request) -> Dataset:
    """The data set of a name on the hub or of a folder."""
    refuse_others(request.options, OPTIONS, "hf:")
    return dataset_of(list_rows(place, request), request, f"hf:{place}")


def list_rows(place: str, request: Request) -> Listing:
    options = request.options
    given: Any = _opened(place, options)
    train = _part(given, options.get("split", "train"), place)
    test = _part(given, options["test"], place) if "test" in options else _usual_test(given)
    return listing_of([("train" if test is not None else "", train), *([("test", test)] if test is not None else [])],
                      f"hf:{place}", options)  # fmt: skip


def listing_of(parts: list[tuple[str, Any]], name: str, options: Any) -> Listing:
    """Parts that are `datasets.Dataset` or `datasets.IterableDataset`, as one listing."""
    datasets = _datasets()
    first = parts[0][1]
    features = first.features or {}
    image = options.get("image") or _column(features, lambda each: isinstance(each, datasets.Image), "image", name)
    label = options.get("label") or _column(features, lambda each: isinstance(each, datasets.ClassLabel), "label", name)
    kind = features.get(label)
    names = tuple(kind.names) if isinstance(kind, datasets.ClassLabel) else ()
    builder, times, time = Builder(names), Times(), options.get("time")
    readers: list[Callable[[int], Any]] = []
    starts: list[int] = []
    sequential = False
    for part, rows in parts:
        _demand_columns(rows, {"image": image, "label": label, "time": time}, f"{name}, part {part}" if part else name)
        plain = rows.cast_column(image, datasets.Image(decode=False)) if image in features else rows
        starts.append(len(builder))
        _add_labels(rows, label, names, time, times, builder, part, name)
        if not isinstance(rows, datasets.IterableDataset):
            readers.append(lambda i, plain=plain: plain[i][image])  # type: ignore[misc]
        else:
            sequential = True
            readers.append(_walk(plain, image, label, name, builder, starts[-1], names))

    def read(index: int) -> Any:
        number = max(i for i, start in enumerate(starts) if start <= index)
        try:
            return _bytes(readers[number](index - starts[number]), where(index))
        except (BudgetedError, MemoryError):
            raise
        except Exception as problem:  # the library reads from files and networks, and fails in many ways
            raise DataError(f"{where(index)} cannot be read ({problem}): check it") from problem

    def where(index: int) -> str:
        return f"{name} row {index}"

    return builder.listing(read, where, name, sequential=sequential)


def _demand_columns(rows: Any, asked: dict[str, str | None], where: str) -> None:
    """Here, since the library would fail later and in its own words."""
    # what streams may not know its columns before its first row; without a row there is nothing to refuse
    columns = rows.column_names or list(next(iter(rows), ()))
    for key, column in asked.items():
        if columns and column is not None and column not in columns:
            raise DataError(
                f"{where}: no column {column!r}, it has {', '.join(map(repr, columns[:20]))}: say ?{key}=COLUMN"
            )


def _add_labels(
    rows: Any,
    label: str,
    names: tuple[str, ...],
    time: str | None,
    times: Times,
    builder: Builder,
    part: str,
    name: str,
) -> None:
    """Without the pictures, which are most of the bytes."""
    for row in rows.select_columns([label, *([time] if time else [])]):
        where = f"{name} row {len(builder)}"
        moment = None if time is None else times.seconds(row[time], where)
        builder.add(b"", _word(row[label], names, where), where, part=part, time=moment)


def _word(value: Any, names: tuple[str, ...], where: str) -> str:
    if not names or not isinstance(value, int):
        return word(value, where)
    if not 0 <= value < len(names):
        raise DataError(f"{where}: label {value} is outside the {len(names)} classes: leave the row out")
    return names[value]


def _walk(plain: Any, image: str, label: str, name: str, builder: Builder, start: int, names: tuple[str, ...]) -> Walk:
    def begin() -> Iterator[Any]:
        return ((row[image], _word(row[label], names, name)) for row in plain)

    return Walk(begin, name, lambda i: builder.word_at(start + i))


def _bytes(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        if isinstance(content := value.get("bytes"), bytes):
            return content
        if isinstance(path := value.get("path"), str) and path:
            return path
        raise DataError(f"{where}: no picture in it: leave the row out")
    return value


def _opened(place: str, options: Any) -> Any:
    datasets = _datasets()
    try:
        if os.path.isdir(place) and any(
            os.path.exists(os.path.join(place, name))
            for name in ("dataset_info.json", "dataset_dict.json", "state.json")
        ):
            return datasets.load_from_disk(place)
        return datasets.load_dataset(
            place,
            options.get("config"),
            data_files=options.get("files"),
            revision=options.get("revision"),
            streaming=options.get("streaming", "0") in ("1", "true", "yes"),
        )
    except Exception as problem:  # hub, network, cache, formats: many ways, one line
        raise DataMissing(
            f"hf:{place} cannot be opened ({type(problem).__name__}: {problem}): check the name"
        ) from problem


def _part(given: Any, split: str, place: str) -> Any:
    if not isinstance(given, dict):
        return given
    if split not in given:
        raise DataError(f"hf:{place} has no split {split!r}, it has {', '.join(map(repr, given))}: say ?split=NAME")
    return given[split]


def _usual_test(given: Any) -> Any:
    names = ("test", "validation", "valid", "val")
    return next((given[name] for name in names if isinstance(given, dict) and name in given), None)


def _column(features: Any, fits: Callable[[Any], bool], usual: str, name: str) -> str:
    found = [key for key, kind in features.items() if fits(kind)]
    if len(found) == 1:
        return str(found[0])
    if usual in features:
        return usual
    raise DataError(
        f"{name}: which column is the {usual}? It has {', '.join(map(repr, features))}: say ?{usual}=COLUMN"
    )


def _datasets() -> Any:
    return needed("datasets", "hf: needs Hugging Face datasets: pip install 'budgeted[data]'")
