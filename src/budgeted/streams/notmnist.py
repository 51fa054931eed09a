"""notMNIST: letters A to J in many typefaces, 28x28; the hand-cleaned part, `notMNIST_small`, as folders or IDX files.

There is no official split: a tenth of each class, drawn by a fixed seed, is for testing (the 5-datasets benchmark
trains on about nine tenths of it too). Two of its files are no images, and are left out by name.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from budgeted.streams.dataset import DataMissing, Dataset, Part, Request, assemble
from budgeted.streams.folder import list_folder
from budgeted.streams.idx import labelled_images
from budgeted.streams.listing import Listing
from budgeted.streams.own import dataset_of, split

CLASSES = tuple("ABCDEFGHIJ")
TEST_SHARE = 0.1
#: Files of notMNIST_small that were published broken: in A and in F.
BROKEN = frozenset({"RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png", "Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png"})


def read(request: Request) -> Dataset:
    """`notMNIST_small/LETTER/*.png`, or one or two pairs of IDX files in `notmnist/`."""
    for root in (request.data_dir / "notMNIST_small", request.data_dir / "notmnist" / "notMNIST_small"):
        if root.is_dir():
            sized = replace(request, size=28, test_share=TEST_SHARE, on_demand=False)
            return dataset_of(_whole(list_folder(root)), sized, str(root), channels=1, statistics=False)
    return _from_idx(request)


def _whole(listing: Listing) -> Listing:
    keep = np.array([os.path.basename(listing.where(i)) not in BROKEN for i in range(len(listing))])
    rows = np.flatnonzero(keep)
    return replace(
        listing,
        codes=listing.codes[rows],
        read=lambda i: listing.read(int(rows[i])),
        where=lambda i: listing.where(int(rows[i])),
        key=lambda i: listing.key(int(rows[i])),
    )


def _from_idx(request: Request) -> Dataset:
    most = request.info.train_size + request.info.test_size
    parts: dict[str, Part] = {}
    missing: DataMissing | None = None
    for prefix in ("train", "t10k"):
        try:
            parts[prefix] = labelled_images(request, "notmnist", prefix, most)
        except DataMissing as problem:
            missing = problem
    if not parts:
        raise DataMissing(f"notMNIST_small/ or {missing}")
    if len(parts) == 2:
        train, test = parts["train"], parts["t10k"]
    else:
        (whole,) = parts.values()
        is_test = split(whole.labels, TEST_SHARE)
        train, test = (Part(whole.images[rows], whole.labels[rows]) for rows in (~is_test, is_test))
    return assemble(request.info, CLASSES, train if request.train else None, test if request.test else None)
