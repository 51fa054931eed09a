"""Samples decoded ahead: the same ones in the same order, however many threads; bounded; errors at their place."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from budgeted import streams
from budgeted.streams import Bad, DataError, Dataset, from_arrays

COUNT = 60


class Slow:
    """Images that take a while, notes who asks, and cannot give every 7th."""

    def __init__(self, images: NDArray[np.uint8], bad: int = 0) -> None:
        self._images = images
        self._bad = bad
        self.asked: list[int] = []
        self.by: set[str] = set()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._images.shape

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any, /) -> Any:
        self.asked.append(int(index))
        self.by.add(threading.current_thread().name)
        time.sleep(0.0005 * (index % 3))
        if self._bad and index % self._bad == self._bad - 1:
            raise DataError(f"sample {index} is bad")
        return self._images[index]


def dataset(bad: int = 0) -> tuple[Dataset, Slow]:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 3, 5, 5), dtype=np.uint8)
    labels = np.arange(COUNT) % 5
    slow = Slow(images, bad)
    return replace(from_arrays(images, labels, images, labels), train_images=slow), slow


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_the_same_samples_in_the_same_order(threads: int) -> None:
    data, slow = dataset()
    order = np.random.default_rng(1).permutation(COUNT)
    with streams.arriving(data, order[10:], threads=threads, ahead=5) as samples:
        found = [sample for sample in samples if not isinstance(sample, Bad)]
    assert [label for _, label in found] == [int(index) % 5 for index in order[10:]]
    for (x, _), index in zip(found, order[10:], strict=True):
        assert np.array_equal(x.numpy(), slow._images[index])
    assert samples.waited > 0
    assert (threading.current_thread().name in slow.by) == (threads == 0)


def test_no_more_is_decoded_ahead_than_was_said() -> None:
    data, slow = dataset()
    with streams.arriving(data, range(COUNT), threads=2, ahead=4) as samples:
        for position, _ in enumerate(samples):
            assert len(slow.asked) <= position + 1 + 4
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [0, 2])
def test_a_bad_sample_ends_it_at_its_place_or_is_passed_over(threads: int) -> None:
    data, _ = dataset(bad=7)
    with streams.arriving(data, range(COUNT), threads=threads) as samples:
        each = iter(samples)
        assert [int(next(each)[1]) for _ in range(6)] == [0, 1, 2, 3, 4, 0]  # type: ignore[index]
        with pytest.raises(DataError, match="sample 6 is bad"):
            next(each)
    with streams.arriving(data, range(COUNT), threads=threads, skip_bad=True) as samples:
        found = list(samples)
    assert [each.index for each in found if isinstance(each, Bad)] == list(range(6, COUNT, 7))
    assert len(found) == COUNT


def test_arrays_need_no_threads(tmp_path: Path) -> None:
    data = streams.load("digits")
    with streams.arriving(data, range(3), threads=8) as samples:
        assert samples._pool is None
        assert len(list(samples)) == 3


def test_threads_leave_the_filters_of_warnings_as_they_were(tmp_path: Path) -> None:
    """A picture that Pillow warns about, decoded in threads while this one catches warnings of its own."""
    for i in range(40):
        path = tmp_path / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        palette = Image.fromarray(np.full((8, 8), i, np.uint8)).convert("P")
        palette.save(path, transparency=bytes(range(256)))
    data = streams.load(f"folder:{tmp_path}", on_demand=True)
    with streams.arriving(data, range(len(data.train_labels)), threads=3) as samples:
        before = list(warnings.filters)
        for _ in samples:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
        assert warnings.filters == before
