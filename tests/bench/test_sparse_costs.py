"""What sparse kernels would execute, counted by hand; that it is shown beside what is charged, and not instead."""

from __future__ import annotations

import pytest

from budgeted.bench.compute_costs import Multiplier, Setup
from budgeted.bench.costs import Costs
from budgeted.bench.published import MULTIPLIERS
from budgeted.bench.sparse_costs import sparse_share


def test_the_share_is_that_of_a_count_by_hand() -> None:
    hidden, head = 64 * 256, 256 * 10  # the head is dense
    sparse = (0.25 + 0.25 + round(0.2 * hidden) / hidden) * hidden + 3 * head
    assert sparse_share("sparcl", "digits", "mlp") == pytest.approx(sparse / (3 * (hidden + head)))
    assert sparse_share("er", "digits", "mlp") is None


def test_it_is_printed_beside_what_is_charged() -> None:
    row = Multiplier("sparcl", MULTIPLIERS["sparcl"], {"paper": 0.943, "real": 0.9429}, {}, 1.0, "steps", 0.238)
    costs = Costs(Setup("digits", "mlp"), multipliers=[row])
    text = costs.markdown()
    assert "| 0.943 | 0.9429 |" in text
    assert "Not charged: kernels that skip masked weights would execute 0.238 of the multiply-adds" in text
    assert costs.json()["multipliers"][0]["if_sparse_not_charged"] == 0.238
    assert costs.json()["multipliers"][0]["over_er"] == {"paper": 0.943, "real": 0.9429}
