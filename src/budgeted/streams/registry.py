"""One registry of data sets: ours, those of installed packages, and a user's own by address, file or object.

    load("cifar10")                          a name
    load("folder:PATH"), load("PATH")        a folder of images; also manifest:FILE, hf:NAME, wds:PATTERN
    load("mine.py:NAME"), load("package:N")  a function that gives a `Dataset` or samples, or one of these themselves
    load(object)                             the same in Python; a `Path` is its text

    @DATASETS.register("mine")
    def mine() -> Dataset: ...

A name that ends in a colon is the beginning of an address: what is registered under it is called with the rest and the
request. Installed packages add both by entry points of the group `budgeted.datasets`.
"""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from budgeted.errors import BudgetedError
from budgeted.registry import Registry
from budgeted.streams import arrays, folder, hf, manifest, shards
from budgeted.streams.bongard.sets import ENTRIES as BONGARD
from budgeted.streams.catalogue import ENTRIES, PHOTO_MEAN, PHOTO_STD
from budgeted.streams.dataset import DataError, DataMissing, Dataset, DatasetInfo, Request, default_data_dir
from budgeted.streams.download import MOST_BYTES, DownloadGone, Progress, fetch
from budgeted.streams.entry import Entry, refuse_others, split_options
from budgeted.streams.iterated import dataset_of_samples
from budgeted.streams.pixels import Pixels
from budgeted.streams.unpack import unpack

#: Bytes of an archive of pictures whose length is not known; the largest, CLEAR-100's, has 3 GB.
MOST_ARCHIVE = 16 * 2**30
#: Endings of files that need no `manifest:` or the like before them.
_BY_SUFFIX = {".csv": "manifest:", ".tsv": "manifest:", ".parquet": "manifest:", ".pq": "manifest:", ".tar": "wds:"}
#: Endings of files that nobody reads, and what to do.
_UNREAD = {
    (".zip", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z", ".rar"): (
        "unpack it and give folder:PATH (WebDataset shards are plain .tar files)"
    ),
    (".gz", ".bz2", ".xz", ".zst"): "unpack it and give the file that was in it",
    (".json", ".jsonl", ".ndjson", ".xls", ".xlsx", ".txt"): (
        "write it as a .csv, .tsv or .parquet with the columns path and label, and give manifest:FILE"
    ),
    (".py",): "say what in it gives the data, as FILE.py:NAME",
    tuple(folder.SUFFIXES): "this is one picture: give the folder of the folders of all classes",
}
#: What stands behind the beginning of an address, and which of its options are paths.
_PLACES = {"folder:": "PATH", "manifest:": "FILE", "wds:": "PATTERN", "hf:": "NAME", "npz:": "FILE"}
_LOCAL_OPTIONS = {"manifest": ("root", "classes"), "wds": ("test",), "hf": ("files",)}


class Datasets(Registry[Any]):
    """The data sets by name, and the readers of addresses."""

    def __init__(self) -> None:
        super().__init__("data set", "datasets")

    def _given(self, name: str) -> Any:
        scheme, _, place = name.partition(":")
        if (reader := self.scheme(f"{scheme}:")) is not None:
            return partial(reader, place)
        return super()._given(name)

    def scheme(self, name: str) -> Callable[[str, Request], Dataset] | None:
        """Who reads addresses that begin so."""
        if name in self._known:
            return self._known[name]  # type: ignore[no-any-return]
        for entry in entry_points(group=self._group, name=name):
            return entry.load()  # type: ignore[no-any-return]
        return None


DATASETS = Datasets()
for _entry in (*ENTRIES, *BONGARD):
    assert _entry.info is not None
    DATASETS.register(_entry.info.name)(_entry)


@DATASETS.register("folder:")
def _folder(place: str, request: Request) -> Dataset:
    refuse_others(request.options, (), "folder:")
    return folder.read_own(_at(request, place))


@DATASETS.register("manifest:")
def _manifest(place: str, request: Request) -> Dataset:
    return manifest.read(_at(request, place))


@DATASETS.register("wds:")
def _shards(place: str, request: Request) -> Dataset:
    return shards.read(place, _at(request, place))


@DATASETS.register("hf:")
def _hugging_face(place: str, request: Request) -> Dataset:
    return hf.read(os.path.expanduser(place), _at(request, place))


