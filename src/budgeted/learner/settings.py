"""Everything that can be set about a learner, with the paper's defaults; the field docstrings are the help."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args, get_type_hints

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.layer_freezing import BatchNormStatistics
from budgeted.freezing.policies import POLICIES
from budgeted.freezing.units import Granularity
from budgeted.limits import limited, refuse_outside_limits
from budgeted.methods import Method
from budgeted.models.normalisation import Normalisation
from budgeted.network.rates import Schedule
from budgeted.problems import PROBLEMS
from budgeted.problems.augment import Augmentation
from budgeted.replay import CODECS, RETRIEVALS, SELECTIONS

Autocast = Literal["none", "bfloat16", "float16"]
OnSpent = Literal["store", "stop"]
_NONE = ("none", "null", "")
OF_CLASSES = ("train_size", "mirrored", "new_rows", "candidates")
"""settings of the learner that are for samples that are classified"""


@dataclass(frozen=True)
class LearnerSettings:
    """How training is done; the same for every method."""

    batch_size: int = limited(16, "at least 2")
    """samples in a training batch"""
    optimizer: Literal["adam", "adamw", "muon", "schedule-free", "sgd"] = "adam"
    """algorithm of the updates; muon: for matrices and convolutions, with adamw for the head and all else;
    schedule-free: adamw that predicts with an average inside the optimizer, whose bytes count"""
    learning_rate: float = limited(3e-4, "above 0")
    """step size"""
    weight_decay: float = limited(0.0, "0 or more")
    """decay of the weights, as the optimizer defines it"""
    momentum: float = limited(0.0, "from 0 to below 1")
    """of sgd"""
    muon_momentum: float = limited(0.95, "from 0 to below 1")
    """of muon"""
    muon_iterations: int = limited(5, "from 1 to 100")
    """Newton-Schulz iterations of muon, which are charged"""
    muon_share: float = limited(0.5, "0 or more")
    """of a layer's forward and backward that its iterations may cost; where they cost more, because a batch uses the
    weights at few places (small pictures, vectors), adamw steps the layer"""
    free_power: float = limited(0.0, "from 0 to 100")
    """of schedule-free: above 0 late steps weigh more in the average, by their number to this power"""
    schedule: Schedule = "constant"
    """learning rate over a stream of known length: down to 0 in a line or a cosine"""
    warm_up: int = limited(0, "0 or more")
    """steps after a new class in which the learning rate rises"""
    pace_power: float = limited(1.0, "from 0.1 to 10")
    """after a share s of a stream of known length, s ** this of the steps have come: 1 evenly, below 1 more of them
    early (from the first full batch on), above 1 late"""
    label_smoothing: float = limited(0.0, "from 0 to below 1")
    """of the cross-entropy; with it the feature gradient is asked of autograd"""
    train_size: int | None = limited(None, "at least 1")
    """side in pixels of training images, whose steps cost less; None: as they are. Predictions see them as they are"""
    train_size_until: float = limited(1.0, "above 0 and at most 1")
    """share of the stream up to which they are smaller"""
    average: Literal["none", "float32", "bfloat16"] = "none"
    """predict with an average of the weights along the training, kept in this precision: its bytes count"""
    average_decay: float = limited(0.99, "from 0 to below 1")
    """share of the average that a step leaves: it reaches over 1 / (1 - decay) steps"""
    average_warm_up: float = limited(10.0, "above 1")
    """until then over 1 / (this - 1) of the steps so far"""
    mirrored: bool = False
    """predict with the mean of what is said to a picture and to its mirror image, where that keeps the label: twice the
    work of a prediction"""
    normalisation: Normalisation = "batch"
    """in the place of the model's batch norms: group norm, or group norm and then batch norm (continual)"""
    norm_groups: int = limited(8, "at least 1")
    """of channels in group norm, as far as they divide a layer's channels"""
    norms: Literal["running", "memory"] = "running"
    """statistics of batch norm in predictions: the running ones, or of stored samples as they are, measured before an
    evaluation"""
    norm_samples: int = limited(256, "at least 2")
    """of the memory, as many of each class, that they are measured on"""
    new_rows: Literal["random", "mean"] = "random"
    """where the row of a new class starts: drawn, or from the features of its first sample beside the mean of stored
    ones, which a forward pass computes"""
    candidates: float = limited(1.0, "from 1 to 100")
    """stored samples that are run forward for every one that is trained on, of which the hard ones are likelier"""
    hardness: float = limited(1.0, "from 0 to 100")
    """of candidates: weights are the ranks of the losses to this power; 0 draws evenly"""
    selection: str | None = None
    """which samples stay (greedy-balanced, greedy-quota, reservoir, aser, unlimited); None: the method's own"""
    granularity: Granularity = "block"
    """freeze whole blocks, or single layers"""
    always: str = ""
    """modules that never rest, by parts of their paths, with commas between them"""
    batch_norm: BatchNormStatistics = "update"
    """running statistics of frozen blocks go on, or are held"""
    sampled_fraction: float = limited(0.0005, "above 0 and at most 1")
    """share of the parameters whose per-sample gradients serve the class similarity"""
    sampled_group: int = limited(16, "at least 1")
    """how many of them are drawn together, neighbours in one layer: fewer layers to read; 1 draws each by itself"""
    sampled_mode: Literal["training", "evaluation"] = "training"
    """of the training step itself, where batch norm couples the samples of a batch; or, by one more forward and
    backward, in evaluation mode, where each is the gradient of one sample's loss"""
    autocast: Autocast = "none"
    """lower precision of the forward; float16 scales the loss and unscales the gradients before any use"""
    on_spent: OnSpent = "store"
    """when the compute is spent: go on predicting and storing, or stop"""
    channels_last: bool = True
    """memory format of convolutions: faster on CPUs"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self)


@dataclass(frozen=True)
class Settings:
    """The learner's settings and those of its parts."""

    learner: LearnerSettings = field(default_factory=LearnerSettings)
    augmentation: Augmentation | None = None
    """None: what suits the data set"""
    method: Mapping[str, Any] = field(default_factory=dict)
    """of the method, such as alpha of der++"""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """of the selection, such as neighbours of aser"""
    retrieval: Mapping[str, Any] = field(default_factory=dict)
    """of the retrieval, such as temperature of sar"""
    freezing: Mapping[str, Any] = field(default_factory=dict)
    """of the freezing policy, such as n of constant or ema of adaptive"""
    codec: Mapping[str, Any] = field(default_factory=dict)
    """of the codec"""
    problem: Mapping[str, Any] = field(default_factory=dict)
    """of a problem that was given by name"""


