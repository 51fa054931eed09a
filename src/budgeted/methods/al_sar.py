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

from budgeted.methods.method import Method

AL = Method("al", "Vanilla with adaptive layer freezing", freezing="adaptive", own=frozenset({"freezing"}))
SAR = Method("sar", "Vanilla with similarity-aware retrieval", retrieval="sar", own=frozenset({"retrieval"}))
AL_SAR = Method(
    "al-sar",
    "adaptive layer freezing and similarity-aware retrieval (the paper's method)",
    retrieval="sar",
    freezing="adaptive",
    own=frozenset({"retrieval", "freezing"}),
)
