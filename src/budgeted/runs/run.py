"""Execute a run, or go on with one: the stream through the learner, evaluations into the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgeted import streams
from budgeted.budget import Rule, peak_memory
from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.evaluate import as_tensor, evaluate, fixed_subset
from budgeted.learner.files import disk_errors
from budgeted.learner.learner import Learner
from budgeted.runs.config import RunConfig, refuse_other_config
from budgeted.runs.content import content_of, refuse_other_content
from budgeted.runs.environment import alike, available, environment, refuse_other
from budgeted.runs.folder import CONFIG, ENVIRONMENT, SUMMARY, RunFolder, write_summary
from budgeted.runs.knowledge import Knowledge, knowledge
from budgeted.runs.metrics import Evaluation, UndefinedMetric, a_auc, domain_metrics, f_last
from budgeted.runs.plan import Planner, boundaries_of
from budgeted.runs.records import records_digest

DEFAULT_SLOTS = 200
NAMED_BAD = 20
"""bad samples that a summary names; it counts them all"""


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever shows it."""

    samples: int
    of_samples: int
    accuracy: float
    a_auc: float
    learner: Learner
    seconds: float


Report = Callable[[Progress], None]


class Run:
    """One sitting of a run: built anew or from the newest checkpoint, then driven to the stream's end."""

    def __init__(self, config: RunConfig, folder: RunFolder, here: dict[str, Any]) -> None:
        self.config = config
        self.folder = folder
        self.environments = [here]  # of every sitting whose arithmetic is in the bits, in order
        torch.set_num_threads(config.threads)
        with _data_errors(config.dataset):
            self.dataset = config.load_data()
            self.stream = streams.stream_of(self.dataset, config.stream, config.seed, limit=config.limit)
            chosen = fixed_subset(self.dataset.test_labels, config.eval_samples)
            test_images, chosen = streams.held(self.dataset.test_images, chosen, config.skip_bad)
            self.test_images: Tensor | streams.Images = (
                as_tensor(test_images) if isinstance(test_images, np.ndarray) else test_images
            )
            self.test_labels: NDArray[np.int64] = self.dataset.test_labels[chosen]
            self.content = content_of(self.dataset, self.stream, test_images, self.test_labels)
        self.test_domains = None if self.dataset.test_domains is None else self.dataset.test_domains[chosen]
        self.position = 0  # samples that have arrived: those learned from, and the bad ones that were passed over
        self.bad = 0
        self.first_bad: list[str] = []
        self.wait_seconds = 0.0
        self.learner = self._build_learner()
        self._planned = self._plan()  # slots may be given up later, when classes come that were not declared
        self.records: list[dict[str, Any]] = []
        self.moments = sorted({*boundaries_of(self.stream), len(self.stream)} - {0})
        self.accuracies: list[float] = []
        self.previous: dict[str, list[int]] | None = None  # predictions and classes at the last moment
        self.train_seconds = self.eval_seconds = 0.0
        self.codec_seconds = {"decode": 0.0, "encode": 0.0}
        self.sittings = 1
        self.executed: int | None = None  # steps that the checkpoint knows to have been executed
        self.checkpoint_every = config.checkpoint_every or max(1, len(self.stream) // 50)

    def _build_learner(self) -> Learner:
        config, info = self.config, self.dataset.info
        method, settings, budget = config.build_method(), config.build_settings(info.flips), config.budget()
        slots = None if config.unlimited else config.slots or (1 if config.memory else DEFAULT_SLOTS)
        planner = Planner(
            method, info, config.network, settings=settings, samples=len(self.stream), order=config.stream,
            eval_every=config.eval_every, seed=config.seed, device=config.device, problem=config.problem,
        )  # fmt: skip
        rule: Rule = "paper" if config.byte_rule == "paper" else "real"
        terms = planner.terms(budget, slots, config.iterations, rule, spends=config.spend_savings)
        return planner.learner(
            slots=terms.slots, iterations=terms.iterations, budget=terms.budget, spending=terms.spending,
            spend_savings=config.spend_savings,
        )  # fmt: skip

    def _codec_seconds(self) -> dict[str, float]:
        """Of decoding and encoding, over all sittings."""
        decoding, encoding = self.learner.memory.take_codec_seconds()
        self.codec_seconds["decode"] += decoding
        self.codec_seconds["encode"] += encoding
        return dict(self.codec_seconds)

    # -- the run -------------------------------------------------------------------------------------------------

    def resume(self, tensors: dict[str, Any], numbers: dict[str, Any]) -> None:
        """Take up a checkpoint; refused, with what differs, if it is not of this very run."""
        refuse_other_config(numbers.get("config"), self.config.to_json(), self.folder.path / CONFIG)
        refuse_other_content(numbers["data"], self.content)
        if numbers.get("stream") != self.stream.fingerprint():
            raise BudgetedError(
                "the checkpoint was made on another stream (other data or another order): restore the data set"
            )
        if numbers.get("plan", self._planned) != self._planned:
            raise BudgetedError(
                "the checkpoint was made with other iterations than this version derives from the budget: go on with "
                "the version that began the run, or begin it anew"
            )
        known = sittings_of(numbers, self.folder)
        state.restore(self.learner, tensors, numbers)
        self.records = self.folder.records.take_up(numbers["records"])
        self.accuracies = [float(record["accuracy"]) for record in self.records if record["periodic"]]
        self.previous = numbers["previous"]
        self.train_seconds, self.eval_seconds = float(numbers["train_seconds"]), float(numbers["eval_seconds"])
        self.codec_seconds = dict(numbers.get("codec_seconds", self.codec_seconds))
        self.position = int(numbers.get("position", self.learner.arrived))
        self.bad, self.first_bad = numbers.get("bad", (0, []))
        self.wait_seconds = float(numbers.get("wait_seconds", 0.0))
        self.sittings = int(numbers["sittings"]) + 1
        self.executed = numbers["executed"]
        self.environments = known if alike(known[-1], self.environments[0]) else [*known, self.environments[0]]
        self.folder.drop_old_checkpoints()  # a kill may have come between writing one and dropping one

    def execute(self, report: Report | None = None) -> dict[str, Any]:
        """Drive the stream to its end; answers with the summary, which is also written."""
        self.counter = self.folder.step_counter(self.config.to_json(), self.executed)
        try:
            with streams.arriving(
                self.dataset,
                self.stream.from_sample(self.position),
                threads=self.config.decode_threads,
                skip_bad=self.config.skip_bad,
            ) as samples:
                return self._execute(samples, report)
        finally:
            self.counter.close()

    def _execute(self, samples: streams.Arriving, report: Report | None) -> dict[str, Any]:
        self._counted = self.learner.steps
        started = time.perf_counter()
        stopping = self.learner.settings.learner.on_spent == "stop"
        waited = self.wait_seconds
        for sample in samples:
            if self.learner.spent_up and stopping:
                break  # also where a resumed run had stopped already
            self.wait_seconds = waited + samples.waited
            start = time.perf_counter()
            if isinstance(sample, streams.Bad):
                self._pass_over(sample)
            else:
                self.learner.learn(*sample)
            arrived = self.position = self.position + 1
            if arrived == len(self.stream):
                self.learner.flush()
            self.train_seconds += time.perf_counter() - start
            self._count()
            if arrived % self.config.eval_every == 0 or arrived == len(self.stream) or arrived in self.moments:
                self._evaluate(arrived)
            if arrived in self.moments and arrived < len(self.stream) and self.learner.boundaries:
                start = time.perf_counter()
                self.learner.end_task()
                self.train_seconds += time.perf_counter() - start
            self._count()
            if report is not None:
                report(self._progress(arrived, time.perf_counter() - started))
            if arrived % self.checkpoint_every == 0 or arrived == len(self.stream):
                self._checkpoint()
        if not self.records or self.records[-1]["samples"] != self.position:
            self._evaluate(self.position, last=True)
            self._count()
        return write_summary(self.folder.path / SUMMARY, self._summary())

    def _count(self) -> None:
        self.counter.add(self.learner.steps - self._counted)
        self._counted = self.learner.steps

    def _pass_over(self, sample: streams.Bad) -> None:
        """A bad sample, where the user allows that; counted, and the first few are named in the summary."""
        self.bad += 1
        if len(self.first_bad) < NAMED_BAD:
            self.first_bad = [*self.first_bad, sample.reason]

    def _evaluate(self, arrived: int, last: bool = False) -> None:
        start = time.perf_counter()
        self.learner.before_prediction()
        self.train_seconds += time.perf_counter() - start
        start = time.perf_counter()
        score, predicted = evaluate(self.learner, self.test_images, self.test_labels, self.dataset.classes)
        moment = self._moment(predicted) if predicted is not None and arrived in self.moments else None
        self.eval_seconds += time.perf_counter() - start
        periodic = last or arrived % self.config.eval_every == 0 or arrived == len(self.stream)
        learner = self.learner
        record: dict[str, Any] = {
            "samples": arrived,
            "steps": learner.steps,
            "periodic": periodic,
            "accuracy": score.accuracy,
            "correct": list(score.correct),
            "total": list(score.total),
            "loss": None if learner.last is None else learner.last.loss,
            "spent": {"paper": learner.ledger.spent.paper, "real": learner.ledger.spent.real},
            "spent_on": {name: [cost.paper, cost.real] for name, cost in learner.ledger.spent_on.items()},
            "frozen_share": learner.mean_frozen_share,
            "frozen_steps": list(learner.frozen_counts),
            "stored": len(learner.memory),
            "slots": learner.memory.capacity,
            "bytes": learner.nbytes(),
            "knowledge": moment,
            "environment": len(self.environments) - 1,
            "seconds": {"train": self.train_seconds, "eval": self.eval_seconds},
        }
        if self.test_domains is not None and predicted is not None and arrived in self.moments:
            record["by_domain"] = self._by_domain(predicted, arrived)
        self.folder.records.append(record)
        self.records.append(record)
        if periodic:
            self.accuracies.append(score.accuracy)

    def _by_domain(self, predicted: NDArray[np.int64], arrived: int) -> dict[str, Any]:
        """How many test images of each domain are right, of the classes seen; and the domain that has just ended."""
        assert self.test_domains is not None
        seen = np.isin(self.test_labels, self.learner.class_labels)
        right, count = (predicted == self.test_labels) & seen, len(self.dataset.domain_names) or 1
        now = self.dataset.train_domains
        return {
            "domain": None if now is None else int(now[self.stream[arrived - 1]]),
            "correct": np.bincount(self.test_domains[right], minlength=count).tolist(),
            "total": np.bincount(self.test_domains[seen], minlength=count).tolist(),
        }

    def _moment(self, predicted: NDArray[np.int64]) -> dict[str, float | None] | None:
        """Knowledge lost and gained since the last moment."""
        classes = list(self.learner.class_labels)
        found: Knowledge | None = None
        if self.previous is not None:
            found = knowledge(
                self.test_labels,
                self.previous["predicted"],
                predicted,
                self.previous["classes"],
                classes,
                self.dataset.classes,
            )
        self.previous = {"predicted": predicted.tolist(), "classes": classes}
        if found is None:
            return None
        return {"klr": found.klr, "kgr": found.kgr, "loss": found.loss, "gain": found.gain, "previous": found.previous}

    def _plan(self) -> list[float | int | None]:
        """What was derived from the budget, and must be the same in all sittings."""
        compute = self.learner.budget.compute
        return [self.learner.iterations, self.learner.memory.capacity, None if compute is None else compute.amount]

    def _checkpoint(self) -> None:
        self.counter.sync()
        self.folder.write_checkpoint(
            self.learner,
            {
                "config": self.config.to_json(),
                "data": self.content,
                "stream": self.stream.fingerprint(),
                "plan": self._planned,
                "records": self.folder.records.state(),
                "executed": self.counter.count,
                "previous": self.previous,
                "environments": self.environments,
                "position": self.position,
                "bad": (self.bad, self.first_bad),
                "wait_seconds": self.wait_seconds,
                "train_seconds": self.train_seconds,
                "codec_seconds": self._codec_seconds(),
                "eval_seconds": self.eval_seconds,
                "sittings": self.sittings,
            },
        )

    def _progress(self, arrived: int, seconds: float) -> Progress:
        latest = self.accuracies[-1] if self.accuracies else 0.0
        mean = float(np.mean(self.accuracies)) if self.accuracies else 0.0
        return Progress(arrived, len(self.stream), latest, mean, self.learner, seconds)

    def _summary(self) -> dict[str, Any]:
        learner = self.learner
        return {
            **summarise(self.records, self.moments),
            "method": self.config.method,
            "spent": {"paper": learner.ledger.spent.paper, "real": learner.ledger.spent.real},
            "spent_on": {name: [cost.paper, cost.real] for name, cost in learner.ledger.spent_on.items()},
            "budget": None if learner.budget.compute is None else str(learner.budget.compute),
            "budget_spent": learner.spent_up,
            "bytes": learner.nbytes(),
            "bytes_by_item": learner.nbytes_by_item(),
            "working_bytes": learner.working_nbytes(),
            "slots": learner.memory.capacity,
            "stored": len(learner.memory),
            "iterations": learner.steps,
            "iterations_per_sample": learner.iterations,
            "executed_steps": self.counter.count,
            "sittings": self.sittings,
            "samples": learner.arrived,
            "skipped": self.bad,
            "skipped_first": self.first_bad,
            "classes": list(self.dataset.class_names),
            "frozen_share": learner.mean_frozen_share,
            "frozen_steps": list(learner.frozen_counts),
            "blocks": [block.name for block in learner.freezing.chain.blocks],
            "train_seconds": self.train_seconds,
            "eval_seconds": self.eval_seconds,
            "codec_seconds": self._codec_seconds(),
            "wait_seconds": self.wait_seconds,
            "peak_memory": peak_memory(),
            "weights_sha256": state.weights_digest(learner),
            "records_sha256": records_digest(self.records),
            "data": self.content,
            "environments": self.environments,
            "seed": self.config.seed,
            "config": self.config.to_json(),
        }


def summarise(records: list[dict[str, Any]], moments: list[int]) -> dict[str, Any]:
    """The metrics of a run, from its records alone."""
    evaluations = [
        Evaluation(record["samples"], record["correct"], record["total"]) for record in records if sum(record["total"])
    ]
    periodic = {record["samples"] for record in records if record["periodic"]}
    try:
        forgetting: float | None = f_last(evaluations, moments)
    except UndefinedMetric:
        forgetting = None
    intervals = [record["knowledge"] for record in records if record["knowledge"] is not None]
    means = {
        name: float(np.mean([interval[name] for interval in intervals if interval[name] is not None]))
        if any(interval[name] is not None for interval in intervals)
        else None
        for name in ("klr", "kgr")
    }
    domains = [record["by_domain"] for record in records if record.get("by_domain")]
    return {
        **({"domains": domain_metrics(domains)} if domains else {}),
        "a_auc": a_auc([evaluation for evaluation in evaluations if evaluation.samples in periodic]),
        "a_last": evaluations[-1].accuracy,
        "f_last": forgetting,
        **means,
    }


def start(config: RunConfig, path: Path, report: Report | None = None) -> dict[str, Any]:
    """Begin a run in a new folder."""
    folder = RunFolder(path)
    with disk_errors(path, _go_on(path)), folder.locked():
        folder.refuse_another()
        config = config.with_sources()
        here = environment(config.threads, config.device)
        run = Run(config, folder, here)  # a mistake in the configuration leaves no folder that looks like a run
        folder.begin(config.to_json(), here)
        return run.execute(report)


def resume(path: Path, report: Report | None = None, *, accept_other_arithmetic: bool = False) -> dict[str, Any]:
    """Go on with a run; one that is complete answers with its summary, and nothing is written.

    accept_other_arithmetic: go on where sums come out otherwise than where the run was begun; it will say so.
    """
    folder = RunFolder(path)
    if not path.is_dir():
        raise BudgetedError(f"{path} is no folder: give the folder of a run")
    if not os.path.lexists(path / CONFIG):
        raise BudgetedError(f"{path} is no run folder: it has no {CONFIG}")
    with disk_errors(path, _go_on(path)):
        config = RunConfig.from_mapping(folder.config(), str(path / CONFIG))
        done = folder.summary()
        if done is not None:
            refuse_other_config(done["config"], config.to_json(), path / CONFIG)
            return done
        with folder.locked():
            config.refuse_other_sources()
            if not available(config.device):
                raise BudgetedError(f"the run was begun on {config.device}, which is not here: resume it where it is")
            here = environment(config.threads, config.device)
            folder.refuse_odd_files()
            found = folder.read_checkpoint()
            if found is not None and not accept_other_arithmetic:
                refuse_other(sittings_of(found[1], folder)[-1], here)
            run = Run(config, folder, here)
            if found is None:  # nothing was kept: it begins anew, and its bits are this machine's
                folder.step_counter(config.to_json(), None).close()  # refuses that of another run
                folder.records.begin()
                folder.write_environment(here)
            else:
                run.resume(*found)
            return run.execute(report)


def _go_on(path: Path) -> str:
    return f"`budgeted run --resume {path}`"


def sittings_of(numbers: dict[str, Any], folder: RunFolder) -> list[dict[str, Any]]:
    """The environments that a checkpoint's bits come from; the run's own if it was written before they were kept."""
    begun = folder.environment()
    found: list[dict[str, Any]] = numbers.get("environments", [begun])
    if found[0] != begun:
        raise BudgetedError(f"{folder.path / ENVIRONMENT} is not the one that the checkpoint was made with: restore it")
    return found


@contextmanager
def _data_errors(dataset: str) -> Iterator[None]:
    """What cannot be read of the data is no fault of the run's folder."""
    try:
        yield
    except OSError as error:
        where = dataset if error.filename is None else error.filename
        raise BudgetedError(
            f"cannot read the data of {dataset}: {where}: {error.strerror or error}: check that it may be read"
        ) from error
