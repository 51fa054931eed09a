"""The configuration of a run: what is typed, and what is written into the run's folder."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tyro.conf import Suppress

from budgeted.budget import RULES, Budget, parse_bytes, parse_compute
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner.evaluate import Precision
from budgeted.learner.settings import Settings, from_pairs, usual_with
from budgeted.methods import METHODS, Method
from budgeted.registry import file_digest, source_of
from budgeted.runs.keeping import NEWEST, refuse_bad_keep
from budgeted.streams import Dataset, load, order_names
from budgeted.streams.pixels import POLICIES
from budgeted.streams.registry import absolute_name

#: Numbers that no machine reaches, and that the libraries below us cannot hold.
MOST = 2**63
MOST_THREADS = 1024
MOST_BATCH = 10**7
MOST_ITERATIONS = 10**9
#: Bytes of a config file.
MOST_CONFIG = 2**20
CONFIG_SEAL = "config_sha256"
"""of a run's configuration, in its own file"""


@dataclass(frozen=True)
class RunConfig:
    """One run: a method on a stream within a budget."""

    method: str = "cram"
    """What learns: see `budgeted list methods` (cram is ours, al-sar the paper's); your own as FILE.py:NAME or
    package.module:NAME."""
    dataset: str = "digits"
    """What it learns from: a name of `budgeted list datasets`, folder:PATH, manifest:FILE, wds:PATTERN, hf:NAME, an
    .npz file, or FILE.py:NAME."""
    stream: str = "gaussian"
    """In which order samples arrive: gaussian, disjoint, blurry, domain or arrival (by time)."""
    model: str = ""
    """Which model: see `budgeted list models`, or FILE.py:NAME. If not given, resnet32; cnn8 for 8 x 8 digits,
    llava-tiny for drawn Bongard."""
    iterations: float | None = None
    """Training steps per sample (1 if no --compute is given)."""
    compute: str | None = None
    """Compute budget instead of --iterations: 171.94TMAC (rule paper) or 350TFLOP (rule real)."""
    slots: int | None = None
    """Places in the memory (200 if no --memory is given)."""
    memory: str | None = None
    """Byte budget instead of --slots: 7998016B, 7.6MB or 7.6MiB, for model, memory and all else that persists."""
    unlimited: bool = False
    """Store everything that arrives."""
    byte_rule: str = "real"
    """How --memory is counted: real (every byte that persists) or paper (as the paper's tables)."""
    batch_size: int = 16
    """Samples in a training batch."""
    freezing: str | None = None
    """Which blocks rest: see `budgeted list freezing`, or FILE.py:NAME. The method's own if not given."""
    retrieval: str | None = None
    """Which samples are replayed: see `budgeted list retrieval`, or FILE.py:NAME. The method's own if not given."""
    codec: str | None = None
    """What a slot of the memory holds: see `budgeted list codecs`, or FILE.py:NAME. The method's own if not given."""
    problem: str | None = None
    """What is learned, if not what the data set says (classes of images, mostly): see `budgeted list problems`, or
    FILE.py:NAME."""
    spend_savings: bool = False
    """Let compute that freezing saves buy more iterations, spread over the rest of the stream."""
    eval_every: int = 100
    """Samples between two evaluations."""
    eval_samples: int | None = None
    """Test images used in evaluations, the same number per class; all if not given."""
    eval_beside: bool = False
    """Evaluate in a process of its own while training goes on, on another core. No result depends on it."""
    eval_precision: Precision = "float32"
    """Of evaluations; bfloat16 is faster where the processor has it."""
    eval_folded: bool = False
    """Fold batch norm into the convolutions before it in evaluations: faster, most of all in bfloat16."""
    limit: int | None = None
    """Use just this many samples of the training set, balanced over classes, chosen by the seed."""
    data: str | None = None
    """Folder with the data sets; the user's cache folder if not given."""
    download: bool = False
    """Fetch the data set from its official address if it is not there."""
    size: int | None = None
    """Side in pixels to which pictures are resized; the data set's own if not given."""
    resize: str = "squash"
    """How a picture becomes a square: squash, or crop (its middle)."""
    test_share: float = 0.2
    """The share of each class that is set aside for testing, where the data have no test part."""
    skip_bad: bool = False
    """Pass over samples that cannot be read, and count them, instead of stopping at the first."""
    decode_threads: int = 1
    """Threads that decode the next samples while the learner works, and another for the next batch; 0 for none. No
    result depends on it."""
    threads: int = 1
    """Threads of torch; results repeat bit for bit under the same number only."""
    device: str = "cpu"
    """cpu or cuda."""
    seed: int = 1
    """Seed of the stream, the model and everything drawn."""
    checkpoint_every: int | None = None
    """Samples between two checkpoints; a fiftieth of the stream if not given."""
    keep_checkpoints: int | str = NEWEST
    """Checkpoints that stay on disk, spread over the stream: a number, or all; `budgeted verify` replays from them."""
    settings: Suppress[dict[str, str]] = field(default_factory=dict)
    """Any other setting, such as learner.learning_rate or retrieval.temperature."""
    usual: Suppress[dict[str, str]] = field(default_factory=dict)
    """What the method was usually run with when the run began: a later version of it may have other habits."""
    sources: Suppress[dict[str, str]] = field(default_factory=dict)
    """Digests of the user's own files that the parts come from, written when a run begins."""

    def __post_init__(self) -> None:
        if self.iterations is not None and self.compute is not None:
            raise BudgetedError("give --iterations or --compute, not both")
        if sum((self.slots is not None, self.memory is not None, self.unlimited)) > 1:
            raise BudgetedError("give one of --slots, --memory and --unlimited")
        if self.stream not in order_names():
            raise UnknownName("stream", self.stream, order_names())
        if self.eval_precision not in get_args(Precision):
            raise UnknownName("precision of evaluations", self.eval_precision, get_args(Precision))
        if self.byte_rule not in RULES:
            raise UnknownName("byte rule", self.byte_rule, RULES)
        for name in ("eval_every", "threads", "slots", "limit", "checkpoint_every", "eval_samples", "size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BudgetedError(f"--{name.replace('_', '-')} must be 1 or more, got {shown(value)}")
        for name in ("eval_every", "slots", "limit", "checkpoint_every", "eval_samples", "seed", "size"):
            value = getattr(self, name)
            if value is not None and value >= MOST:
                raise BudgetedError(f"--{name.replace('_', '-')} must be below 2^63, got {shown(value)}")
        if self.batch_size > MOST_BATCH:
            raise BudgetedError(f"--batch-size must be at most {MOST_BATCH:,}, got {shown(self.batch_size)}")
        if self.threads > MOST_THREADS:
            raise BudgetedError(f"--threads must be at most {MOST_THREADS}, got {shown(self.threads)}")
        if self.iterations is not None and not 0 <= self.iterations <= MOST_ITERATIONS:  # also false for nan
            most = f"0 to {MOST_ITERATIONS:,}"
            raise BudgetedError(f"--iterations must be {most} steps per sample, got {shown(self.iterations)}")
        if self.resize not in POLICIES:
            raise UnknownName("resize policy", self.resize, POLICIES)
        if not 0 <= self.decode_threads <= MOST_THREADS:
            raise BudgetedError(f"--decode-threads must be 0 to {MOST_THREADS}, got {shown(self.decode_threads)}")
        refuse_bad_keep(self.keep_checkpoints)
        if self.seed < 0:
            raise BudgetedError(f"--seed must be 0 or more, got {shown(self.seed)}")

    @property
    def network(self) -> str:
        """The model's name, given or not."""
        usual = "llava-tiny" if self.dataset.startswith("bongard-drawn") else "resnet32"
        return self.model or ("cnn8" if self.dataset == "digits" else usual)

    def load_data(self) -> Dataset:
        """The data set, as far as it has to be looked at now."""
        return load(
            self.dataset,
            self.data and Path(self.data),
            download=self.download,
            size=self.size,
            resize=self.resize,
            skip_bad=self.skip_bad,
            test_share=self.test_share,
        )

    def build_method(self) -> Method:
        return METHODS[self.method]().with_parts(freezing=self.freezing, retrieval=self.retrieval, codec=self.codec)

    def build_settings(self, flips: bool, problem: str | None = None) -> Settings:
        """problem: what is learned from the data set, if the run does not say it."""
        pairs = {"learner.batch_size": str(self.batch_size), **self.settings}
        problem = self.problem or problem
        return from_pairs(
            pairs, self.build_method(), flips, problem, self.usual or None,
            classified=problem in (None, "classification"),
        )  # fmt: skip

    def with_usual(self) -> RunConfig:
        """With what the method is usually run with, as it is now."""
        return self if self.usual else replace(self, usual=usual_with(self.build_method()))

    def with_sources(self) -> RunConfig:
        """With the user's own files found from anywhere, and known by their content."""
        if (dataset := absolute_name(self.dataset)) != self.dataset:
            return replace(self, dataset=dataset).with_sources()
        if self.data and (data := os.path.abspath(os.path.expanduser(self.data))) != self.data:
            return replace(self, data=data).with_sources()
        places = {
            name: getattr(self, name)
            for name in ("method", "model", "freezing", "retrieval", "codec", "problem", "dataset")
        }
        family, places["method"] = METHODS.apart(self.method)
        files = {name: source_of(text) for name, text in places.items() if text}
        absolute = {name: f"{path.resolve()}:{places[name].rpartition(':')[2]}" for name, path in files.items() if path}
        absolute |= {name: family + text for name, text in absolute.items() if name == "method"}
        digests = {str(path.resolve()): file_digest(path) for path in files.values() if path}
        return replace(self, **absolute, sources=digests) if digests else self  # type: ignore[arg-type]

    def refuse_other_sources(self) -> None:
        """A run goes on with the files that it was begun with."""
        for path, digest in self.sources.items():
            if file_digest(Path(path)) != digest:
                raise BudgetedError(f"{path} is not what it was when the run was begun: restore it, or begin a new run")

    def budget(self) -> Budget:
        return Budget(
            None if self.compute is None else parse_compute(self.compute),
            None if self.memory is None else parse_bytes(self.memory),
        )

    def to_json(self) -> dict[str, Any]:
        found = {**dataclasses.asdict(self), "model": self.network}
        for name in ("sources", "usual"):
            if not found[name]:
                del found[name]
        # runs that were begun before these could be said go on as they are
        for name in ("keep_checkpoints", "eval_beside", "eval_precision", "eval_folded"):
            if found[name] == getattr(RunConfig, name):
                del found[name]
        return found

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> RunConfig:
        """From a config file or a run's folder; unknown keys and wrong types are named."""
        hints, known = get_type_hints(cls), {item.name for item in dataclasses.fields(cls)}
        cleaned: dict[str, Any] = {}
        for key, value in values.items():
            name = key.replace("-", "_")
            if name == CONFIG_SEAL:  # of a run's own file, which may serve as a config file
                continue
            if name not in known:
                raise UnknownName(f"key in {where}", key, known)
            if not _fits(value, hints[name]):
                raise BudgetedError(
                    f"{where}: {key} = {value!r} is not of type {hints[name]}: write it as `budgeted run --help` says"
                )
            cleaned[name] = {k: str(v) for k, v in value.items()} if isinstance(value, dict) else value
        return cls(**cleaned)


def refuse_other_config(known: Any, here: dict[str, Any], path: Path) -> None:
    """A run goes on with the settings that it was begun with; what differs is named."""
    if known == here:
        return
    told = known if isinstance(known, dict) else {}
    then, found = _by_name(told), _by_name(here)
    differing = [
        f"{name} {then.get(name, 'not said')} then, {found.get(name, 'not said')} now"
        for name in sorted({*then, *found})
        if then.get(name) != found.get(name)
    ]
    raise BudgetedError(f"{path} has other settings than the run was made with ({'; '.join(differing)}): restore it")


def _by_name(config: dict[str, Any]) -> dict[str, Any]:
    tables = ("settings", "sources", "usual")
    parts = {f"{part}.{key}": value for part in tables for key, value in config.get(part, {}).items()}
    return {**{key: value for key, value in config.items() if key not in tables}, **parts}


def shown(number: float) -> str:
    """A number for a message; one of thousands of digits cannot even be printed."""
    return f"a number of {number.bit_length()} bits" if isinstance(number, int) and abs(number) >= MOST else str(number)


def read_config(path: Path) -> dict[str, Any]:
    """A config file: TOML or JSON, keys as the flags without dashes, other settings under [settings]."""
    try:
        with open(path, "rb") as file:  # `--config <(a program)` is no regular file
            text = file.read(MOST_CONFIG).decode()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BudgetedError(f"cannot read the config file {path}: {error.strerror}: check the path") from error
    except (ValueError, RecursionError) as error:
        raise BudgetedError(f"{path} is no valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(found, dict):
        raise BudgetedError(f'{path} holds no table of keys and values: write lines such as method = "er"')
    settings = found.get("settings")
    if isinstance(settings, dict):  # [settings.learner] learning_rate = ... is learner.learning_rate
        found["settings"] = flat(settings)
    return found


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables inside tables as one, their keys joined by dots."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str)  # which words are known is said elsewhere
    options = getattr(hint, "__args__", (hint,)) if not getattr(hint, "__origin__", None) else (dict,)
    if isinstance(value, bool):
        return bool in options
    return isinstance(value, tuple(options)) or (isinstance(value, int) and float in options)
