"""What collecting sampled per-sample gradients adds to a training step, in CPU time on one thread.

Steps with and without collection alternate, so that a change of the machine's speed meets both alike. A step is
forward, backward and optimizer. Three figures, from the narrowest to the widest: `alone` replays what the layers
compute on the tensors of one step, one layer after the other; `in hooks` is the time inside the hooks and `take()`
during a step, timers and cold caches included; `with - without` is what a step becomes longer by.

Which layers hold the sampled coordinates is a matter of the draw, and early layers cost more than late ones: the
figures are means over several draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.models import build
from budgeted.network.sampled_gradients import SampledGradients, SampledStep
from budgeted.runs.environment import environment


class TimedSampledGradients(SampledGradients):
    """Adds up the CPU time spent collecting; the wall clock would count the turns of other processes too."""

    seconds = 0.0

    def _forward_hook(self, number: int) -> Callable[..., None]:
        hook = super()._forward_hook(number)

        def timed(*arguments: Any) -> None:
            begin = time.process_time()
            hook(*arguments)
            self.seconds += time.process_time() - begin

        return timed

    def _collect(self, *arguments: Any) -> None:
        begin = time.process_time()
        super()._collect(*arguments)
        self.seconds += time.process_time() - begin

    def take(self) -> SampledStep:
        begin = time.process_time()
        step = super().take()
        self.seconds += time.process_time() - begin
        return step


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    cross_entropy(model(images), labels).backward()
    optimizer.step()


def alone(sampled: SampledGradients, run: Callable[[], None], repeats: int = 40) -> float:
    """CPU seconds of all layers' rows, computed again on the tensors of one step."""
    work: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = []

    def recording(rows: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(*tensors: Any) -> Tensor:
            work.append((rows, tensors))
            return rows(*tensors)

        return record

    layers = [entry.layer for entry in sampled._layers]
    for layer in layers:
        layer.weight_rows = recording(layer.weight_rows)  # type: ignore[method-assign]
        layer.bias_rows = recording(layer.bias_rows)  # type: ignore[method-assign]
    with sampled:
        run()
        sampled.take()
    for layer in layers:
        del layer.weight_rows, layer.bias_rows
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        for rows, tensors in work:
            rows(*tensors)
        times.append(time.process_time() - begin)
    return statistics.median(times)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    model = build(arguments.model, classes=10, input_shape=(3, arguments.size, arguments.size))
    model = model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size, generator=generator)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(10, (arguments.batch,), generator=generator)

    def run() -> None:
        train_step(model, optimizer, images, labels)

    draws = [
        TimedSampledGradients(
            model, fraction=arguments.fraction, group=arguments.group, seed=seed, exclude=arguments.exclude
        )
        for seed in range(arguments.draws)
    ]
    plain: list[float] = []
    longer: list[list[float]] = [[] for _ in draws]
    inside: list[list[float]] = [[] for _ in draws]
    for pair in range(-arguments.warm_up, arguments.pairs):
        for number, sampled in enumerate(draws):
            without = cpu_seconds(run)
            sampled.start()
            sampled.seconds = 0.0
            begin = time.process_time()
            run()
            sampled.take()
            with_collection = time.process_time() - begin
            sampled.stop()
            if pair >= 0:
                plain.append(without)
                longer[number].append(with_collection - without)
                inside[number].append(sampled.seconds)
    step = statistics.median(plain)
    of_draws = {
        "alone": [alone(sampled, run) for sampled in draws],
        "in_hooks": [statistics.median(times) for times in inside],
        "with_minus_without": [statistics.median(times) for times in longer],
    }
    return {
        "model": arguments.model,
        "batch": arguments.batch,
        "size": arguments.size,
        "group": arguments.group,
        "coordinates": len(draws[0]),
        "layers": [len(sampled._layers) for sampled in draws],
        "pairs": arguments.pairs,
        "step_seconds": step,
        "share_of_step": {name: [value / step for value in values] for name, values in of_draws.items()},
        "torch": torch.__version__,
    }


def cpu_seconds(run: Callable[[], None]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32", help="a network known to budgeted.models")
    parser.add_argument("--batch", type=int, default=16, help="samples in a batch")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--fraction", type=float, default=0.0005, help="sampled fraction of the parameters")
    parser.add_argument("--group", type=int, default=16, help="coordinates drawn together")
    parser.add_argument("--draws", type=int, default=8, help="draws of the coordinates")
    parser.add_argument("--exclude", nargs="*", default=["head"], help="modules left out")
    parser.add_argument("--pairs", type=int, default=20, help="measured pairs of steps for each draw")
    parser.add_argument("--warm-up", type=int, default=5, help="pairs run before measuring")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    result = measure(arguments)
    print(f"{result['model']}, batch {result['batch']}, {result['size']} px", end=", ")
    print(f"{result['coordinates']} coordinates in groups of {result['group']}, {arguments.draws} draws")
    print(f"step without collection: {1e3 * result['step_seconds']:.2f} ms; a draw meets", end=" ")
    print(f"{min(result['layers'])} to {max(result['layers'])} layers")
    for name, shares in result["share_of_step"].items():
        print(f"{name.replace('_', ' '):20} {100 * statistics.mean(shares):5.2f} %", end=" ")
        print(f"of the step ({100 * min(shares):.2f} to {100 * max(shares):.2f})")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": environment(1, "cpu"), **result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
