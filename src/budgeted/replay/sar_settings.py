"""Every reading of similarity-aware retrieval as a setting: the paper's, the published code's, and the
ablations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from budgeted.errors import BudgetedError, UnknownName
from budgeted.limits import limited, refuse_outside_limits
from budgeted.replay.similarity import ClassGradientForm


@dataclass(frozen=True)
class SARSettings:
    """What the score of a sample is. The defaults follow Algorithm 1, divided by |M| as in the published
    code.
    """

    frequency: Literal["use", "discounted", "effective"] = "effective"
    """Plain counts of use; counts that are forgotten; or these plus the uses of similar classes."""
    temperature: float = limited(0.125, "above 0")
    """T: a sample is drawn with probability proportional to exp(-score / T)."""
    k: float = 4.0
    """Each draw of B samples forgets the share B / (k |M|) of every frequency, once |M| > B; at least 1."""
    ema: float = limited(0.01, "above 0 and at most 1")
    """Step of the moving averages behind the class similarity; the published code uses 0.001."""
    similarity: Literal["pairwise", "class_gradient", "own_class"] = "pairwise"
    """Average the cosines between samples (Algorithm 1), or the gradient of each class (appendix;
    published code); or count the uses of a sample's own class alone, without gradients (ablation).
    """
    class_gradient: ClassGradientForm = "cosine"
    """How class gradients become a similarity: plain cosine, dot product of averaged unit gradients, or as
    published.
    """
    normalisation: Literal["all", "class", "none"] = "all"
    """What is divided by |M|: the whole score (published), the class term alone, or nothing (the paper's
    equation).
    """
    clamp: bool = True
    """Raise negative scores to 0, as the published code does."""
    self_term: Literal["removed", "double"] = "removed"
    """Whether a sample's own uses, which its class already counts, are taken out again or counted twice
    (equation).
    """
    own: Literal["absolute", "class_mean"] = "absolute"
    """A sample's own frequency as it is (the paper), or less the mean of its class, so that retrieval evens out the use
    of samples inside each class and leaves the balance between classes to the class term (ours; wants clamp off).
    """
    new_class: Literal["zero", "mean"] = "zero"
    """Similarity of a class when its first sample is stored: 0, or the mean among the classes known."""
    eviction: Literal["reduce", "keep"] = "reduce"
    """When a sample leaves, its frequency leaves the class sum C_y (its definition), or stays (Algorithm
    1).
    """
    warmup: int = limited(0, "0 or more")
    """That many first draws are class-balanced; the published code has 50."""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "retrieval.")
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in get_args(kind):
                raise UnknownName(name.replace("_", " "), value, get_args(kind))
        if self.own == "class_mean" and (self.clamp or self.eviction == "keep"):
            raise BudgetedError(
                "own class_mean needs scores below 0 and true class sums: set retrieval.clamp=false and leave "
                "retrieval.eviction at reduce"
            )
        if self.similarity == "own_class" and self.new_class == "mean":
            raise BudgetedError(
                "similarity own_class is not learned, so no class starts at a mean: drop new_class=mean"
            )
        if not self.k >= 1:
            raise BudgetedError(f"k is {self.k}: below 1 a draw might forget everything; give at least 1")
