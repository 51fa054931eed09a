"""The log of a memory: whatever happens to the slots, every checkpoint is put together again from its segments."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner import segments
from budgeted.replay import Column, Memory
from budgeted.replay.codec import CODE, Codec, Raw
from budgeted.replay.column import label_column
from budgeted.replay.journal import Segment
from budgeted.replay.shared_pictures import SharedPictures

SLOTS = 40
SIDE = 6


class Packed(Codec):
    """Codes of differing lengths, and a column beside them."""

    varying = True

    def columns(self, sample: Any) -> tuple[Column, ...]:
        return (Column("mean", (), torch.float32),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        code = zlib.compress(sample.numpy().tobytes())
        return {"mean": sample.float().mean(), CODE: torch.frombuffer(bytearray(code), dtype=torch.uint8)}

    def decode(self, stored: Any) -> Tensor:
        raise NotImplementedError


def picture(rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.integers(0, rng.integers(2, 256), (3, SIDE, SIDE), dtype=np.uint8))


def question(rng: np.random.Generator) -> dict[str, Tensor]:
    """Two of nine pictures, and a text."""
    shown = [torch.full((3, SIDE, SIDE), int(each), dtype=torch.uint8) for each in rng.integers(0, 9, 2)]
    text = torch.zeros(12, dtype=torch.uint8)
    text[: int(rng.integers(1, 12))] = 7
    return {"pictures": torch.stack(shown), "text": text}


PICTURE = (Column("picture", (3, SIDE, SIDE), torch.uint8),)
QUESTION = (Column("pictures", (2, 3, SIDE, SIDE), torch.uint8), Column("text", (12,), torch.uint8))
KINDS: dict[str, tuple[type[Codec], tuple[Column, ...], Any, dict[str, Any]]] = {
    "raw": (Raw, PICTURE, picture, {"capacity": SLOTS}),
    "codes": (Packed, PICTURE, picture, {"limit": SLOTS * 100}),
    "pictures": (SharedPictures, QUESTION, question, {"limit": SLOTS * 80}),
    "unlimited": (Raw, PICTURE, picture, {}),
}
BESIDE = (label_column(10), Column("logits", (4,)), Column("frequency", (), host=True))


def made(kind: str) -> Memory:
    codec, sample, _, limits = KINDS[kind]
    return Memory((*sample, *BESIDE), codec=codec(), **limits)


def happens(memory: Memory, kind: str, rng: np.random.Generator) -> None:
    """Something that a learner does to its memory."""
    draw = KINDS[kind][2]
    what = rng.integers(0, 20)
    if len(memory) and what == 0:
        memory.evict(int(rng.integers(len(memory))))
    elif len(memory) > 20 and what == 1:
        memory.evict([0, len(memory) - 1, 2])
    elif len(memory) and what == 2:
        memory.rewrite(int(rng.integers(len(memory))), memory.encode(draw(rng))) if kind == "raw" else None
    elif len(memory) and what == 3:
        memory.write("logits", np.array([0]), torch.rand(1, 4))
        memory.host("frequency")[:] += 1
    elif what == 4 and kind == "raw" and len(memory) < SLOTS - 2:
        memory.extend(torch.stack([draw(rng), draw(rng)]), np.array([1, 2]))
    else:
        encoded, new = memory.encode(draw(rng)), len(memory) < SLOTS and rng.random() < 0.5
        slot = len(memory) if new or not len(memory) else int(rng.integers(len(memory)))
        if memory.fits(encoded, slot):
            memory.put_encoded(slot, encoded, int(rng.integers(10)), logits=torch.rand(4))


def checkpoint(memory: Memory, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Written, and told to the journals: what the log has, what is beside it, and all as it is."""
    whole = {name: tensor.clone() for name, tensor in memory.state().items()}
    journals = memory.journals
    written = {name: segments.write(journal, folder) for name, journal in journals.items()}
    beside = {name: tensor.clone() for name, tensor in memory.state(written.keys()).items()}
    for name, (places, held) in written.items():
        journals[name].segments = held
        journals[name].rows.settle(places)
    return written, beside, whole


