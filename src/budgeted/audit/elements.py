"""Elementwise arithmetic, comparison, selection, random draw: 1 per result element.

`add`/`sub` with alpha != 1: 2; `addcmul`/`addcdiv`: 2, with value != 1: 3; `lerp`: 3; `relu` and its
backward: 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from budgeted.audit.call import Call, Counting

_NAMES = """
    abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign cos
    cosh digamma div eq erf erf_inv erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge
    gt hypot isfinite isinf isnan isneginf isposinf ldexp le lerp lgamma log log10 log1p log2 logical_and
    logical_not logical_or logical_xor lt maximum minimum mul ne neg nextafter pow reciprocal relu
    remainder round rsqrt rsub sgn sigmoid sign signbit sin sinh sqrt sub tan tanh threshold
    threshold_backward trunc where __lshift__ __rshift__ __ilshift__ __irshift__ bernoulli cauchy
    exponential geometric log_normal normal poisson rand rand_like randint randint_like randn randn_like
    random randperm uniform
"""
ELEMENTWISE = dict.fromkeys(_NAMES.split(), 1) | {"lerp": 3, "addcmul": 2, "addcdiv": 2}


def per_element(base: str, scalar: Any) -> int:
    """A scalar factor (alpha, value) is a multiplication unless it is the number one."""
    scaled = scalar is not None and (isinstance(scalar, Tensor) or scalar != 1)
    return ELEMENTWISE[base] + scaled


def scalar_factor(call: Call) -> Any:
    return next((v for v in map(call.arg, ("alpha", "value", "scalars")) if v is not None), None)


def _elementwise(call: Call) -> int:
    scalar = scalar_factor(call) if call.base in {"add", "sub", "rsub", "addcmul", "addcdiv"} else None
    return call.result * per_element(call.base, scalar)


RULES: dict[str, Counting] = dict.fromkeys(ELEMENTWISE, _elementwise)
