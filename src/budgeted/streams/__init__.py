"""Streams: data sets as uint8 arrays, and the orders in which their samples arrive.

>>> from budgeted import streams
>>> data = streams.load("digits")
>>> stream = streams.stream_of(data, "disjoint", seed=1)
>>> len(stream), stream.boundaries()[0], data.input_shape
(1437, 283, (1, 8, 8))
"""

from __future__ import annotations

from budgeted.streams.arrays import from_arrays, from_npz
from budgeted.streams.dataset import DataError, DataMissing, Dataset, DatasetInfo, Images, default_data_dir
from budgeted.streams.download import DownloadError
from budgeted.streams.orders import blurry, class_order, disjoint, domain, gaussian, limit
from budgeted.streams.registry import info, load, names
from budgeted.streams.stream import Stream, make_stream, order_names, stream_of

__all__ = [
    "DataError",
    "DataMissing",
    "Dataset",
    "DatasetInfo",
    "DownloadError",
    "Images",
    "Stream",
    "blurry",
    "class_order",
    "default_data_dir",
    "disjoint",
    "domain",
    "from_arrays",
    "from_npz",
    "gaussian",
    "info",
    "limit",
    "load",
    "make_stream",
    "names",
    "order_names",
    "stream_of",
]
