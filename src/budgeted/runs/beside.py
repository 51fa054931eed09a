"""Evaluations in a process of their own, while training goes on: the same answers as in place, bit for bit.

The run hands over what predictions are made from (weights, statistics, what the method keeps) and goes on; the process
answers in the order of asking. At most `MOST_ASKED` evaluations wait, each with a copy of the weights, then the run
does. Whoever is left alone ends: the process with the run, whose pipe is its lifeline, and the run in one line if the
process is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner.evaluate import Score, evaluate
from budgeted.learner.learner import Learner
from budgeted.learner.state import answering_state, restore_answers
from budgeted.runs.config import RunConfig
from budgeted.runs.plan import Planner
from budgeted.runs.tested import TestData

MOST_ASKED = 4
_Message: TypeAlias = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Answer:
    """What an evaluation found."""

    score: Score
    predicted: NDArray[np.int64] | None
    seconds: float
    """of processor time"""


def answer(learner: Learner, data: TestData, config: RunConfig, everything: bool) -> Answer:
    """Evaluate, here and now. `everything`: predictions for images of classes not seen yet are wanted, too."""
    start = time.process_time()
    score, predicted = evaluate(
        learner, data.images, data.labels, data.classes, config.eval_precision,
        folded=config.eval_folded, everything=everything,
    )  # fmt: skip
    return Answer(score, predicted, time.process_time() - start)


class Beside:
    """The run's end of the pipe."""

    def __init__(self, config: RunConfig, samples: int) -> None:
        """samples: length of the stream."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "budgeted.runs.beside"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        # one thread writes and one reads: whoever waits for the other to read would wait for ever
        self._to_send: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()
        self._to_send.put(({"config": config.to_json(), "samples": samples}, {}))

    def ask(self, learner: Learner, everything: bool) -> None:
        """Evaluate the learner as it is now."""
        self._to_send.put(
            ({"class_labels": list(learner.class_labels), "everything": everything}, answering_state(learner))
        )

    def ready(self) -> bool:
        """Whether the next answer is there."""
        return not self._received.empty()

    def take(self) -> Answer:
        """The next answer, in the order of asking; waits for it."""
        received = self._received.get()
        if received is None:
            raise BudgetedError(
                "the process that evaluates has died (was it out of memory?): resume the run, or begin one without "
                "--eval-beside"
            )
        told, tensors = received
        predicted = tensors.get("predicted")
        return Answer(
            Score(tuple(told["correct"]), tuple(told["total"]), told["beside"]),
            None if predicted is None else predicted.numpy(),
            float(told["seconds"]),
        )

    def close(self) -> None:
        """End the process; what was asked and not answered is let go."""
        self._process.kill()
        self._process.wait()
        self._to_send.put(None)
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError), pipe:
            while (message := self._to_send.get()) is not None:
                _send(pipe, *message)

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        with contextlib.suppress(EOFError, OSError), pipe:
            while True:
                self._received.put(_receive(pipe))
        self._received.put(None)


def _send(pipe: IO[bytes], numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    told, content = json.dumps(numbers).encode(), save(tensors)
    pipe.write(struct.pack("<QQ", len(told), len(content)))
    pipe.write(told)
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> _Message:
    lengths = struct.unpack("<QQ", _read(pipe, 16))
    told, content = (_read(pipe, length) for length in lengths)
    return json.loads(told), load(content)


def _read(pipe: IO[bytes], length: int) -> bytes:
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError
    return content


# -- the process ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal it goes to both; the run decides
    given, answers = sys.stdin.buffer, os.dup(1)
    os.dup2(2, 1)  # whatever prints must not get between the answers
    with contextlib.suppress(EOFError, BrokenPipeError), os.fdopen(answers, "wb") as out:
        told, _ = _receive(given)
        config = RunConfig.from_mapping(told["config"], "the run")
        torch.set_num_threads(config.threads)
        data = TestData.of(config, config.load_data())
        learner = _learner(config, data, int(told["samples"]))
        while True:
            numbers, tensors = _receive(given)
            restore_answers(learner, tensors, numbers["class_labels"])
            found = answer(learner, data, config, numbers["everything"])
            predicted = {} if found.predicted is None else {"predicted": torch.from_numpy(found.predicted)}
            score = {**dataclasses.asdict(found.score), "seconds": found.seconds}
            _send(out, score, predicted)


def _learner(config: RunConfig, data: TestData, samples: int) -> Learner:
    """One like the run's, with an empty memory and no steps to run."""
    return Planner.of_run(config, data.info, samples).learner(iterations=0.0)


if __name__ == "__main__":
    main()
