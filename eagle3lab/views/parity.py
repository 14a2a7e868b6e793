"""Another program's intermediate states beside the lab's own, as plain rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from eagle3lab.case import Case
from eagle3lab.parity import of_case


def parity(case: Case) -> dict[str, Any]:
    """``rows`` and ``words`` for the table; no rows where the case gives no ``[parity]`` file."""
    rows, words = of_case(case)
    return {"rows": [asdict(row) for row in rows], "words": words}
