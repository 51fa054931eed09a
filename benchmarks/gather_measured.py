"""Write what our own runs came to into the package, for `budgeted plan --recommend`.

    python benchmarks/gather_measured.py

Reads every finished run in results/; a test checks that the file agrees with them.
"""

from __future__ import annotations

from pathlib import Path

from budgeted.bench import measured

if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    rows = measured.gather(here / "results")
    (here / "src" / "budgeted" / "bench" / measured.FILE).write_text(measured.as_json(rows))
    print(f"{len(rows)} configurations, {sum(len(row.runs) for row in rows)} runs")
