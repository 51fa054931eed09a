"""aL-SAR (ICLR 2025) and its two halves: adaptive layer freezing, similarity-aware retrieval.

aL freezes the first blocks while they gain little information per compute; SAR draws what was used least, counting the
uses of similar classes. Both train from the memory alone with greedy balancing, so Vanilla, aL, SAR and aL-SAR
differ in nothing else. Deviations from Algorithm 1 are settings of the parts (`freezing.*`, `retrieval.*`); the docs
list every one with both values.

Cost: aL adds the feature gradient in every step and a sum of squared gradients in every fourth; SAR adds the sampled
gradients, their cosines and the draw. Bytes: aL one trace per block; SAR a frequency per slot and a similarity per pair
of classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgeted.freezing.policies import FreezingPolicy
from budgeted.methods.method import METHODS, Method, Named, PartName
from budgeted.replay import Retrieval


@METHODS.register("al")
@dataclass
class AL(Method):
    """Vanilla with adaptive layer freezing"""

    freezing: Named[FreezingPolicy] = "adaptive"
    own: ClassVar[frozenset[PartName]] = frozenset({"freezing"})


@METHODS.register("sar")
@dataclass
class SAR(Method):
    """Vanilla with similarity-aware retrieval"""

    retrieval: Named[Retrieval] = "sar"
    own: ClassVar[frozenset[PartName]] = frozenset({"retrieval"})


@METHODS.register("al-sar")
@dataclass
class ALSAR(Method):
    """adaptive layer freezing and similarity-aware retrieval (the paper's method)"""

    retrieval: Named[Retrieval] = "sar"
    freezing: Named[FreezingPolicy] = "adaptive"
    own: ClassVar[frozenset[PartName]] = frozenset({"retrieval", "freezing"})
