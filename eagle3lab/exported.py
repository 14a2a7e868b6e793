"""The file that ``eagle3lab forward`` writes: states and logits of a rollout, for comparison elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from eagle3lab import __version__
from eagle3lab.casefile import CaseFile
from eagle3lab.errors import BadFile, BadOption, LabError
from eagle3lab.forward import Rollout
from eagle3lab.reading import Reading
from eagle3lab.tensors import open_file

FORMAT = "eagle3lab-forward/1"


def check_place(out: Path, case: CaseFile) -> None:
    """Says no before any work is done: nothing is overwritten but an earlier file of this command.

    Args:
        out: where the file would go.
        case: its files are inputs, whatever they look like.

    Raises:
        BadOption: not the name of a ``.safetensors`` file, an input of the case or in one, or a file of another kind.
    """
    if out.suffix != ".safetensors" or os.path.isdir(out):  # noqa: PTH112 (a name may be too long for any file)
        raise BadOption(f"--out {out}: expected the name of a file that ends in .safetensors")
    place = _real(out)
    dumps = (str(run.dump["path"]) for run in case.runs if run.dump.get("path"))
    for given in (case.draft, case.target, case.samples, case.parity, *(case.root / dump for dump in dumps)):
        if given is not None and (place == _real(given) or (_real(given) in place.parents and given != case.root)):
            raise BadOption(f"--out {out}: is an input of the case, or in one, and none is written to; choose another "
                            "place")  # fmt: skip
    if not os.path.lexists(out):
        return
    try:
        ours = open_file(out).metadata.get("format") == FORMAT
    except (LabError, OSError):
        ours = False
    if not ours:
        raise BadOption(f"--out {out}: is there already and not by this command, so it is not overwritten; choose "
                        "another place, or remove it")  # fmt: skip


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `Path.resolve` raises on a symlink that leads to itself


def write(out: Path, result: Rollout, reading: Reading, sample: str, fed: str) -> None:
    """Writes ``stepJ.input_ids``, ``stepJ.hidden`` and ``stepJ.logits`` (float32), the Reading as metadata.

    Raises:
        BadFile: it cannot be written there.
    """
    tensors: dict[str, torch.Tensor] = {}
    for j, step in enumerate(result.steps):
        if step.hidden is None or step.logits is None:
            raise ValueError("a rollout that kept neither states nor logits cannot be written")
        tensors[f"step{j}.input_ids"] = step.tokens.contiguous()
        tensors[f"step{j}.hidden"] = step.hidden.float().cpu().contiguous()
        tensors[f"step{j}.logits"] = step.logits.float().contiguous()
    metadata = {
        "format": FORMAT,
        "reading": reading.to_json(),
        "sample": sample,
        "fed": fed,
        "steps": str(len(result.steps)),
        "eagle3lab": __version__,
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(out), metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise BadFile(out, f"cannot be written ({error}); choose another place") from error


def remarks(result: Rollout, reading: Reading, length: int) -> list[str]:
    """What must be known about numbers that were written: positions past the limit, logits that are not finite."""
    out, limit, last = [], reading.rope.limit, length - 1 - reading.shift
    if limit is not None and last >= limit:
        out.append(
            f"note: positions {limit} to {last} lie past the draft's limit of {limit}: engines wrap, clamp or "
            "crash there"
        )
    if result.nonfinite:
        rows = sum(len(step.rows) for step in result.steps)
        out.append(
            f"{result.nonfinite} of {rows} rows have NaN or infinite logits: look for NaN in weights (W003) and states "
            f"(S002), or for an overflow of {reading.dtype}"
        )
    return out
