"""The reader of .mat files against scipy's, and what it refuses."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from budgeted.streams.mat import MatError, read_mat
from budgeted.streams.one_line import one_line

TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


@given(
    kind=st.sampled_from(TYPES),
    shape=st.lists(st.integers(0, 5), min_size=2, max_size=5),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_arrays_are_read_as_scipy_reads_them(
    kind: str, shape: list[int], packed: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    content = {name: rng.integers(0, 100, shape).astype(kind) for name in ("X", "y", "a_longer_name")}
    path = tmp_path_factory.mktemp("mat") / "file.mat"
    scipy.io.savemat(path, {**content, "text": "words", "cell": np.array([1, "b"], object)}, do_compression=packed)
    right = scipy.io.loadmat(path)
    found = read_mat(path, dict.fromkeys(content, 10**6))
    assert set(found) == set(content)
    for name, values in found.items():
        assert values.dtype == right[name].dtype
        assert values.shape == right[name].shape
        assert np.array_equal(values, right[name])


def test_the_other_byte_order(tmp_path: Path) -> None:
    """As a big-endian machine writes it; scipy reads it too."""
    values = struct.pack(">3H", 1, 2, 700) + bytes(2)
    inner = struct.pack(">IIII", 6, 8, 11, 0) + struct.pack(">IIii", 5, 8, 1, 3)
    inner += struct.pack(">HHc3x", 1, 1, b"X") + struct.pack(">II", 4, 6) + values
    path = tmp_path / "file.mat"
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\1\0MI" + struct.pack(">II", 14, len(inner)) + inner)
    assert scipy.io.loadmat(path)["X"].tolist() == [[1, 2, 700]]
    assert read_mat(path, {"X": 6})["X"].tolist() == [[1, 2, 700]]
    with pytest.raises(MatError, match="6 bytes"):
        read_mat(path, {"X": 5})


def test_every_cut_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "file.mat"
    for packed in (True, False):
        scipy.io.savemat(path, {"X": np.arange(20, dtype=np.uint8)[None]}, do_compression=packed)
        whole = path.read_bytes()
        for length in range(129, len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(MatError):
                read_mat(path, {"X": 100})


def test_damage_of_packed_values_is_seen_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "file.mat"
    scipy.io.savemat(path, {"X": np.arange(20, dtype=np.uint8)[None]}, do_compression=True)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Exception, match="incorrect data check"):
        read_mat(path, {"X": 100})


@given(text=st.text(max_size=50) | st.text(min_size=900, max_size=1500))
def test_one_line_is_one_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) < 1010
    if text.isprintable() and len(text) <= 1000:
        assert line == text
    line.encode()


def test_a_line_says_what_was_there() -> None:
    assert one_line("a\nb\tc\x1b[2J\udce9") == "a b c\\x1b[2J\\udce9"
