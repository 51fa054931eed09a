"""What data a run was begun on: digests of the samples that it sees and is tested on.

Images in memory are hashed whole: about a second for a gigabyte, and no more than 4 GiB are held in memory. Of files
that are decoded as they are used (ImageNet) the name and length of every one that the stream shows, and all bytes of
a thousand of them, spread evenly over the stream: one look at each entry of a folder instead of 150 GB read. If a
hundredth of the files were changed without a change of length, all thousand would miss it once in 23,000 times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from budgeted.errors import BudgetedError
from budgeted.streams import Stream
from budgeted.streams.bongard.questions import Questions
from budgeted.streams.dataset import Dataset, Images
from budgeted.streams.lazy import LazyImages
from budgeted.streams.records import Records

LOOKED_INTO = 1000
_ROWS = 4096

Digests = dict[str, str]


def content_of(dataset: Dataset, stream: Stream, test_images: Images, tested: NDArray[np.int64]) -> Digests:
    """One digest each, so that a refusal can say which are other ones."""
    shown = np.sort(stream.indices)
    return {
        "training images": _images(dataset.train_images, shown),
        "training labels": _numbers(dataset.train_labels[shown]),
        "test images": _images(test_images, np.arange(len(test_images))),
        "test labels": _numbers(tested),
    }


def refuse_other_content(recorded: Mapping[str, str], here: Mapping[str, str]) -> None:
    """A run goes on with the data that it was begun with."""
    differing = [name for name in here if recorded.get(name) != here[name]]
    if differing:
        raise BudgetedError(
            f"the {' and the '.join(differing)} are not those that the run was begun with: restore the data, or begin "
            "a new run"
        )


def _images(images: Images, shown: NDArray[np.int64]) -> str:
    if isinstance(images, LazyImages | Records | Questions):
        return images.digest(shown, LOOKED_INTO)
    digest = hashlib.blake2b(repr((len(shown), *images.shape[1:])).encode(), digest_size=32)
    for start in range(0, len(shown), _ROWS):
        piece: NDArray[np.uint8] = np.ascontiguousarray(images[shown[start : start + _ROWS]])
        digest.update(piece.data)
    return digest.hexdigest()


def _numbers(labels: NDArray[np.int64]) -> str:
    return hashlib.blake2b(labels.astype("<i8").tobytes(), digest_size=32).hexdigest()
