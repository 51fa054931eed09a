"""Adapters on a base that rests anyway: only they have weight gradients, in the price as in what is executed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from budgeted import models
from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger, total
from budgeted.freezing import AdaptivePrefix, ConstantPrefix, LayerFreezing
from budgeted.integrations.trainer import freeze_in

RANK = 2


class Adapted(nn.Module):
    """A linear layer that rests, and a product of two thin ones beside it that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted(image: tuple[int, int, int] = (3, 32, 32)) -> nn.Module:
    """vit-tiny with adapters on its attention and its MLP; everything else but the head rests."""
    model = models.build("vit-tiny", classes=4, input_shape=image)
    for parameter in model.get_submodule("vit").parameters():
        parameter.requires_grad_(False)
    torch.manual_seed(0)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and path != "head":
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, Adapted(module))
    return model


def batch(image: tuple[int, int, int] = (3, 32, 32), count: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *image, generator=generator), torch.randint(4, (count,), generator=generator)


def test_the_price_has_weight_gradients_of_adapters_only() -> None:
    """Against the same network trained whole, what falls away is the product of every resting weight."""
    images, _ = batch()
    whole, thin = adapted(), adapted()
    for parameter in whole.parameters():
        parameter.requires_grad_(True)
    prices = [total(LayerFreezing(model, "none", images).price(images).backward).real for model in (whole, thin)]
    tokens = 4 * 65
    products = sum(2 * tokens * module.base.weight.numel() for module in whole.modules() if isinstance(module, Adapted))
    patches = 2 * 4 * 64 * whole.get_parameter("vit.embeddings.patch_embeddings.projection.weight").numel()
    # below the first adapters no gradient passes: the three inputs of the first attention
    first = [module for module in thin.modules() if isinstance(module, Adapted)][:3]
    below = sum(2 * tokens * (m.base.weight.numel() + m.down.weight.numel()) for m in first)
    assert prices[0] - prices[1] == pytest.approx(products + patches + below, rel=0.01)


@pytest.mark.parametrize("frozen", [0, 1, 3, 6, 7])
def test_what_is_charged_is_executed(frozen: int) -> None:
    images, labels = batch()
    model = adapted()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], foreach=False)
    ledger = Ledger()
    freezing = LayerFreezing(model, ConstantPrefix(frozen), images, optimizer=optimizer, ledger=ledger)
    assert [block.name for block in freezing.chain.blocks] == [
        "vit.embeddings", *(f"vit.layers.{i}" for i in range(6)), "head",
    ]  # fmt: skip
    with ExecutedOps() as executed:
        freezing.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
    assert ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    computed = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    above = {name for block in freezing.chain.blocks[frozen:] for name in block.parameters}
    assert computed == {name for name in above if ".up." in name or ".down." in name or name.startswith("head")}


def test_freezing_what_rests_already_saves_nothing() -> None:
    images, _ = batch()
    freezing = LayerFreezing(adapted(), "none", images)
    saved = freezing.prices.saved(freezing.prices.forward((images,)), "real")
    assert saved[0] == saved[1] == 0  # the patch embedding has no adapter
    assert all(later > earlier for earlier, later in pairwise(saved[1:]))


def test_peft_in_a_trainer(tmp_path: Path) -> None:
    words: dict[str, Any] = {
        "vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 12, "num_labels": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    base: Any = BertForSequenceClassification
    model: Any = get_peft_model(
        base(BertConfig(**words)), LoraConfig(task_type="SEQ_CLS", r=RANK, target_modules=["query", "value"])
    )
    text = torch.randint(0, 30, (32, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": (row[0] >= 15).long()} for row in text]
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, max_steps=8, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainer = Trainer(model, arguments, train_dataset=data)
    freezing = freeze_in(trainer, AdaptivePrefix(ema=0.5, ema_start="corrected"))
    with ExecutedOps() as executed:
        trainer.train()
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.01)
    assert freezing.frozen_share > 0
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert moved
    assert all("lora" in name or "modules_to_save" in name for name in moved)