@pytest.mark.parametrize("kind", KINDS)
def test_every_checkpoint_is_put_together_again(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1000)
    rng = np.random.default_rng(5)
    memory, kept = made(kind), []
    for number in range(400):
        happens(memory, kind, rng)
        if number % 7 == 0:
            kept.append(checkpoint(memory, tmp_path))
        if number == 200:  # as a resumed run goes on: the same places, in another memory
            written, beside, whole = checkpoint(memory, tmp_path)
            again = made(kind)
            again.load_state(whole)
            for name, (places, held) in written.items():
                again.journals[name].rows.settle(places)
                again.journals[name].segments = held
            memory = again
    assert len(memory) > 10
    for written, beside, whole in kept:
        found = dict(beside)
        for places, held in written.values():
            found |= segments.read(tmp_path, segments.from_json(segments.to_json(held)), places)
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_what_did_not_change_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1000)
    rng = np.random.default_rng(0)
    memory = made("raw")
    for slot in range(SLOTS):
        memory.put(slot, picture(rng), 1)
    checkpoint(memory, tmp_path)
    each, before = len(list(tmp_path.iterdir())), set(tmp_path.iterdir())
    assert each == -(-SLOTS // (1000 // (3 * SIDE * SIDE)))
    checkpoint(memory, tmp_path)
    assert set(tmp_path.iterdir()) == before
    memory.write("logits", np.arange(SLOTS), torch.rand(SLOTS, 4))
    memory.put(3, picture(rng), 2)
    memory.evict(7)  # the last moves there, and is written already
    checkpoint(memory, tmp_path)
    (new,) = set(tmp_path.iterdir()) - before
    assert new.stat().st_size < 400


@pytest.mark.parametrize("cold", [0, SLOTS // 2])
def test_the_log_stays_small_and_is_compacted_by_degrees(
    cold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over slots that change all alike, and where half of them never do."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1000)
    rng = np.random.default_rng(1)
    memory = made("raw")
    for slot in range(SLOTS):
        memory.put(slot, picture(rng), 1)
    whole, most = sum(each.nbytes for each in checkpoint(memory, tmp_path)[0]["slots"][1]), 0
    for _ in range(200):
        before = {each.file for each in memory.journals["slots"].segments}
        for _ in range(3):
            memory.put(int(rng.integers(cold, SLOTS)), picture(rng), 1)
        held = checkpoint(memory, tmp_path)[0]["slots"][1]
        assert sum(each.nbytes for each in held) <= 2.3 * whole  # a segment of few rows has its own header
        most = max(most, sum(each.rows for each in held if each.file not in before))
    assert (3 if cold else 4) <= most <= 3 * 2 + 1000 // (3 * SIDE * SIDE)


def test_a_checkpoint_that_was_not_finished_changes_nothing(tmp_path: Path) -> None:
    memory = made("raw")
    memory.put(0, picture(np.random.default_rng(0)), 1)
    first = segments.write(memory.journals["slots"], tmp_path)
    again = segments.write(memory.journals["slots"], tmp_path)  # nobody settled the first
    assert first[1] == again[1]
    assert np.array_equal(first[0], again[0])


def test_a_full_memory_is_taken_up_without_a_second_copy(tmp_path: Path) -> None:
    memory, rng = made("raw"), np.random.default_rng(0)
    for slot in range(SLOTS):
        memory.put(slot, picture(rng), 1)
    memory.host("frequency")[:] = np.arange(SLOTS)
    written, beside, whole = checkpoint(memory, tmp_path)
    found = beside | segments.read(tmp_path, written["slots"][1], written["slots"][0])
    again = made("raw")
    again.load_state(found, found.keys())
    assert again._storage.tensors["picture"].data_ptr() == found["column.picture"].data_ptr()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.state().items())
    assert again.labels.tolist() == memory.labels.tolist()
    assert again.host("frequency").tolist() == memory.host("frequency").tolist()
    other = made("raw")
    other.load_state(found)
    assert other._storage.tensors["picture"].data_ptr() != found["column.picture"].data_ptr()


def test_files_of_others_stay(tmp_path: Path) -> None:
    names = (
        f"rows-{'a' * 32}.safetensors",
        f"rows-{'b' * 32}.safetensors",
        f".rows-{'c' * 32}.safetensors.part",
        "mine",
    )
    for name in names:
        (tmp_path / name).touch()
    segments.drop(tmp_path, {names[1]})
    assert {path.name for path in tmp_path.iterdir()} == {names[1], "mine"}
    segments.drop(tmp_path / "nowhere", ())


def test_what_is_no_segment_of_ours_is_refused(tmp_path: Path) -> None:
    places = np.zeros(1, np.int64)
    with pytest.raises(BudgetedError, match="is no segment of ours"):
        segments.read(tmp_path, (Segment("../state.json", 0, 1, 10, "0"),), places)
    with pytest.raises(BudgetedError, match="names no segments for some of its 1 rows"):
        segments.read(tmp_path, (Segment("x", 1, 1, 10, "0"),), places)
