"""The rollout against the bare matrix products of the same shapes, on the demo's reply rows, K=5, one thread."""

from __future__ import annotations

import torch
from common import DEMO, best_of

import eagle3lab as lab
from eagle3lab.samples import reply_rows

STEPS = 5


def main() -> None:
    """Prints the ratio."""
    torch.set_num_threads(1)
    case = lab.open_case(DEMO)
    reading = case.configured.reading.replace(aux=(0, 15, 27))
    samples = [case.samples[name] for name in case.samples.headline]
    weights = {name: case.model.weight(name, torch.float32) for name in case.draft.stored if name.endswith("weight")}

    def rollouts() -> None:
        for sample in samples:
            lab.rollout(case.model, sample, reading, STEPS, rows=reply_rows(sample))

    def products() -> None:
        for sample in samples:
            bare(weights, sample.length - 1, len(reply_rows(sample)))

    found = best_of({"rollout": rollouts, "bare products": products})
    rows = sum(len(reply_rows(s)) for s in samples)
    print(
        f"rollout, K={STEPS}, {rows} rows: {found['rollout'] / found['bare products']:.2f} × the bare matrix products"
    )


def bare(weights: dict[str, torch.Tensor], length: int, rows: int) -> None:
    """fc and k, v for every position, the rest for the reply rows; k and v again at each later step."""
    for name, weight in weights.items():
        if weight.ndim != 2:
            continue
        keys = name.endswith(("k_proj.weight", "v_proj.weight"))
        if name == "fc.weight" or keys:
            _ = torch.ones(length, weight.shape[1]) @ weight.T
        for k in range(STEPS):
            if name != "fc.weight" and not (keys and k == 0):
                _ = torch.ones(rows - k, weight.shape[1]) @ weight.T


if __name__ == "__main__":
    main()
