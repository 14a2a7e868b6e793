"""``python -m tests.faults [SEEDS] [NAME …]``: runs the fault bench and prints its table, then what went wrong.

``SEEDS`` is how many (0, 1, …), or which: ``3,8``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from faults.cases import SOUND
from faults.judge import Verdict, judge, kinds_of, sound, table


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    asked = arguments[0] if arguments else "3"
    seeds = [int(part) for part in asked.split(",") if part] if "," in asked else list(range(int(asked)))
    names = arguments[1:]
    verdicts: list[Verdict] = []
    start = time.process_time()
    for seed in seeds:
        for kind in kinds_of(seed):
            if not names or any(name in f"{kind.section} {kind.name}" for name in names):
                verdicts.append(judge(kind, seed))
        for case in SOUND:
            if not names or any(name in f"look-alike {case.name}" for name in names):
                verdicts.append(sound(case, seed))
    print(f"fault bench, {len(seeds)} seeds, planted heads (tests/faults)\n")
    print(table(verdicts))
    print("\nnot on this side (named by elimination, as E001): engine state, parallel layouts without a second dump")
    wrong = [v for v in verdicts if not v.named or v.false]
    for v in wrong:
        print(f"\n{v.name} [seed {v.seed}]: named {v.named}, false {list(v.false)}\n  {v.said}")
    print(f"\n{time.process_time() - start:.0f} s of one core", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
