"""``python -m tests.faults [SEEDS] [NAME …]``: runs the fault bench and prints its table, then what went wrong.

``SEEDS`` is how many (0, 1, …), or which: ``3,8``.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from faults.cases import SOUND
from faults.judge import Verdict, judge, kinds_of, sound, table


def of_seed(seed: int, names: list[str]) -> list[Verdict]:
    """One seed's cases whose section and name hold one of ``names`` (all, without any), on one thread."""
    torch.set_num_threads(1)

    def asked(section: str, name: str) -> bool:
        return not names or any(part in f"{section} {name}" for part in names)

    faults = [judge(kind, seed) for kind in kinds_of(seed) if asked(kind.section, kind.name)]
    return faults + [sound(case, seed) for case in SOUND if asked("look-alike", case.name)]


def main(arguments: list[str]) -> int:
    asked = arguments[0] if arguments else "3"
    seeds = [int(part) for part in asked.split(",") if part] if "," in asked else list(range(int(asked)))
    names = arguments[1:]
    start = time.time()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(seeds))) as pool:
        verdicts = [v for some in pool.map(of_seed, seeds, [names] * len(seeds)) for v in some]
    print(f"fault bench, {len(seeds)} seeds, planted heads (tests/faults)\n")
    print(table(verdicts))
    print("\nnot on this side (named by elimination, as E001): engine state, parallel layouts without a second dump")
    wrong = [v for v in verdicts if not v.named or v.false]
    for v in wrong:
        print(f"\n{v.name} [seed {v.seed}]: named {v.named}, false {list(v.false)}\n  {v.said}")
    print(f"\n{time.time() - start:.0f} s", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
