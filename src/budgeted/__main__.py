"""`python -m budgeted`: the same as the command `budgeted`."""

from __future__ import annotations

import sys

from budgeted.cli import main

sys.exit(main())
