"""The readers on real data sets, where they are at hand; elsewhere these tests are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from budgeted import streams
from budgeted.streams.dataset import channel_statistics

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "budgeted-test-data"

pytestmark = pytest.mark.skipif(not UNPACK.is_file(), reason="no real data beside this checkout")


@pytest.fixture(scope="module")
def unpacked() -> Callable[[str], Path]:
    def unpack(name: str) -> Path:
        done = subprocess.run([sys.executable, str(UNPACK), "--to", str(CACHE), name], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"real data did not unpack: {done.stderr.strip()[-200:]}")
        return CACHE

    return unpack


def test_cifar10(unpacked: Callable[[str], Path]) -> None:
    data = streams.load("cifar10", unpacked("cifar10"))
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert [data.class_names[i] for i in data.train_labels[:4]] == ["frog", "truck", "truck", "deer"]
    mean, _ = channel_statistics(data.train_images[:])
    assert np.allclose(mean, data.mean, atol=1e-4)  # right channels in the right order
    for seed, first in ((1, {"frog", "automobile"}), (2, {"ship", "cat"}), (3, {"horse", "ship"})):
        stream = streams.stream_of(data, "disjoint", seed)
        assert stream.boundaries() == (10_000, 20_000, 30_000, 40_000)
        assert {data.class_names[i] for i in data.train_labels[stream[:10_000]]} == first


def test_mnist(unpacked: Callable[[str], Path]) -> None:
    data = streams.load("mnist", unpacked("mnist"))
    assert (len(data.train_labels), len(data.test_labels)) == (60_000, 10_000)
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    mean, std = channel_statistics(data.train_images[:])
    assert np.allclose([mean, std], [data.mean, data.std], atol=1e-4)


def test_svhn(unpacked: Callable[[str], Path]) -> None:
    data = streams.load("svhn", unpacked("svhn"))
    assert data.train_images.shape[1:] == (3, 32, 32)
    assert data.train_labels[0] == 1  # the first crop of the first house, number 19
    assert int(np.argmax(np.bincount(data.test_labels))) == 1  # house numbers begin with 1 most often


def test_tiny_imagenet(unpacked: Callable[[str], Path]) -> None:
    data = streams.load("tinyimagenet", unpacked("tiny-imagenet"), on_demand=True)
    assert data.classes == 100
    assert np.bincount(data.test_labels).tolist() == [50] * 100
    assert data.train_images[[0, 9_999]].shape == (2, 3, 64, 64)
    assert list(data.class_names) == sorted(data.class_names)
