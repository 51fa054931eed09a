"""Codes that get shorter in place: against another library's transform, and against being encoded shorter at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.fft
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay import CODE, Column, GreedyBalanced, Memory, Progressive, Reservoir, label_column, shrink_to, store
from budgeted.replay.codecs.bits import BitReader, BitWriter
from budgeted.replay.codecs.dct import POINT, backward, basis, forward, zigzag
from tests.replay.test_picture_codecs import SHAPES, patches

COLUMNS = (Column("sample", (3, 32, 32), torch.uint8), label_column(4))


def codec_for(pictures: Tensor, **settings: Any) -> Progressive:
    codec = Progressive(**settings)
    codec.columns([Column("sample", tuple(pictures.shape[1:]), torch.uint8)])
    return codec


def psnr(one: Tensor, other: Tensor) -> float:
    return float(10 * torch.log10(255**2 / ((one.double() - other.double()) ** 2).mean()))


def test_the_transform_is_scipys() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (3, 24, 16), dtype=np.int32)
    found = forward(planes) / 2.0**POINT
    blocks = planes.reshape(3, 3, 8, 2, 8).transpose(0, 1, 3, 2, 4).reshape(3, 6, 8, 8) - 128.0
    expected = scipy.fft.dctn(blocks, axes=(2, 3), norm="ortho").reshape(3, 6, 64)[:, :, zigzag()]
    assert np.abs(found - expected).max() < 0.2  # 64 rounded entries of the basis, times 128
    back = backward(np.round(4 * expected), 24, 16)
    assert np.abs(back - planes).max() <= 1
    assert zigzag()[:8].tolist() == [0, 1, 8, 16, 9, 2, 3, 10]
    assert sorted(zigzag().tolist()) == list(range(64))


def test_the_transform_is_exact_in_whole_numbers() -> None:
    planes = np.random.default_rng(1).integers(0, 256, (1, 16, 16), dtype=np.int32)
    blocks = planes.reshape(2, 8, 2, 8).transpose(0, 2, 1, 3).reshape(4, 64)
    whole = basis().astype(int).astype(object)  # python's own numbers
    assert (forward(planes)[0] == (blocks.astype(object) - 128) @ whole.T).all()


def test_bits_of_several_rows_come_back() -> None:
    generator = np.random.default_rng(2)
    counts, writer = generator.integers(0, 9, (3, 5)), BitWriter(5)
    flags = generator.random(counts[0].sum()) < 0.5
    widths = generator.integers(0, 13, counts[1].sum())
    numbers = generator.integers(0, 1 << 13, len(widths)) & ((1 << widths) - 1)
    square = generator.integers(0, 64, (5, 3))
    writer.put(counts[0], flags)
    writer.put_numbers(counts[1], numbers, widths)
    writer.put_matrix(square, 6)
    codes = writer.codes()
    totals = counts[0] + np.array([part.sum() for part in np.split(widths, np.cumsum(counts[1])[:-1])]) + 18
    assert [len(code) for code in codes] == (-(-totals // 8)).tolist()
    reader = BitReader(codes)
    assert reader.take(counts[0]).tolist() == flags.tolist()
    assert reader.numbers(counts[1], widths).tolist() == numbers.tolist()
    assert reader.matrix(3, 6).tolist() == square.tolist()
    assert reader.lengths().tolist() == [len(code) for code in codes]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_shortened_is_what_would_have_been_encoded_so(shape: tuple[int, int, int]) -> None:
    pictures = patches(*shape)[:6]
    codec = codec_for(pictures, step=1, coarsest=64)
    stored, lengths = codec.encode_batch(pictures), []
    for level in range(1, codec.most + 1):
        shorter = codec.shortened(stored)
        codec.level = level
        at_once = codec.encode_batch(pictures)
        assert all(torch.equal(one, other) for one, other in zip(shorter[CODE], at_once[CODE], strict=True))
        assert torch.equal(codec.encode(pictures[1])[CODE], at_once[CODE][1])
        stored = shorter
        lengths.append(sum(map(len, stored[CODE])))
    assert lengths == sorted(lengths, reverse=True)
    assert codec.most == 12


def test_sharpness_falls_with_the_step_and_a_batch_is_its_pictures() -> None:
    pictures = patches()
    found = []
    for step in (1, 4, 16, 64):
        codec = codec_for(pictures, step=step, coarsest=64)
        stored = codec.encode_batch(pictures)
        decoded = codec.decode(stored)
        found.append(psnr(decoded, pictures))
        assert torch.equal(codec.decode({CODE: stored[CODE][7:8]})[0], decoded[7])
        grey = pictures[:, :1].contiguous()
        alone = codec_for(grey, step=step, coarsest=64)
        error = (alone.decode(alone.encode_batch(grey)).double() - grey.double()).abs().mean()
        assert error <= step  # of a transform that keeps lengths, at most about a step a value
    assert found == sorted(found, reverse=True)
    assert found[0] > 34  # what half the resolution of colour leaves of this photograph
    flat = torch.full((1, 3, 32, 32), 130, dtype=torch.uint8)
    codec = codec_for(flat)
    assert (codec.decode(codec.encode_batch(flat)).int() - 130).abs().max() <= 1
    assert len(codec.encode(flat[0])[CODE]) == 1 + 18 + 6 + 1


def test_no_sample_leaves_before_all_are_at_the_coarsest_step() -> None:
    pictures, generator = patches(), np.random.default_rng(0)
    memory = Memory(COLUMNS, limit=20_000, codec=(codec := Progressive(step=2, coarsest=16)))
    stored, levels = 0, [0]
    while codec.level < codec.most:
        picture = pictures[stored % len(pictures)]
        slot = store(memory, GreedyBalanced(), picture, stored % 4, generator)
        assert memory.nbytes() <= 20_000
        levels.append(codec.level)
        if codec.level < codec.most:
            assert slot == stored
            stored += 1
            assert len(memory) == stored
    assert levels == sorted(levels)
    sharp = Memory(COLUMNS, limit=20_000, codec=Progressive(step=2, coarsest=2))
    for number in range(stored):
        store(sharp, GreedyBalanced(), pictures[number % len(pictures)], number % 4, generator)
    assert stored > 2.5 * len(sharp)
    for number in range(60):  # and from then on they leave
        store(memory, GreedyBalanced(), pictures[number % len(pictures)], number % 4, generator)
        assert memory.nbytes() <= 20_000
    assert len(memory) < stored + 60
    assert 20_000 - memory.nbytes() < 600
    assert max(memory.counts) - min(memory.counts) <= 3
    batch = memory.gather(np.arange(len(memory)))
    assert batch.samples.shape == (len(memory), 3, 32, 32)


@pytest.mark.parametrize("selection", [GreedyBalanced, Reservoir])
def test_a_shortened_memory_goes_on_from_a_checkpoint_as_it_was(selection: type) -> None:
    pictures = patches()
    whole = Memory(COLUMNS, limit=16_000, codec=Progressive())
    again = Memory(COLUMNS, limit=16_000, codec=Progressive())
    chosen = selection()
    for number in range(90):
        if number == 60:
            again.load_state({name: tensor.clone() for name, tensor in whole.state().items()})
            assert again.codec.nbytes() == whole.codec.nbytes() == 16  # level and place of the sweep
        for memory in (whole, again) if number >= 60 else (whole,):
            seen = chosen.snapshot()
            store(memory, chosen, pictures[number % 48], number % 4, np.random.default_rng(number))
            if memory is whole and number >= 60:
                chosen.go_back(seen)
    assert all(torch.equal(one, again.state()[name]) for name, one in whole.state().items())
    shrink_to(whole, chosen, 11_000, np.random.default_rng(0))
    assert whole.nbytes() <= 11_000


def test_where_less_room_is_left_codes_get_shorter_before_samples_leave() -> None:
    pictures = patches()
    memory = Memory(COLUMNS, limit=40_000, codec=Progressive(step=2, coarsest=32))
    memory.extend(pictures, np.arange(len(pictures)) % 4)
    before = memory.nbytes()
    shrink_to(memory, GreedyBalanced(), before // 2, np.random.default_rng(0))
    assert len(memory) == len(pictures)
    assert memory.nbytes() <= before // 2
    assert memory.take_work()[0] >= len(pictures) // 2
    assert memory.take_work() == (0, 0)


def test_damage_and_senseless_settings_are_refused() -> None:
    codec = codec_for(patches())
    code = codec.encode(patches()[0])[CODE]
    for place in range(0, len(code), 37):
        broken = code.clone()
        broken[place] ^= 16
        with pytest.raises(BudgetedError, match="was damaged"):
            codec.decode({CODE: [code, broken]})
    with pytest.raises(BudgetedError, match="was damaged"):
        codec.decode({CODE: [code[:0]]})
    for step, coarsest in ((3, 16), (4, 128), (32, 16)):
        with pytest.raises(BudgetedError, match="codec progressive: "):
            Progressive(step=step, coarsest=coarsest)
