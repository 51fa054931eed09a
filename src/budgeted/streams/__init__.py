"""Streams: data sets as uint8 arrays, and the orders in which their samples arrive.

>>> from budgeted import streams
>>> data = streams.load("digits")
>>> stream = streams.stream_of(data, "disjoint", seed=1)
>>> len(stream), stream.boundaries()[0], data.input_shape
(1437, 283, (1, 8, 8))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later

if TYPE_CHECKING:
    from budgeted.streams.ahead import Arriving, Bad, arriving
    from budgeted.streams.arrays import from_arrays, from_npz
    from budgeted.streams.dataset import DataError, DataMissing, Dataset, DatasetInfo, Images, Request, default_data_dir
    from budgeted.streams.download import DownloadError
    from budgeted.streams.entry import Entry
    from budgeted.streams.lazy import held
    from budgeted.streams.orders import blurry, class_order, disjoint, domain, gaussian, limit
    from budgeted.streams.registry import DATASETS, info, known_info, load, names, short_name
    from budgeted.streams.stream import Stream, make_stream, order_names, stream_of

__all__ = [
    "DATASETS",
    "Arriving",
    "Bad",
    "DataError",
    "DataMissing",
    "Dataset",
    "DatasetInfo",
    "DownloadError",
    "Entry",
    "Images",
    "Request",
    "Stream",
    "arriving",
    "blurry",
    "class_order",
    "default_data_dir",
    "disjoint",
    "domain",
    "from_arrays",
    "from_npz",
    "gaussian",
    "held",
    "info",
    "known_info",
    "limit",
    "load",
    "make_stream",
    "names",
    "order_names",
    "short_name",
    "stream_of",
]

# readers, which a learner needs none of
_FILES = {
    "ahead": ("Arriving", "Bad", "arriving"),
    "arrays": ("from_arrays", "from_npz"),
    "dataset": ("DataError", "DataMissing", "Dataset", "DatasetInfo", "Images", "Request", "default_data_dir"),
    "download": ("DownloadError",),
    "entry": ("Entry",),
    "lazy": ("held",),
    "orders": ("blurry", "class_order", "disjoint", "domain", "gaussian", "limit"),
    "registry": ("DATASETS", "info", "known_info", "load", "names", "short_name"),
    "stream": ("Stream", "make_stream", "order_names", "stream_of"),
}
__getattr__, __dir__ = later(__name__, _FILES)
