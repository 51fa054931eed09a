"""WebDataset shards: tars in which the files of one sample follow each other and share all but their ending.

    000017.jpg  000017.cls               wds:data/train-{0000..0146}.tar?test=data/val-*.tar

The picture has an ending of an image, the label is in `.cls` or `.txt` (a word or a number) or in `.json` (its key
`label`); `?label=ENDING` says which. Patterns may hold {0..9}, {a,b} and *; an address such as s3://… or memory://…
is opened by fsspec. The headers are read once; then every sample is read at its place, in any order, nothing unpacked.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import struct
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from budgeted.errors import BudgetedError, needed
from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.entry import refuse_others
from budgeted.streams.files import open_regular, size_of
from budgeted.streams.folder import SUFFIXES
from budgeted.streams.labels import word
from budgeted.streams.listing import Builder, Listing
from budgeted.streams.own import dataset_of
from budgeted.streams.tars import members

OPTIONS = ("test", "label")
_LABELS = ("cls", "txt", "json")
_LONGEST_LABEL = 1 << 20
_MOST_SHARDS = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_PLACE = struct.Struct("=iqq")


def read(pattern: str, request: Request) -> Dataset:
    """The data set of all shards that a pattern stands for."""
    refuse_others(request.options, OPTIONS, "wds:")
    return dataset_of(list_shards(pattern, request), request, f"wds:{pattern}")


def list_shards(pattern: str, request: Request) -> Listing:
    builder, shards = Builder(), _Shards()
    test = request.options.get("test")
    for part, given in (("train" if test else "", pattern), ("test", test)):
        for address in expand(given) if given is not None else ():
            _index(shards, shards.add(address), builder, part, request.options.get("label"))

    spool = builder.spool

    def read(index: int) -> bytes:
        return shards.read(*_PLACE.unpack(spool[index]))

    def where(index: int) -> str:
        shard, start, _ = _PLACE.unpack(spool[index])
        return f"{shards.addresses[shard]} at byte {start:,}"

    return builder.listing(read, where, f"wds:{pattern}")


def expand(pattern: str) -> list[str]:
    """The shards of a pattern, in order; each must exist."""
    found: list[str] = []
    for each in _braces(pattern):
        if "://" in each:
            found += _remote_glob(each) if "*" in each else [each]
        elif any(letter in each for letter in "*?["):
            found += sorted(glob.glob(os.path.expanduser(each)))
        else:
            found.append(os.path.expanduser(each))
        if len(found) > _MOST_SHARDS:
            raise DataError(f"{pattern}: stands for more than {_MOST_SHARDS:,} shards: correct it")
    if not found:
        raise DataMissing(f"{pattern}: no shard of this name: check the pattern")
    return found


def _braces(pattern: str) -> Iterator[str]:
    pieces: list[list[str]] = []
    at = 0
    for match in _BRACES.finditer(pattern):
        pieces += [[pattern[at : match.start()]], _choices(match[1], pattern)]
        at = match.end()
    pieces.append([pattern[at:]])
    if any(len(each) > _MOST_SHARDS for each in pieces):
        raise DataError(f"{pattern}: stands for more than {_MOST_SHARDS:,} shards: correct it")
    return ("".join(each) for each in itertools.product(*pieces))


def _choices(inside: str, pattern: str) -> list[str]:
    if bounds := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside):
        first, last = int(bounds[1]), int(bounds[2])
        if last - first >= _MOST_SHARDS:
            raise DataError(f"{pattern}: stands for more than {_MOST_SHARDS:,} shards: correct it")
        return [f"{number:0{len(bounds[1])}}" for number in range(first, last + 1)]
    return inside.split(",")


class _Shards:
    """The shards by number, opened when first used and kept open; a read names its place and disturbs no other."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._open: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    def add(self, address: str) -> int:
        self.addresses.append(address)
        return len(self.addresses) - 1

    def opened(self, number: int) -> tuple[BinaryIO, int]:
        """A file of its own, and the bytes in it."""
        address = self.addresses[number]
        try:
            if "://" in address:
                file = _fsspec().open(address, "rb").open()
                return file, int(file.seek(0, os.SEEK_END)) + file.seek(0)
            file = open_regular(address)
            return file, size_of(file)
        except FileNotFoundError:
            raise DataMissing(f"{address} does not exist: check the pattern") from None
        except BudgetedError:
            raise
        except Exception as problem:  # every kind of address fails in its own way
            raise DataError(f"{address} cannot be opened ({problem}): check it") from problem

    def read(self, shard: int, start: int, size: int) -> bytes:
        try:
            with self._lock:
                if shard not in self._open:
                    if len(self._open) >= 64:
                        self._open.pop(next(iter(self._open))).close()
                    self._open[shard] = self.opened(shard)[0]
                file = self._open[shard]
                file.seek(start)
                content = file.read(size)
        except BudgetedError:
            raise
        except Exception as problem:
            raise DataError(f"{self.addresses[shard]} cannot be read ({problem}): check it") from problem
        if len(content) != size:
            raise DataError(f"{self.addresses[shard]}: cut at byte {start + len(content):,}: restore it")
        return content

    def __del__(self) -> None:
        for file in self._open.values():
            file.close()


