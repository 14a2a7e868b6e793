"""Peak memory of opening 5 GB, of 8,000 rows, of the lens and of statistics, against what each could cost."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = Path(__file__).parents[1] / "tests" / "memory_probe.py"
COULD = {
    "open and list 5 GB": 320 * 2048 * 4096 * 2, "8,000 of 163,840 x 7,168 rows": 8000 * 7168 * 2,
    "lens over 120,000 x 1,024": 120_000 * 1024 * 4, "statistics of fp8 and bf16": 8192 * 8192 * 8,
}  # fmt: skip
"""Bytes of the whole file; of the rows alone; of the head in float32; of the larger tensor in float64."""


def main() -> None:
    """Prints MiB and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, str(PROBE), folder], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    for what, mib in found["MiB"].items():
        could = COULD[what] / 2**20
        print(f"{what}: {mib:.0f} MiB at the peak, {mib / could:.3f} × {could:.0f} MiB")
    seconds = found["seconds"]
    ratio = seconds["open and list 5 GB"] / seconds["8,000 of 163,840 x 7,168 rows"]
    print(f"opening 5 GB ({found['tensors']} tensors): {ratio:.3f} × the time of reading 8,000 rows")


if __name__ == "__main__":
    main()
