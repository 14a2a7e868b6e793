"""Run in a process of its own: what opening, rows, the lens and statistics add to peak memory, as JSON in MiB.

Files are sparse: holes read as zeros and cost no disk.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path

import torch

from eagle3lab.checkpoint import Checkpoint
from eagle3lab.stats import all_stats
from eagle3lab.target import Target

BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}


def sparse(file: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    """A safetensors file whose tensors are holes."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + BYTES[dtype] * int(torch.tensor(shape).prod())
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(file, 8 + len(text) + end)
    return file


def resident(what: str) -> float:
    """Resident memory in MiB: ``VmRSS`` now, ``VmHWM`` at its peak since the peak was forgotten."""
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) / 1024


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    out, seconds = {}, {}
    names = {f"layers.{i}.mlp.up_proj.weight": ("BF16", (2048, 4096)) for i in range(320)}
    sparse(folder / "large" / "model.safetensors", names)
    sparse(folder / "target" / "model.safetensors", {
        "model.embed_tokens.weight": ("BF16", (163_840, 7168)), "lm_head.weight": ("BF16", (163_840, 7168)),
        "model.norm.weight": ("BF16", (7168,)),
    })  # fmt: skip
    config = {"hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 163_840, "model_type": "kimi_k2"}
    (folder / "target" / "config.json").write_text(json.dumps(config))
    sparse(folder / "lens" / "model.safetensors", {
        "model.embed_tokens.weight": ("BF16", (120_000, 1024)), "lm_head.weight": ("BF16", (120_000, 1024)),
        "model.norm.weight": ("BF16", (1024,)),
    })  # fmt: skip
    (folder / "lens" / "config.json").write_text(json.dumps(config | {"hidden_size": 1024, "vocab_size": 120_000}))
    sparse(folder / "stats" / "model.safetensors", {
        "a.weight": ("F8_E4M3", (8192, 8192)), "a.weight_scale_inv": ("F32", (64, 64)), "b.weight": ("BF16", (4096, 4096)),
    })  # fmt: skip

    def measure(what: str, work) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before, started = resident("VmRSS"), time.monotonic()
        work()
        out[what], seconds[what] = round(resident("VmHWM") - before, 1), round(time.monotonic() - started, 3)

    large = {}
    measure("open and list 5 GB", lambda: large.update(Checkpoint(folder / "large").tensors))
    held = []
    measure("8,000 of 163,840 x 7,168 rows", lambda: held.append(
        Target(folder / "target").embedding(torch.arange(0, 160_000, 20))))  # fmt: skip
    held.clear()
    order = torch.randperm(163_840, generator=torch.Generator().manual_seed(1))[:8000]
    measure("8,000 of them in no order", lambda: held.append(Target(folder / "target").embedding(order)))
    held.clear()
    measure("lens over 120,000 x 1,024", lambda: Target(folder / "lens").lens(torch.ones(64, 1024)))
    files = Checkpoint(folder / "stats")
    measure("statistics of fp8 and bf16", lambda: all_stats(files.measurable, files.read, files.rows))
    print(json.dumps({"MiB": out, "seconds": seconds, "tensors": len(large)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