@DATASETS.register("npz:")
def _npz(place: str, request: Request) -> Dataset:
    refuse_others(request.options, (), "npz:")
    return arrays.from_npz(os.path.expanduser(place))


def names() -> tuple[str, ...]:
    """The data sets that `load` knows by name."""
    return tuple(name for name in DATASETS if not name.endswith(":"))


def info(name: str) -> DatasetInfo:
    """The facts of a data set; needs no data on disk for those known by name."""
    return known_info(name) or load(name).info


def known_info(name: str) -> DatasetInfo | None:
    """The facts of a data set as far as they are known without looking at it."""
    bare, _ = split_options(_text(name))
    if _is_path(bare):
        return None
    return find(bare).info


def load(
    name: Any,
    data_dir: str | Path | None = None,
    *,
    train: bool = True,
    test: bool = True,
    download: bool = False,
    size: int | None = None,
    resize: str = "squash",
    on_demand: bool | None = None,
    skip_bad: bool = False,
    test_share: float = 0.2,
    progress: Progress | None = None,
) -> Dataset:
    """A data set by name, by address, by path or as an object: see the head of this file.

    `data_dir` holds a named data set's usual folder, files or archive, or is that folder itself; without it
    $BUDGETED_DATA or the user's cache is looked in. Nothing is downloaded unless `download` is on. `size` (pixels),
    `resize` ("squash" or "crop") and `on_demand` (decode images when they are used) are for sets of image files;
    `test_share` for those without a test part; with `skip_bad` a bad image is left to whoever meets it to pass over.
    """
    name = _text(name)
    bare, options = split_options(name) if isinstance(name, str) else (name, {})
    if isinstance(bare, str):
        local = _LOCAL_OPTIONS.get(bare.partition(":")[0], ())
        options = {key: os.path.expanduser(value) if key in local else value for key, value in options.items()}
    folder_of_data = Path(data_dir).expanduser() if data_dir is not None else default_data_dir()
    entry = find(bare)
    if entry.info is not None:
        refuse_others(options, entry.options, entry.info.name)
        if size is not None and not entry.resizes:
            raise BudgetedError(f"{bare} has images of one size {entry.info.input_shape}: leave size out")
    if size is not None:
        Pixels(size, resize)  # refused before anything is opened
    facts = entry.info or _unknown(bare)
    request = Request(
        facts, folder_of_data, train, test, size, resize, on_demand, skip_bad, test_share, options,
    )  # fmt: skip
    try:
        return entry.read(request)
    except OSError as problem:
        given = bare if isinstance(bare, str) else "the data set"
        where = problem.filename or (given if entry.info is None else folder_of_data)
        raise DataError(f"{where} cannot be read ({problem.strerror or problem}): check it") from problem
    except DataMissing as missing:
        if entry.info is None:
            raise
        if download and entry.downloads:
            fetch_files(entry, folder_of_data, progress)
            return entry.read(request)
        raise DataMissing(f"{bare} is not in {folder_of_data} (looked for {missing}): {remedy(entry)}") from missing


def find(name: Any) -> Entry:
    """The entry of a name, an address, a path or an object."""
    name = _text(name)
    if not isinstance(name, str):
        return _as_entry(name, "the data set")
    if _is_path(name):
        name = ("folder:" if os.path.isdir(name) else _scheme_of(name)) + name
    if name.endswith(":") and DATASETS.scheme(name) is not None:
        raise BudgetedError(f"{name} names no data: write {name}{_PLACES.get(name, 'PLACE')}")
    return _as_entry(DATASETS[name], name)


def remedy(entry: Entry) -> str:
    """What to do where a data set is not there."""
    if entry.downloads:
        return "pass download=True (--download) to fetch it, or data_dir=FOLDER (--data) where it is"
    return entry.by_hand


def fetch_files(entry: Entry, data_dir: Path, progress: Progress | None = None) -> None:
    """All files of a data set on disk, verified and, where they are archives of pictures, unpacked."""
    for way in entry.downloads[:-1]:
        try:
            return _fetch_way(way, data_dir, progress)
        except DownloadGone:
            continue
    _fetch_way(entry.downloads[-1], data_dir, progress)