def from_pairs(
    pairs: Mapping[str, str],
    method: Method,
    flips: bool,
    problem: str | None = None,
    usual: Mapping[str, str] | None = None,
    *,
    classified: bool = True,
) -> Settings:
    """Read KEY=VALUE pairs such as learner.learning_rate=1e-3, retrieval.temperature=1, method.alpha=1; what they leave
    open is as usual: with the method as it is now, if not given. What is for samples that are `classified` is usual
    with those alone."""
    habits = usual_with(method) if usual is None else usual
    if not classified:
        habits = {key: value for key, value in habits.items() if key.removeprefix("learner.") not in OF_CLASSES}
    pairs = {**habits, **pairs}
    kinds = _kinds(method, pairs, problem)
    parts: dict[str, dict[str, Any]] = {part: {} for part in kinds}
    for key, value in pairs.items():
        part, _, name = key.partition(".")
        if part not in parts or not name:
            raise UnknownName("setting", key, setting_names(method))
        parts[part][name] = value
    typed = {part: _typed(kinds, part, values) for part, values in parts.items()}
    return Settings(
        LearnerSettings(**typed["learner"]),
        dataclasses.replace(Augmentation(flip=flips), **typed["augmentation"]),
        typed["method"],
        typed["selection"],
        typed["retrieval"],
        typed["freezing"],
        typed["codec"],
        typed["problem"],
    )


def usual_with(method: Method) -> dict[str, str]:
    """What the method is usually run with, as far as its parts are those that it names itself."""
    known = {*setting_names(method)}
    return {key: value for key, value in method.usual.items() if key in known}


def setting_names(method: Method) -> list[str]:
    """Every key that `from_pairs` knows with this method and its parts."""
    return [f"{part}.{name}" for part, kind in _kinds(method, {}).items() for name in _fields(kind)]


def _kinds(method: Method, pairs: Mapping[str, str], problem: str | None = None) -> dict[str, Any]:
    """The dataclass behind the settings of every part; an object that was given has its settings already."""
    replaced = pairs.get("learner.selection", "none")
    selection = method.selection if replaced.lower() in _NONE else replaced
    return {
        "learner": LearnerSettings,
        "augmentation": Augmentation,
        "method": type(method),
        "selection": SELECTIONS[selection].settings_type() if isinstance(selection, str) else None,
        "retrieval": RETRIEVALS[method.retrieval].settings_type() if isinstance(method.retrieval, str) else None,
        "freezing": POLICIES[method.freezing] if isinstance(method.freezing, str) else None,
        "codec": CODECS[method.codec].settings_type() if isinstance(method.codec, str) else None,
        "problem": None if problem is None else PROBLEMS[problem].settings_type(),
    }


def _fields(kind: Any) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    parts = {"selection", "retrieval", "freezing", "codec"} if issubclass(cast(type, kind), Method) else set()
    return [item.name for item in dataclasses.fields(kind) if item.init and item.name not in parts]


def _typed(kinds: Mapping[str, Any], part: str, values: Mapping[str, str]) -> dict[str, Any]:
    hints = get_type_hints(kinds[part]) if values and kinds[part] is not None else {}
    typed: dict[str, Any] = {}
    for name, text in values.items():
        if name not in _fields(kinds[part]):
            known = [f"{other}.{item}" for other, kind in kinds.items() for item in _fields(kind)]
            raise UnknownName("setting", f"{part}.{name}", known)
        typed[name] = _value(f"{part}.{name}", text, hints[name])
    return typed


def _value(key: str, text: str, kind: Any) -> Any:
    """A value from text; anything but text (from a config file) is taken as it is."""
    if not isinstance(text, str):
        text = str(text).lower() if isinstance(text, bool) else str(text)
    options = get_args(kind)
    if type(None) in options:
        if text.lower() in _NONE:
            return None
        kind = next(option for option in options if option is not type(None))
        options = get_args(kind)
    if options:  # a Literal
        if text not in options:
            raise UnknownName(key, text, options)
        return text
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError) as error:
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise BudgetedError(f"{key}={text}: give {wanted}") from error
