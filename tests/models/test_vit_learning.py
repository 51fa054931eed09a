"""Vision transformers in the engine: blocks, prices that are executed, sampled gradients, runs that resume exactly."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from budgeted import models, streams
from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger, total
from budgeted.freezing import ConstantPrefix, LayerFreezing, StepPrices
from budgeted.models.initialise import initialised
from budgeted.models.vit import BASE, LARGE, VisionTransformer, ViTShape, draw_vit, vision_transformer
from budgeted.network.sampled_gradients import SampledGradients
from budgeted.runs.config import RunConfig
from budgeted.runs.run import Progress, resume, start
from tests.markdown import ROOT

DIGIT = (1, 8, 8)
BLOCKS = ["vit.embeddings", *(f"vit.layers.{i}" for i in range(6)), "head"]


def tiny(shape: tuple[int, int, int] = DIGIT, attention: str = "sdpa", seed: int = 0) -> nn.Module:
    model: Any = models.build("vit-tiny", classes=4, input_shape=shape, seed=seed)
    model.vit.set_attn_implementation(attention)
    assert isinstance(model, nn.Module)
    return model


def small() -> VisionTransformer:
    """Small enough for every coordinate, and for an oracle sample by sample."""
    shape = ViTShape(width=16, layers=2, heads=2, patch=4)
    return initialised(lambda: vision_transformer(shape, 4, DIGIT), 0, draw_vit)


def batch(shape: tuple[int, int, int] = DIGIT, count: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *shape, generator=generator), torch.randint(4, (count,), generator=generator)


# -- blocks and prices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_blocks_are_the_embedding_the_layers_and_the_head(attention: str) -> None:
    model = tiny((3, 32, 32), attention)
    prices = StepPrices(model)
    chain = prices.chain(prices.forward([torch.empty(2, 3, 32, 32)]))
    assert [block.name for block in chain.blocks] == BLOCKS
    assert chain.head == "head"
    assert not chain.unused
    assert not chain.shared
    assert {name for block in chain.blocks for name in block.parameters} == set(dict(model.named_parameters()))
    assert "vit.embeddings.position_embeddings" in chain.blocks[0].parameters
    assert "vit.layernorm.weight" in chain.blocks[-1].parameters


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("frozen", [0, 1, 3, 6, 7])
def test_what_is_charged_is_executed(frozen: int, attention: str) -> None:
    model = tiny((3, 32, 32), attention)
    images, labels = batch((3, 32, 32))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    ledger = Ledger()
    freezing = LayerFreezing(model, ConstantPrefix(frozen), images, optimizer=optimizer, ledger=ledger)
    with ExecutedOps() as executed:
        freezing.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
    assert ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    computed = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert computed == {name for block in freezing.chain.blocks[frozen:] for name in block.parameters}


@pytest.mark.parametrize("size", [(16, 16), (48, 48), (16, 96)])
def test_bringing_images_to_size_is_charged(size: tuple[int, int]) -> None:
    model = vision_transformer(ViTShape(width=16, layers=2, heads=2, patch=8, pixels=32), 4, (3, *size))
    images, labels = batch((3, *size))
    freezing = LayerFreezing(model, "none", images)
    with ExecutedOps() as executed:
        loss = F.cross_entropy(model(images), labels)
        forward = executed.total
        step = freezing.backward(loss)
    assert step.costs["forward"].real == pytest.approx(forward, rel=0.01)
    assert total(step.costs.values()).real == pytest.approx(executed.total, rel=0.01)


@pytest.mark.parametrize(
    ("shape", "products", "attention"),
    # multiply-accumulates of all weights, and those of scores and mixing: formulas of ViT, by hand
    [
        (BASE, 196 * 768 * 768 + 12 * 197 * 12 * 768 * 768, 12 * 2 * 197 * 197 * 768),
        (LARGE, 196 * 768 * 1024 + 24 * 197 * 12 * 1024 * 1024, 24 * 2 * 197 * 197 * 1024),
    ],
)
def test_large_ones_are_priced_without_their_memory(shape: ViTShape, products: int, attention: int) -> None:
    with torch.device("meta"):
        model = vision_transformer(shape, 10, (3, 224, 224))
        images = torch.empty(1, 3, 224, 224)
    # on the processor, whose fused attention is priced; memory that is not written to is not taken
    prices = StepPrices(model.to_empty(device="cpu"), loss=None)
    step = prices.of(prices.forward([images]))
    forward, backward = total(step.forward), total(step.backward)
    known = products + attention + 10 * shape.width
    assert known < forward.paper < 1.02 * known  # the rest are biases, norms, activations
    assert 2 * known < forward.real < 2.02 * known
    assert 1.98 < backward.paper / forward.paper < 2.02
    # the fused attention computes its scores a second time
    assert backward.real == pytest.approx(2 * forward.real + attention, rel=0.01)


def test_the_tables_of_the_page_are_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "vit.md").read_text(encoding="utf-8")
    for table in runpy.run_path(str(ROOT / "benchmarks" / "vit_prices.py"))["tables"]():
        assert "\n".join(table) in page


# -- similarity ----------------------------------------------------------------------------------------------------


def test_samples_add_up_to_the_gradient_and_each_row_is_its_sample_s() -> None:
    model: Any = small().double()
    model.vit.set_attn_implementation("eager")  # what torch.func can take apart
    images, labels = batch()
    images = images.double()
    with SampledGradients(model, fraction=0.05, exclude=["head"]) as sampled:
        torch.autograd.backward(F.cross_entropy(model(images), labels))
        step = sampled.take()
    kinds = {name.rpartition(".")[0].rpartition(".")[2] for name, _ in sampled.coordinates}
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"} <= kinds
    assert bool(step.present.all())
    parameters: dict[str, Any] = dict(model.named_parameters())

    def loss_of(weights: dict[str, Any], image: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (image[None],))
        return F.cross_entropy(logits, label[None])

    rows = vmap(grad(loss_of), (None, 0, 0))(parameters, images, labels)
    for column, (name, index) in enumerate(sampled.coordinates):
        whole = parameters[name].grad
        assert whole is not None
        values = step.values[:, column].double()
        torch.testing.assert_close(values.sum(), whole.flatten()[index], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(values, rows[name].flatten(1)[:, index] / len(images), rtol=1e-4, atol=1e-6)


def test_layer_norms_and_patches_are_sampled_too() -> None:
    model = small()
    images, labels = batch()
    with SampledGradients(model, fraction=1.0, exclude=["head"]) as sampled:
        torch.autograd.backward(F.cross_entropy(model(images), labels))
        sums = sampled.take().values.sum(0)
    found: dict[str, list[tuple[int, float]]] = {}
    for (name, index), value in zip(sampled.coordinates, sums.tolist(), strict=True):
        found.setdefault(name, []).append((index, value))
    tokens = {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings"}  # of no layer that is sampled
    wanted = {n for n, _ in model.named_parameters() if not n.startswith("head")} - tokens
    assert set(found) == wanted
    for name in ("vit.layernorm.weight", "vit.layers.1.layernorm_after.bias", "vit.layers.0.layernorm_before.weight",
                 "vit.embeddings.patch_embeddings.projection.weight"):  # fmt: skip
        whole = model.get_parameter(name).grad
        assert whole is not None
        got = torch.tensor([value for _, value in sorted(found[name])])
        torch.testing.assert_close(got, whole.flatten(), rtol=1e-3, atol=1e-6)


# -- runs ----------------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    digits = streams.load("digits")
    chosen, tested = digits.train_labels < 3, digits.test_labels < 3  # every class is traced anew: three will do
    np.savez(
        tmp_path / "three.npz", x_train=digits.train_images[chosen], y_train=digits.train_labels[chosen],
        x_test=digits.test_images[tested], y_test=digits.test_labels[tested],
    )  # fmt: skip
    config = RunConfig(
        method="al-sar", model="vit-tiny", dataset=str(tmp_path / "three.npz"), limit=20, slots=20, batch_size=2,
        eval_every=10, eval_samples=20, checkpoint_every=6,
        settings={"freezing.ema_start": "corrected", "freezing.ema": "0.2"},
    )  # fmt: skip
    whole = start(config, tmp_path / "whole")
    assert whole["blocks"] == BLOCKS
    assert whole["frozen_share"] > 0
    assert whole["spent_on"]["similarity"][1] > 0

    def stop(progress: Progress) -> None:
        if progress.samples == 15:
            raise Killed

    with pytest.raises(Killed):
        start(config, tmp_path / "part", stop)
    resumed = resume(tmp_path / "part")
    assert resumed["sittings"] == 2
    for key in ("weights_sha256", "records_sha256", "spent", "a_auc", "frozen_steps", "bytes"):
        assert resumed[key] == whole[key], key