def _index(shards: _Shards, number: int, builder: Builder, part: str, label_ending: str | None) -> None:
    address = shards.addresses[number]
    file, size = shards.opened(number)
    with file:
        # What is hidden is no sample: tars of macOS hold ._NAME beside each NAME.
        found = [member for member in members(file, address, size) if not os.path.basename(member[0]).startswith(".")]
        for key, group in itertools.groupby(found, key=lambda member: _split(member[0])[0]):
            files: dict[str, tuple[int, int]] = {}
            for name, start, length in group:
                if (ending := _split(name)[1]) in files:
                    raise DataError(f"{address}: the sample {key!r} has two files .{ending}: write the shard anew")
                files[ending] = (start, length)
            picture = next((files[ending] for ending in files if f".{ending.rpartition('.')[2]}" in SUFFIXES), None)
            if picture is None:
                raise DataError(f"{address}: the sample {key!r} has no image: leave it out or name its ending")
            label = _label(file, files, label_ending, f"{address}: the sample {key!r}")
            builder.add(_PLACE.pack(number, *picture), label, f"{address}: the sample {key!r}", part=part)


def _split(name: str) -> tuple[str, str]:
    """What names the sample, and the ending: all behind the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return folder + slash + stem, ending.lower()


def _label(file: BinaryIO, files: dict[str, tuple[int, int]], chosen: str | None, where: str) -> str:
    endings = (chosen.lstrip("."),) if chosen else _LABELS
    ending = next((each for each in endings if each in files), None)
    if ending is None:
        raise DataError(f"{where} has no label (.{', .'.join(endings)}): add it, or say ?label=ENDING")
    start, size = files[ending]
    if size > _LONGEST_LABEL:
        raise DataError(f"{where}: a label of {size:,} bytes: this is no label")
    file.seek(start)
    try:
        text = file.read(size).decode("utf-8-sig").strip()
        if ending.rpartition(".")[2] != "json":
            return text
        value: Any = json.loads(text)
        value = value["label"] if isinstance(value, dict) else value
    except (UnicodeDecodeError, ValueError, KeyError, RecursionError) as problem:
        raise DataError(f"{where}: no label can be read from .{ending} ({problem}): correct it") from problem
    return word(value, where)


def _remote_glob(address: str) -> list[str]:
    try:
        system, path = _fsspec().core.url_to_fs(address)
        return [str(system.unstrip_protocol(each)) for each in sorted(system.glob(path))]
    except BudgetedError:
        raise
    except Exception as problem:
        raise DataError(f"{address} cannot be listed ({problem}): check it") from problem


def _fsspec() -> Any:
    return needed("fsspec", "addresses such as s3://… need fsspec: pip install 'budgeted[data]'")
