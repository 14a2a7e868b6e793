"""200 wirings ranked by the search's race against 20 plain forwards, on the demo, one thread."""

from __future__ import annotations

import itertools

import torch
from common import DEMO, best_of

import eagle3lab as lab
from eagle3lab.bench import Bench
from eagle3lab.samples import reply_rows
from eagle3lab.search import race


def main() -> None:
    """Prints the ratio."""
    torch.set_num_threads(1)
    case = lab.open_case(DEMO)
    reading = case.configured.reading.replace(aux=(0, 15, 27))
    samples = [case.samples[name] for name in case.samples.headline]
    held = Bench(case.model, samples).boundaries
    wirings = [reading.replace(aux=aux) for aux in itertools.product(held, repeat=3)][:200]

    def ranked() -> None:
        race(Bench(case.model, samples), wirings, reading)

    def forwards() -> None:
        for _ in range(20):
            for sample in samples:
                lab.rollout(case.model, sample, reading, 1, rows=reply_rows(sample))

    found = best_of({"race": ranked, "forwards": forwards}, rounds=1)
    ratio = found["race"] / found["forwards"]
    print(f"200 wirings ranked: {ratio:.2f} × the time of 20 plain forwards (one step, all rows)")


if __name__ == "__main__":
    main()
