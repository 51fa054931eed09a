"""LLaVA-1.5-7B without its weights: its blocks and its price, against a count that shares no formula with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from budgeted.audit import ExecutedOps
from budgeted.cli import main
from budgeted.models import llava as sizes
from budgeted.models.llava import LlavaShape
from budgeted.models.llava_lora import with_lora

pytestmark = pytest.mark.timeout(600)  # some 30 seconds of a quiet machine, on a busy one several minutes
TOKENS, PICTURES, LAYERS, VISION = 3000, 5, 32, 24


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("builtins.print", lambda *texts, **_: said.extend(map(str, texts)))
        assert main(["blocks", "llava-1.5-7b", "--json"]) == 0
    found: dict[str, Any] = json.loads("".join(said))
    return found


def test_the_chain_is_both_towers_and_what_joins_them(printed: dict[str, Any]) -> None:
    names = [row["name"].rpartition("model.model.")[2] for row in printed["blocks"]]
    assert len(names) == 61
    assert names[:2] == ["language_model.embed_tokens", "vision_tower.embeddings"]
    assert names[2:26] == [f"vision_tower.encoder.layers.{i}" for i in range(VISION)]
    assert [name.rpartition(".")[2] for name in names[26:28]] == ["linear_1", "linear_2"]
    assert names[28:60] == [f"language_model.layers.{i}" for i in range(LAYERS)]
    assert names[60].endswith("lm_head")


def test_sizes_in_print(printed: dict[str, Any]) -> None:
    """LLaVA-1.5-7B has 7.06 billion parameters; adapters of rank 128 on all layers add 320 million."""
    projector = sum(row["parameters"] for row in printed["blocks"][26:28]) - 2 * 1024  # a norm of the tower joins it
    adapters = LAYERS * 128 * (4 * 2 * 4096 + 3 * (4096 + 11008))
    assert printed["trained_parameters"] == adapters + projector
    assert printed["parameters"] - adapters - projector == pytest.approx(7.063e9, rel=1e-3)


def test_the_price_is_that_of_an_independent_count(printed: dict[str, Any]) -> None:
    for way, executed, known in zip(("forward", "backward"), _executed(), (48.43e12, 53.21e12), strict=True):
        assert printed[way]["real"] == pytest.approx(executed, rel=1e-3)
        assert printed[way]["real"] == pytest.approx(known, rel=1e-3)
    assert printed["backward_checkpointed"]["real"] == pytest.approx(98.71e12, rel=1e-3)


def test_what_is_left_in_either_order(printed: dict[str, Any]) -> None:
    found = [[round(share, 3) for share in row.values()] for row in printed["left"]]
    assert found == [[8, 0.866, 0.995, 0.83], [16, 0.738, 0.991, 0.664], [31, 0.497, 0.982, 0.353]]


def test_the_tiny_one_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks", "llava-tiny", "--tokens", "48", "--pictures", "2", "--frozen", "8"]) == 0
    said = capsys.readouterr().out
    assert "model.language_model.layers.0 (frozen)" in said
    assert "projector" in said
    assert "always trained" in said
    assert "1,578" not in said  # that is the large one's


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tokens", "5000"], "5000 tokens: this model takes 1 to 4096"),
        (["--tokens", "600", "--pictures", "2"], "2 pictures of 576 tokens do not fit into 600"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blocks", "llava-1.5-7b", *arguments]) == 2
    assert reason in capsys.readouterr().err


def _executed() -> tuple[int, int]:
    """Dispatched operations of forward and backward; layers are alike, so a few tell what one of each kind adds."""
    counts = {(text, vision): _of_depth(text, vision) for text, vision in ((1, 2), (2, 2), (1, 3))}
    base, deeper, wider = counts[1, 2], counts[2, 2], counts[1, 3]
    forward, backward = (
        base[way] + (LAYERS - 1) * (deeper[way] - base[way]) + (VISION - 2) * (wider[way] - base[way]) for way in (0, 1)
    )
    return forward, backward


def _of_depth(text: int, vision: int) -> tuple[int, int]:
    full = sizes.SHAPES["llava-1.5-7b"]
    shape = replace(full, text=replace(full.text, layers=text), vision=replace(full.vision, layers=vision))
    with _known_as("shallow", shape):
        model = with_lora(sizes.on_meta("shallow")).train()
    assert all(parameter.is_meta for parameter in model.parameters())  # the adapters take no memory either
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True):
        patch.setattr(torch, "_check_tensor_all_with", lambda *_: None)  # there are no values to look at
        words = torch.empty((1, TOKENS), dtype=torch.long, device="meta")
        pictures = torch.empty((PICTURES, 3, full.pixels, full.pixels), device="meta")
        with ExecutedOps() as forward:
            loss = model(
                input_ids=words, attention_mask=words, pixel_values=pictures, labels=words, use_cache=False
            ).loss
        with ExecutedOps() as backward:
            loss.backward(inputs=trained)
    return forward.total, backward.total


@contextmanager
def _known_as(name: str, shape: LlavaShape) -> Iterator[None]:
    sizes.SHAPES[name] = shape
    try:
        yield
    finally:
        del sizes.SHAPES[name]
