"""Execute a run, or go on with one: the stream through the learner, evaluations into the folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from budgeted import streams
from budgeted.budget import NOTHING, Cost, Rule, peak_memory
from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.events import Listener
from budgeted.learner.files import disk_errors
from budgeted.learner.learner import Learner
from budgeted.models.llava_base import base_missing
from budgeted.problems import Classification
from budgeted.problems.llava_base import make_base
from budgeted.runs.beside import MOST_ASKED, Answer, Beside, answer
from budgeted.runs.config import RunConfig, refuse_other_config
from budgeted.runs.content import content_of, refuse_other_content
from budgeted.runs.environment import alike, available, environment, refuse_other
from budgeted.runs.folder import CONFIG, ENVIRONMENT, SUMMARY, RunFolder, write_summary
from budgeted.runs.knowledge import Knowledge, knowledge
from budgeted.runs.metrics import Evaluation, UndefinedMetric, a_auc, domain_metrics, f_last
from budgeted.runs.plan import Planner, boundaries_of
from budgeted.runs.records import records_digest
from budgeted.runs.tested import TestData

log = logging.getLogger("budgeted")
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
    evaluated: bool = True
    """whether there was an evaluation yet"""


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Asked:
    """An evaluation that is under way."""

    record: dict[str, Any]
    """all but what the answer will say"""
    moment: bool
    """whether knowledge is compared here with that of the moment before"""
    classes: list[Any]
    """that had been seen"""


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
            self.tested = TestData.of(config, self.dataset)
            self.content = content_of(self.dataset, self.stream, self.tested.given, self.tested.labels)
        self._beside: Beside | None = None
        self._asked: list[Asked] = []  # evaluations that are under way
        self.position = 0  # samples that have arrived: those learned from, and the bad ones that were passed over
        self.bad = 0
        self.first_bad: list[str] = []
        self.wait_seconds = 0.0
        self.learner = self._build_learner()
        self._planned = self._plan()  # slots may be given up later, when classes come that were not declared
        self.records: list[dict[str, Any]] = []
        self.moments = sorted({*boundaries_of(self.stream), len(self.stream)} - {0})
        self.accuracies: list[float] = []
        self._evaluated = 0  # samples that had arrived at the latest evaluation
        self.previous: dict[str, list[int]] | None = None  # predictions and classes at the last moment
        self.train_seconds = self.eval_seconds = self.train_cpu_seconds = 0.0
        self.eval_cost = NOTHING  # of evaluations: nobody pays for it
        self.codec_seconds = {"decode": 0.0, "encode": 0.0}
        self.sittings = 1
        self.executed: int | None = None  # steps that the checkpoint knows to have been executed
        self.checkpoint_every = config.checkpoint_every or max(1, len(self.stream) // 50)
        folder.keep = (config.keep_checkpoints, len(self.stream))

    def _build_learner(self) -> Learner:
        _make_base(self.config.network)
        config = self.config
        slots = None if config.unlimited else config.slots or (1 if config.memory else DEFAULT_SLOTS)
        planner = Planner.of_run(config, self.dataset.info, len(self.stream))
        rule: Rule = "paper" if config.byte_rule == "paper" else "real"
        terms = planner.terms(config.budget(), slots, config.iterations, rule, spends=config.spend_savings)
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
        counted = [record for record in self.records if record["periodic"] and sum(record["total"])]
        self.accuracies = [float(record["accuracy"]) for record in counted]
        self._evaluated = int(self.records[-1]["samples"]) if self.records else 0
        self.previous = numbers["previous"]
        self.train_seconds, self.eval_seconds = float(numbers["train_seconds"]), float(numbers["eval_seconds"])
        self.eval_cost = Cost(*numbers["eval_cost"])
        self.train_cpu_seconds = float(numbers.get("train_cpu_seconds", 0.0))
        self.codec_seconds = dict(numbers.get("codec_seconds", self.codec_seconds))
        self.position = int(numbers.get("position", self.learner.arrived))
        self.bad, self.first_bad = numbers.get("bad", (0, []))
        self.wait_seconds = float(numbers.get("wait_seconds", 0.0))
        self.sittings = int(numbers["sittings"]) + 1
        self.executed = numbers["executed"]
        self.environments = known if alike(known[-1], self.environments[0]) else [*known, self.environments[0]]
        self.folder.drop_old_checkpoints()  # a kill may have come between writing one and dropping one

    def execute(self, report: Report | None = None, listeners: Sequence[Listener] = ()) -> dict[str, Any]:
        """Drive the stream to its end; answers with the summary, which is also written."""
        for listener in listeners:
            self.learner.events.listen(listener)
        self.counter = self.folder.step_counter(self.config.to_json(), self.executed)
        try:
            with streams.arriving(
                self.dataset,
                self.stream.from_sample(self.position),
                threads=self.config.decode_threads,
                skip_bad=self.config.skip_bad,
            ) as samples:
                if self._evaluates_beside():
                    self._beside = Beside(self.config, len(self.stream))
                return self._execute(samples, report)
        finally:
            self.counter.close()
            if self._beside is not None:
                self._beside.close()

    def _evaluates_beside(self) -> bool:
        return self.config.eval_beside

    def _execute(self, samples: streams.Arriving, report: Report | None) -> dict[str, Any]:
        self._counted = self.learner.steps
        started = time.perf_counter()
        stopping = self.learner.settings.learner.on_spent == "stop"
        # a run that stops early would end with a sample that has not arrived
        self.learner.meanwhile.on = self.config.decode_threads > 0 and not stopping
        waited = self.wait_seconds
        for sample in samples:
            if self.learner.spent_up and stopping:
                break  # also where a resumed run had stopped already
            self.wait_seconds = waited + samples.waited
            with self._training():
                if isinstance(sample, streams.Bad):
                    self._pass_over(sample)
                else:
                    self.learner.learn(*sample, then=self._then(samples))
                arrived = self.position = self.position + 1
                if arrived == len(self.stream):
                    self.learner.flush()
            self._count()
            if arrived % self.config.eval_every == 0 or arrived == len(self.stream) or arrived in self.moments:
                self._evaluate(arrived)
            if arrived in self.moments and arrived < len(self.stream) and self.learner.boundaries:
                with self._training():
                    self.learner.end_task()
            self._count()
            self._take_answers()
            if report is not None:
                report(self._progress(arrived, time.perf_counter() - started))
            if arrived % self.checkpoint_every == 0 or arrived == len(self.stream):
                self._checkpoint()
        if self._evaluated != self.position:
            self._evaluate(self.position, last=True)
            self._count()
        self._take_answers(all_of_them=True)
        return write_summary(self.folder.path / SUMMARY, self._summary())

    def _then(self, samples: streams.Arriving) -> tuple[Any, Any] | None:
        """The sample after this one, if it is at hand and nothing but learning comes between."""
        arrived = self.position + 1
        between = arrived in self.moments or not (arrived % self.config.eval_every and arrived % self.checkpoint_every)
        return samples.at_hand() if self.learner.meanwhile.on and not between else None

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Counts the time of what is done inside: on the clock, and of this process alone."""
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        self.train_seconds += time.perf_counter() - clock
        self.train_cpu_seconds += time.process_time() - cpu

    def _count(self) -> None:
        self.counter.add(self.learner.steps - self._counted)
        self._counted = self.learner.steps

    def _pass_over(self, sample: streams.Bad) -> None:
        """A bad sample, where the user allows that; counted, and the first few are named in the summary."""
        self.bad += 1
        if len(self.first_bad) < NAMED_BAD:
            self.first_bad = [*self.first_bad, sample.reason]
        self.learner.events.tell("refused", why=sample.reason)

    def _evaluate(self, arrived: int, last: bool = False) -> None:
        """Evaluate here, or ask the process beside; what the record says of training is of this moment."""
        learner = self.learner
        with self._training():
            learner.before_prediction()
        self._evaluated = arrived
        moment = arrived in self.moments
        if isinstance(learner.problem, Classification):
            images = len(self.tested.labels) if moment else self.tested.seen(learner.class_labels)
            self.eval_cost += learner.network.price_of(images * (1 + learner.problem.mirrored))
        record: dict[str, Any] = {
            "samples": arrived,
            "steps": learner.steps,
            "periodic": last or arrived % self.config.eval_every == 0 or arrived == len(self.stream),
            "accuracy": 0.0,
            "correct": [],
            "total": [],
            "loss": None if learner.last is None else learner.last.loss,
            "spent": {"paper": learner.ledger.spent.paper, "real": learner.ledger.spent.real},
            "spent_on": {name: [cost.paper, cost.real] for name, cost in learner.ledger.spent_on.items()},
            "frozen_share": learner.mean_frozen_share,
            "frozen_steps": list(learner.frozen_counts),
            "stored": len(learner.memory),
            "slots": learner.memory.capacity,
            "bytes": learner.nbytes(),
            "knowledge": None,
            "environment": len(self.environments) - 1,
            "seconds": {"train": self.train_seconds, "eval": 0.0},
        }
        asked = Asked(record, moment, list(learner.class_labels))
        if self._beside is None:
            self._complete(asked, answer(learner, self.tested, self.config, moment))
            return
        self._asked.append(asked)
        self._beside.ask(learner, moment)
        while len(self._asked) > MOST_ASKED:
            self._complete(self._asked.pop(0), self._beside.take())

    def _take_answers(self, all_of_them: bool = False) -> None:
        """Complete the records of evaluations that are done; `all_of_them` waits for those that are not."""
        while self._beside is not None and self._asked and (all_of_them or self._beside.ready()):
            self._complete(self._asked.pop(0), self._beside.take())

    def _complete(self, asked: Asked, found: Answer) -> None:
        """The record of an evaluation whose answer is there; they come in the order of the stream."""
        record, score = asked.record, found.score
        self.eval_seconds += found.seconds
        record |= {"accuracy": score.accuracy, "correct": list(score.correct), "total": list(score.total)}
        if score.beside:
            record["beside"] = dict(score.beside)
        record["seconds"]["eval"] = self.eval_seconds
        if asked.moment and found.predicted is not None:
            record["knowledge"] = self._moment(found.predicted, asked.classes)
            if self.tested.domains is not None:
                record["by_domain"] = self._by_domain(found.predicted, asked)
        self.folder.records.append(record)
        self.records.append(record)
        if record["periodic"] and sum(score.total):  # without test images of what was seen it counts for nothing
            self.accuracies.append(score.accuracy)
        so_far = {"a_auc": self._mean_accuracy()} if self.accuracies else {}  # none yet is not 0
        self.learner.events.tell("evaluation", accuracy=score.accuracy, **so_far)

    def _by_domain(self, predicted: NDArray[np.int64], asked: Asked) -> dict[str, Any]:
        """How many test images of each domain are right, of the classes seen; and the domain that has just ended."""
        assert self.tested.domains is not None
        seen = np.isin(self.tested.labels, asked.classes)
        right, count = (predicted == self.tested.labels) & seen, len(self.dataset.domain_names) or 1
        now = self.dataset.train_domains
        return {
            "domain": None if now is None else int(now[self.stream[asked.record["samples"] - 1]]),
            "correct": np.bincount(self.tested.domains[right], minlength=count).tolist(),
            "total": np.bincount(self.tested.domains[seen], minlength=count).tolist(),
        }

    def _moment(self, predicted: NDArray[np.int64], classes: list[Any]) -> dict[str, float | None] | None:
        """Knowledge lost and gained since the last moment."""
        found: Knowledge | None = None
        if self.previous is not None and self.previous["classes"] and self.dataset.classes > 1:  # else there is none
            found = knowledge(
                self.tested.labels,
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
        self._take_answers(all_of_them=True)
        self.counter.sync()
        self.folder.write_checkpoint(self.learner, self.numbers())
        self.learner.events.tell("checkpoint", position=self.position)

    def numbers(self) -> dict[str, Any]:
        """What a checkpoint holds besides the learner."""
        return {
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
            "train_cpu_seconds": self.train_cpu_seconds,
            "eval_seconds": self.eval_seconds,
            "eval_cost": (self.eval_cost.paper, self.eval_cost.real),
            "codec_seconds": self._codec_seconds(),
            "sittings": self.sittings,
        }

    def _progress(self, arrived: int, seconds: float) -> Progress:
        latest = self.accuracies[-1] if self.accuracies else 0.0
        return Progress(
            arrived, len(self.stream), latest, self._mean_accuracy(), self.learner, seconds, bool(self.accuracies)
        )

    def _mean_accuracy(self) -> float:
        return float(np.mean(self.accuracies)) if self.accuracies else 0.0

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
            "skipped_test": len(self.tested.bad),
            "skipped_test_first": list(self.tested.bad[:NAMED_BAD]),
            "classes": list(self.dataset.class_names),
            "frozen_share": learner.mean_frozen_share,
            "frozen_steps": list(learner.frozen_counts),
            "blocks": [block.name for block in learner.freezing.chain.blocks],
            "train_seconds": self.train_seconds,
            "eval_seconds": self.eval_seconds,
            "eval_compute": {"paper": self.eval_cost.paper, "real": self.eval_cost.real},
            "codec_seconds": self._codec_seconds(),
            "train_cpu_seconds": self.train_cpu_seconds,
            "wait_seconds": self.wait_seconds,
            "peak_memory": peak_memory(),
            **_base_of(learner.model),
            "weights_sha256": state.weights_digest(learner),
            "records_sha256": records_digest(self.records),
            "data": self.content,
            "environments": self.environments,
            "seed": self.config.seed,
            "config": self.config.to_json(),
        }


