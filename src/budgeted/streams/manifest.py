"""A table of samples: CSV, TSV or Parquet with the columns path, label and, if wanted, time, split and domain.

    path,label,time,split            manifest:FILE?path=file&label=kind       other names of columns
    images/0001.jpg,cat,2021-03-05,train

Paths are relative to the table's folder (or to `?root=`). Times are all numbers or all ISO dates, UTC where they name
no zone. A Parquet file may hold the pictures themselves in a column `image` of bytes, or of {bytes, path} as Hugging
Face writes it. `?classes=FILE` gives the class names, one a line: then labels are these or their numbers, and any other
is refused with its line.

The table is read once, line by line; where each sample lies goes to a temporary file, so that memory holds the label
and the place of a row in the order, and nothing else of it.
"""

from __future__ import annotations

import csv
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError, needed
from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.entry import refuse_others
from budgeted.streams.files import open_regular, read_regular, size_of
from budgeted.streams.labels import word
from budgeted.streams.listing import Builder, with_length
from budgeted.streams.own import dataset_of
from budgeted.streams.times import Times

OPTIONS = ("path", "image", "label", "time", "split", "domain", "root", "classes")
_MOST_NAMES = 16 * 2**20
_LONGEST_LINE = 1 << 16
_BATCH = 8192
#: Row groups of pictures that are kept unpacked.
_KEPT_GROUPS = 4


def read(request: Request) -> Dataset:
    """The data set of the table at `request.data_dir`."""
    path, options = request.data_dir, request.options
    refuse_others(options, OPTIONS, "manifest:")
    if not os.path.lexists(path):
        raise DataMissing(f"{path} does not exist: give manifest:FILE with the table of samples")
    builder = Builder(_class_names(Path(options["classes"])) if "classes" in options else ())
    root = Path(options["root"]).expanduser() if "root" in options else path.parent
    table = _parquet if path.suffix.lower() in (".parquet", ".pq") else _csv
    picture, spool = table(path, builder, options), builder.spool

    def where(index: int) -> str:
        if picture is not None:
            return f"{path} row {index}"
        return os.path.join(root, os.fsdecode(spool[index]))

    key = with_length(spool, where) if picture is None else None
    return dataset_of(builder.listing(picture or where, where, str(path), key=key), request, str(path))


def _csv(path: Path, builder: Builder, options: Any) -> None:
    columns = _Columns(options)
    try:
        with open_regular(path) as file:
            between = "\t" if path.suffix.lower() == ".tsv" else ","
            rows = csv.reader(_lines(file, path), delimiter=between, skipinitialspace=True, strict=True)
            header = next(rows, None)
            if header is None:
                raise DataError(f"{path} is empty: write a header path,label and a line for each sample")
            if len(header) == 1 and len(re.split("[,;\t|]", header[0])) > 1:
                marks = "tabs" if between == "\t" else "commas"
                raise DataError(f"{path}: the header is one field, {header[0]!r}: write {marks} between fields")
            columns.find([name.strip() for name in header], f"{path}: the header")
            for row in rows:
                where = f"{path} line {rows.line_num}"
                # which one is too many nobody can tell, so each may stand in the wrong column
                if len(row) > len(header) and "".join(row[len(header) :]).strip():
                    more = f"{len(row)} fields, the header has {len(header)}"
                    raise DataError(f"{where}: {more}: quote a field that holds a comma or a tab")
                if row:
                    columns.add(row, builder, where)
    except csv.Error as problem:
        raise DataError(f"{path} is no CSV ({problem} near row {len(builder) + 2:,}): correct it") from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}): check it") from problem


