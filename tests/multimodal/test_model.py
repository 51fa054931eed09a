"""LLaVA by name, from a folder and from a seed; its adapters, its words, its batches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from budgeted import models
from budgeted.errors import BudgetedError
from budgeted.models.llava import llava, on_meta
from budgeted.models.llava_lora import LAYERS, PROJECTOR, SMALL, target, with_lora
from budgeted.models.llava_words import IGNORED, answers_of, batch_of, processor_of
from tests.multimodal.small import adapted, batch, uneven, world

HEAD = "language_model.lm_head.weight"  # as files call it


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_the_tiny_one_follows_from_its_seed() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (weights(llava(seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(map(torch.equal, one, same))
    assert not all(map(torch.equal, one, other))
    assert sum(parameter.numel() for parameter in one) == 371_664
    assert all(map(torch.equal, weights(adapted()), weights(adapted())))


def test_a_folder_gives_back_what_was_saved(tmp_path: Path) -> None:
    model: Any = llava(seed=3)
    model.save_pretrained(tmp_path)
    _, _, processor = world()
    processor.save_pretrained(tmp_path)
    loaded: Any = llava(tmp_path)
    assert all(map(torch.equal, weights(model), weights(loaded)))
    _, items, _ = world()
    text = [items[0].question]
    assert processor_of(tmp_path).tokenizer(text).input_ids == processor.tokenizer(text).input_ids
    with torch.no_grad():
        assert torch.equal(model.eval()(**uneven()).logits, loaded.eval()(**uneven()).logits)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("cut", "invalid header"),
        ("other type", "it is a model of type bert"),
        ("less", "1 of its weights are not there, such as lm_head.weight"),
        ("smaller", "size|shape|mismatch"),
        ("pickled", r"no file named model\.safetensors"),
    ],
)
def test_a_folder_that_is_no_whole_llava_is_refused(tmp_path: Path, damage: str, reason: str) -> None:
    model: Any = llava(seed=3)
    model.save_pretrained(tmp_path)
    at = tmp_path / "model.safetensors"
    tensors = load_file(at)
    if damage == "cut":
        at.write_bytes(at.read_bytes()[:5000])
    elif damage == "other type":
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    elif damage == "less":
        save_file({name: one for name, one in tensors.items() if name != HEAD}, at, {"format": "pt"})
    elif damage == "smaller":
        save_file({**tensors, HEAD: torch.zeros(3, 64)}, at, {"format": "pt"})
    else:
        at.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BudgetedError, match=f"cannot load {re.escape(str(tmp_path))}: .*({reason}).*; is it a LLaVA"):
        llava(tmp_path)


@pytest.mark.parametrize("name", ["llava-1.5-7b", "llava-2-7b", "folder"])
def test_what_is_not_there_is_said(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    reason = {
        "llava-1.5-7b": "cannot load llava-hf/llava-1.5-7b-hf: .* fetch it first",
        "llava-2-7b": "there is no LLaVA 'llava-2-7b': give one of llava-tiny, llava-1.5-7b, or a folder",
        "folder": "cannot load .*folder: .*is it a LLaVA",
    }[name]
    (tmp_path / "folder").mkdir()
    with pytest.raises(BudgetedError, match=reason):
        llava(str(tmp_path / name) if name == "folder" else name)
    if name == "llava-2-7b":
        with pytest.raises(BudgetedError, match=r"none is near it: known are llava-1\.5-7b"):
            on_meta(name)


def test_adapters_are_on_the_language_model_alone() -> None:
    paths = [path for path, _ in llava().named_modules()]
    matched = [path for path in paths if re.fullmatch(target(), path)]
    assert len(matched) == 6 * len(LAYERS)
    assert all(".language_model.layers." in path for path in matched)
    assert any("vision_tower" in path and path.endswith("q_proj") for path in paths)  # a bare name would match these
    for projector in (True, False):
        trained = [n for n, p in adapted(replace(SMALL, projector=projector)).named_parameters() if p.requires_grad]
        assert any(PROJECTOR in name for name in trained) == projector
        assert all("lora_" in name or PROJECTOR in name for name in trained)
        assert not any("vision_tower" in name or "lm_head" in name for name in trained)
    with pytest.raises(BudgetedError, match="rank from 1"):
        with_lora(llava(), replace(SMALL, rank=0))


def test_the_name_may_say_more_of_the_adapters(tmp_path: Path) -> None:
    base: Any = llava(seed=3)
    base.save_pretrained(tmp_path)
    world()[2].save_pretrained(tmp_path)

    def trained(name: str) -> dict[str, tuple[int, ...]]:
        model = models.build(f"{name}@{tmp_path}", seed=1)
        return {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}

    usual, said = trained("llava-tiny"), trained("llava-tiny?rank=3&projector=false")
    assert any(PROJECTOR in name for name in usual)
    assert not any(PROJECTOR in name for name in said)
    assert {shape[0] for name, shape in usual.items() if "lora_A" in name} == {SMALL.rank}
    assert {shape[0] for name, shape in said.items() if "lora_A" in name} == {3}
    for wrong, reason in (
        ("ranks=3", "did you mean 'rank'"),
        ("rank=three", "whole number"),
        ("rank=0", "rank from 1"),
    ):
        with pytest.raises(BudgetedError, match=reason):
            trained(f"llava-tiny?{wrong}")
    with pytest.raises(BudgetedError, match="has no adapters"):
        models.build("mlp?rank=3")


def test_a_batch_to_train_on_asks_for_the_answers_alone() -> None:
    _, items, processor = world()
    chosen = (items[0], items[30], items[31])
    made = batch(chosen)
    assert made["input_ids"].shape[1] % 8 == 0
    assert made["pixel_values"].shape == (4 + 5 + 5, 3, 16, 16)
    for row, item in enumerate(chosen):
        asked = made["labels"][row] != IGNORED
        assert processor.tokenizer.decode(made["labels"][row][asked]) == f" {item.answer}</s>"
        assert torch.equal(made["labels"][row][asked], made["input_ids"][row][asked])
        assert int(asked.nonzero().max()) == int(made["attention_mask"][row].nonzero().max())
        places = int((made["input_ids"][row] == processor.image_token_id).sum())
        assert places == 4 * len(item.pictures)  # 16 pixels in patches of 8
    assert int(batch(chosen, answers=False)["attention_mask"][:, -1].min()) == 1  # padded on the left
    assert "labels" not in batch(chosen, answers=False)


def test_pictures_and_places_must_agree() -> None:
    data, items, processor = world()
    pictures = [data.picture(name) for name in items[0].pictures]
    with pytest.raises(BudgetedError, match="4 places for 5 pictures"):
        batch_of(processor, [items[0].question], [[*pictures, pictures[0]]], ["red"])


def test_every_text_can_be_written_and_read() -> None:
    _, _, processor = world()
    for text in ("type_on sports_ball", "Ärger — 猫", "\t#"):
        tokens = processor.tokenizer(text, add_special_tokens=False).input_ids
        assert processor.tokenizer.decode(tokens) == text
        assert max(tokens) < 400


def test_answers_are_greedy_and_leave_the_mode_alone() -> None:
    model, (_, items, processor) = adapted(), world()
    given = batch(items[:3], answers=False)
    said = answers_of(model, processor, given, longest=3)
    assert model.training
    assert said == answers_of(model, processor, given, longest=3)
    alone = [answers_of(model, processor, batch((item,), answers=False), longest=3)[0] for item in items[:3]]
    assert said == alone  # padding changes nothing