def _base_of(model: nn.Module) -> dict[str, Any]:
    """What a model starts from, where it was pretrained here: that cost is no part of the run's."""
    made = getattr(model, "made", None)
    return {} if made is None else {"base": made}


def _make_base(model: str) -> None:
    """What a model starts from, where that has to be pretrained first and nobody did so yet."""
    if base_missing(model):
        log.warning("%s: pretraining its base once, about a minute of one core", model)
        make_base()


def summarise(records: list[dict[str, Any]], moments: list[int]) -> dict[str, Any]:
    """The metrics of a run, from its records alone."""
    evaluations = [
        Evaluation(record["samples"], record["correct"], record["total"]) for record in records if sum(record["total"])
    ]
    if records and not evaluations:
        raise UndefinedMetric("no class that was learned has test images, so there is no accuracy: give some of them")
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


def start(
    config: RunConfig, path: Path, report: Report | None = None, listeners: Sequence[Listener] = ()
) -> dict[str, Any]:
    """Begin a run in a new folder; listeners are told what happens in it."""
    folder, fresh = RunFolder(path), not path.exists()
    with disk_errors(path, _go_on(path)), folder.locked():
        try:
            folder.refuse_another()
            config = config.with_sources().with_usual()
            here = environment(config.threads, config.device)
            run = Run(config, folder, here)
        except BaseException:
            if fresh:  # a mistake in the configuration leaves nothing behind
                folder.vanish()
            raise
        folder.begin(config.to_json(), here)
        return run.execute(report, listeners)


def resume(
    path: Path,
    report: Report | None = None,
    listeners: Sequence[Listener] = (),
    *,
    accept_other_arithmetic: bool = False,
) -> dict[str, Any]:
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
            return run.execute(report, listeners)


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