def _lines(file: Any, path: Path) -> Iterator[str]:
    """Lines of text; one that is too long or not UTF-8 is refused with its number."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{path} line {number}: more than {_LONGEST_LINE:,} bytes: this is no table of samples")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path} line {number}: not UTF-8: save the table as UTF-8") from None
        if "\0" in text:
            raise DataError(f"{path} line {number}: holds a NUL byte: this is no table of samples")
        yield text


class _Columns:
    """Which column says what."""

    def __init__(self, options: Any) -> None:
        self._names = {key: options.get(key, key) for key in ("path", "label", "time", "split", "domain")}
        self._asked = {key for key in self._names if key in options}
        self.place: dict[str, int] = {}
        self._times = Times()

    def find(self, header: list[str], where: str, needs_path: bool = True) -> None:
        needed = {"label", *(("path",) if needs_path else ()), *self._asked}
        for key, name in self._names.items():
            if header.count(name) > 1:
                raise DataError(f"{where} names {name!r} twice: rename one")
            if name in header:
                self.place[key] = header.index(name)
            elif key in needed:
                raise DataError(
                    f"{where} names no column {name!r} (it has {', '.join(map(repr, header[:20]))}): "
                    f"add it, or say which it is as manifest:FILE?{key}=COLUMN"
                )

    def add(self, row: Any, builder: Builder, where: str) -> None:
        if len(row) <= max(self.place.values()):
            raise DataError(f"{where}: {len(row)} fields, the header has more: complete the line")
        path = row[self.place["path"]] if "path" in self.place else ""
        if "path" in self.place and (not isinstance(path, str) or path.strip() == "" or "\0" in path):
            raise DataError(f"{where}: no path in it: complete the line")
        builder.add(
            os.fsencode(_surrogates_escaped(path.strip(), where)),
            word(row[self.place["label"]], where),
            where,
            part=_text(row, self.place.get("split")),
            domain=_text(row, self.place.get("domain")),
            time=None if "time" not in self.place else self._times.seconds(row[self.place["time"]], where),
        )


def _surrogates_escaped(path: str, where: str) -> str:
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise DataError(f"{where}: the path is no text: correct it") from None
    return path


def _text(row: Any, place: int | None) -> str:
    return "" if place is None or row[place] is None else str(row[place]).strip()


def _class_names(path: Path) -> list[str]:
    try:
        text = read_regular(path, _MOST_NAMES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: no list of class names can be read from it ({problem}): check it") from problem
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if len(set(found)) != len(found) or not found:
        raise DataError(f"{path}: names no class, or one twice: write each class once, one a line")
    return found


# -- Parquet ------------------------------------------------------------------------------------------------------


def _parquet(path: Path, builder: Builder, options: Any) -> Callable[[int], bytes] | None:
    """Fills the builder; answers with a reader of the pictures where the file holds them."""
    said = "Parquet files need pyarrow: pip install 'budgeted[data]'"
    pyarrow, parquet = needed("pyarrow", said), needed("pyarrow.parquet", said)
    columns = _Columns(options)
    try:
        with open_regular(path) as file:  # no FIFO, no device
            size_of(file)
        table = parquet.ParquetFile(str(path), pre_buffer=False)
        schema = table.schema_arrow
        names = [str(name) for name in schema.names]
        image = options.get("image", "image")
        holds = image in names and _holds_pictures(schema.field(names.index(image)).type, pyarrow.types)
        if "image" in options and "path" in options:
            raise DataError(f"{path}: both ?image= and ?path= are given: say where the pictures are by one of them")
        if "image" in options and not holds:
            said = f"has no bytes in the column {image!r}" if image in names else f"has no column {image!r}"
            raise DataError(f"{path} {said}: say manifest:FILE?image=COLUMN for bytes, ?path=COLUMN for paths")
        embedded = holds and ("image" in options or ("path" not in names and "path" not in options))
        columns.find(names, str(path), needs_path=not embedded)
        if embedded:
            columns.place.pop("path", None)
        wanted = [names[place] for place in columns.place.values()]
        columns.place = {key: number for number, key in enumerate(columns.place)}
        for batch in table.iter_batches(batch_size=_BATCH, columns=wanted, use_threads=False):
            for row in zip(*(batch.column(name).to_pylist() for name in wanted), strict=True):
                columns.add(row, builder, f"{path} row {len(builder)}")
        if not embedded:
            table.close()
            return None
        return _Pictures(table, image, path, isinstance(schema.field(image).type, pyarrow.StructType))
    except BudgetedError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as problem:
        raise DataError(f"{path}: no readable Parquet file ({problem}): write it again") from problem


def _holds_pictures(kind: Any, types: Any) -> bool:
    """Bytes, or {bytes, path}; a column `image` may as well hold paths."""
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


class _Pictures:
    """The pictures in a Parquet file; a few row groups stay unpacked, since samples near each other lie in one."""

    def __init__(self, table: Any, column: str, path: Path, nested: bool) -> None:
        self._table, self._path, self._nested = table, path, nested
        self._column = f"{column}.bytes" if nested else column
        ends, end = [], 0
        for group in range(table.metadata.num_row_groups):
            end += table.metadata.row_group(group).num_rows
            ends.append(end)
        self._ends = ends
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, index: int) -> bytes:
        from bisect import bisect_right

        group = bisect_right(self._ends, index)
        start = self._ends[group - 1] if group else 0
        with self._lock:
            if group not in self._kept:
                self._kept[group] = self._read(group)
                if len(self._kept) > _KEPT_GROUPS:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
            value = self._kept[group][index - start].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(f"{self._path} row {index}: no bytes of a picture in it: write the picture into the table")
        return content

    def _read(self, group: int) -> Any:
        try:
            return self._table.read_row_group(group, columns=[self._column], use_threads=False).column(0)
        except Exception as problem:  # damage shows where pages are unpacked
            raise DataError(f"{self._path}: row group {group} cannot be read ({problem}): write it again") from problem
