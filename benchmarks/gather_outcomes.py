"""Write what our own runs came to into the package, for `budgeted plan --recommend`.

    python benchmarks/gather_outcomes.py

Reads every finished run in results/; a test checks that the file agrees with them.
"""

from __future__ import annotations

from pathlib import Path

from budgeted.bench import outcomes

if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    rows = outcomes.gather(here / "results")
    (here / "src" / "budgeted" / "bench" / outcomes.FILE).write_text(outcomes.as_json(rows))
    print(f"{len(rows)} configurations, {sum(len(row.runs) for row in rows)} runs")