def _fetch_way(way: Any, data_dir: Path, progress: Progress | None) -> None:
    for source in way:
        if source.unpacked and (data_dir / source.unpacked).exists():
            continue
        path = fetch(source, data_dir, progress=progress, most=MOST_ARCHIVE if source.unpacked else MOST_BYTES)
        if source.unpacked:
            unpack(path, path.parent, data_dir / source.unpacked)


def absolute_name(name: str) -> str:
    """The same data set named so that it is found from any folder."""
    name = _text(name)
    bare, _ = split_options(name)
    scheme, colon, place = bare.partition(":")
    if not colon or DATASETS.scheme(f"{scheme}:") is None:
        return os.path.abspath(bare) + name[len(bare) :] if _is_path(bare) else name
    home = os.path.expanduser(place)
    if os.path.exists(home) or (scheme == "wds" and "://" not in place):
        bare = f"{scheme}:{os.path.abspath(home)}"
    elif scheme in _PLACES:
        bare = f"{scheme}:{home}"
    return bare + _absolute_options(name[len(f"{scheme}:{place}") :], scheme)


def _absolute_options(text: str, scheme: str) -> str:
    """`?key=value&key=value` with those that are paths here found from any folder."""
    if not text or scheme not in _LOCAL_OPTIONS:
        return text
    pairs = []
    for pair in text[1:].split("&"):
        key, _, value = pair.partition("=")
        path = os.path.expanduser(unquote(value))
        # `files` of a set on the hub are paths there
        local = key in _LOCAL_OPTIONS[scheme] and "://" not in path and (key != "files" or glob.glob(path))
        pairs.append(f"{key}={os.path.abspath(path).replace('%', '%25').replace('&', '%26')}" if local else pair)
    return "?" + "&".join(pairs)


def short_name(name: str) -> str:
    """A name that a folder can have."""
    bare, _ = split_options(name)
    last = bare.rpartition(":")[2].rstrip("/").rpartition("/")[2]
    stem = last if bare in names() else Path(last).stem
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem) or "data"


def _is_path(name: str) -> bool:
    """Whether it is the path of something; a data set's name is one even where a folder is called so too."""
    return (":" in name or name not in DATASETS) and os.path.lexists(name)


def _text(name: Any) -> Any:
    """A path as its text, and the home folder written out."""
    if isinstance(name, os.PathLike):
        name = os.fsdecode(name)
    return os.path.expanduser(name) if isinstance(name, str) else name


def _scheme_of(path: str) -> str:
    """Who reads a file, by its ending."""
    for endings, remedy in _UNREAD.items():
        if path.lower().endswith(endings):
            raise DataError(f"{path} cannot be read as it is: {remedy}")
    return _BY_SUFFIX.get(Path(path).suffix.lower(), "npz:")


def _unknown(name: Any) -> DatasetInfo:
    called = short_name(name) if isinstance(name, str) else "own"
    return DatasetInfo(called, 0, (3, 0, 0), 0, 0, PHOTO_MEAN, PHOTO_STD, flips=True)


def _at(request: Request, place: str) -> Request:
    return replace(request, data_dir=Path(place).expanduser())


def _as_entry(thing: Any, name: str) -> Entry:
    """What a name stands for, as an entry: an entry, a data set, a function that gives one, or samples."""
    if isinstance(thing, Entry):
        return thing
    if isinstance(thing, Dataset):
        return Entry(thing.info, lambda _: thing, resizes=False)
    if isinstance(thing, partial) or (callable(thing) and not hasattr(thing, "__iter__")):
        return Entry(None, partial(_called, thing, name))
    return Entry(None, lambda request: dataset_of_samples(thing, request, name))


def _called(function: Callable[..., Any], name: str, request: Request) -> Dataset:
    try:
        required = [
            each
            for each in inspect.signature(function).parameters.values()
            if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        required = []
    try:
        found = function(request) if required else function()
    except (BudgetedError, MemoryError):
        raise
    except Exception as error:  # whatever the user's function does wrong, it is theirs to mend
        raise DataError(
            f"{name} gave no data set ({type(error).__name__}: {error}): it takes nothing or a Request, and gives a "
            "Dataset or samples"
        ) from error
    if isinstance(found, Dataset):
        return found
    return dataset_of_samples(function if not required else partial(function, request), request, name)
