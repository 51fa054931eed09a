"""A model's own check of its data is taken as true where there are no data, and nowhere else."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from budgeted.budget import CannotTrace, trace
from budgeted.plugin import AdaptiveFreezing
from tests.multimodal.small import adapted, uneven


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0, lambda: "every number is above 0")
        torch._check(x.shape[1] == 4, lambda: "rows have four numbers")
        made: Tensor = self.two(self.one(x))
        return made


def test_a_check_of_values_holds_in_a_trace_and_is_priced() -> None:
    traced = trace(Checked(), (torch.zeros(3, 4),))
    assert [op.name for op in traced.ops][:2] == ["gt", "_is_all_true"]


def test_a_check_of_shapes_is_still_made() -> None:
    class Wide(Checked):
        def forward(self, x: Tensor) -> Tensor:
            torch._check(x.shape[1] == 5, lambda: "rows have five numbers")
            return x

    with pytest.raises(CannotTrace, match="rows have five numbers"):
        trace(Wide(), (torch.zeros(3, 4),))


def test_the_check_stays_where_data_are() -> None:
    original, model = torch._check_tensor_all_with, Checked()
    trace(model, (torch.zeros(3, 4),))
    assert torch._check_tensor_all_with is original
    with pytest.raises(RuntimeError, match="above 0"):
        model(torch.zeros(3, 4))


def test_another_thread_is_checked_meanwhile() -> None:
    failed: list[str] = []

    class Waiting(Checked):
        def forward(self, x: Tensor) -> Tensor:
            other = threading.Thread(target=run)
            other.start()
            other.join()
            return super().forward(x)

    def run() -> None:
        try:
            torch._check_tensor_all(torch.tensor([False]), lambda: "not so")
        except RuntimeError as error:
            failed.append(str(error))

    trace(Waiting(), (torch.zeros(3, 4),))
    assert failed == ["not so"]


def test_five_pictures_for_four_places_are_refused_before_and_after_a_priced_step() -> None:
    model, given = adapted(), uneven()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    freezing = AdaptiveFreezing(model, optimizer, policy="none")
    crowded = {**given, "pixel_values": torch.cat([given["pixel_values"], given["pixel_values"][:1]])}
    with pytest.raises(ValueError, match="do not match"):
        model(**crowded)
    freezing.backward(model(**given).loss)
    assert freezing.spent.real > 0
    with pytest.raises(ValueError, match="do not match"):
        model(**crowded)
