"""A source that blocks, comes late and brings classes that nobody announced: the learner answers meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch

from budgeted.learner import Learner

PATIENCE = 60.0


def pictures(source: queue.Queue[tuple[torch.Tensor, str] | None]) -> Iterator[tuple[torch.Tensor, str]]:
    """Waits for each, for as long as it takes."""
    while (found := source.get()) is not None:
        yield found


def test_predictions_do_not_wait_for_a_source_that_blocks() -> None:
    source: queue.Queue[tuple[torch.Tensor, str] | None] = queue.Queue()
    learner = Learner("mlp", "vanilla", (1, 4, 4), slots=8, seed=1)
    learned = threading.Semaphore(0)

    def learn() -> None:
        for picture, word in pictures(source):
            learner.learn(picture, word)
            learned.release()

    thread = threading.Thread(target=learn, daemon=True)
    thread.start()
    dark, light = torch.zeros(1, 4, 4, dtype=torch.uint8), torch.full((1, 4, 4), 255, dtype=torch.uint8)
    for number in range(20):
        source.put((dark, "night"))
        assert learned.acquire(timeout=PATIENCE)
        assert learner.predict([light]) == ["night"], number  # the source blocks; only one class has come
    for _ in range(40):
        source.put((light, "day"))
        source.put((dark, "night"))
    for _ in range(80):
        assert learned.acquire(timeout=PATIENCE)
    assert learner.predict([light, dark]) == ["day", "night"]
    source.put(None)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert learner.arrived == 100
