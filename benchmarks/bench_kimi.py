"""A draft of Kimi's size (bfloat16, 5 GB on disk): one step over 1,281 tokens against the bare matrix products.

Time as a ratio of one run; memory as the resident peak of a process that opens the draft and runs it, beyond the
weights it touches (all matrices, and the embedding rows of the text).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from bench_forward import status
from common import best_of
from synthetic import READING, Size, bare, sample, write

import eagle3lab as lab
from eagle3lab.draft import Draft

SIZE = Size(7168, 18432, 64, 64, 128, 32000, 163840, 1281, torch.bfloat16)


def main() -> None:
    """Prints the ratio and the peak."""
    torch.set_num_threads(1)
    reading = READING.replace(dtype="bfloat16")
    text = sample(SIZE)
    with tempfile.TemporaryDirectory() as name:
        child = os.fork()
        if child == 0:  # a process of its own: what is written passes through memory
            write(Path(name), SIZE)
            os._exit(0)
        os.waitpid(child, 0)
        torch.zeros(1) @ torch.zeros(1, 1)
        before = status("VmRSS")
        draft = Draft(Path(name), SIZE.hidden, SIZE.vocab)
        model = lab.Model(draft)
        lab.rollout(model, text, reading, 1)
        over = status("VmHWM") - before - sum(2 * a * b for a, b in SIZE.shapes.values())
        weights = {n: draft.tensors.read(f"{n}.weight") for n in SIZE.shapes}
        found = best_of({
            "rollout": lambda: lab.rollout(model, text, reading, 1), "bare": lambda: bare(weights, SIZE, 1),
        }, rounds=2)  # fmt: skip
    print(f"H {SIZE.hidden}, I {SIZE.intermediate}, V {SIZE.vocab}, T {SIZE.tokens}, one step, bfloat16: "
          f"{found['rollout'] / found['bare']:.2f} × the bare matrix products, "
          f"peak {over / 1e9:.2f} GB beyond the weights")  # fmt: skip


if __name__ == "__main__":
    main()
