"""A model in two: what rests once its front is left behind."""

from __future__ import annotations

import torch

from budgeted.network.front import FrontAndRest
from tests.bright_rows import SHAPE
from tests.methods.small import network


def test_once_it_has_gone_over_the_front_rests_with_its_statistics() -> None:
    """In training mode, and also where images are given."""
    model = FrontAndRest(network("tiny"), torch.empty(2, *SHAPE, device="meta"), trained=2, codebooks=4)
    model.go_over()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.rand(4, *SHAPE)).sum().backward()
    front = {name for name, _ in model.named_parameters() if ".stem." in name}
    rest = {name for name, _ in model.named_parameters()} - front
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == front
    assert {name for name, p in model.named_parameters() if p.grad is not None} == rest
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, _ in model.named_buffers() if ".body." in name}
