"""What a run's configuration fills in by itself."""

from __future__ import annotations

from budgeted.runs.config import RunConfig


def test_the_network_follows_the_data_set_and_is_written_down() -> None:
    assert [RunConfig(dataset=name).network for name in ("digits", "cifar10", "mine.npz")] == [
        "cnn8",
        "resnet32",
        "resnet32",
    ]
    assert RunConfig(model="mlp").network == "mlp"
    assert RunConfig().to_json()["model"] == "cnn8"
    assert RunConfig.from_mapping(RunConfig().to_json(), "here").network == "cnn8"
