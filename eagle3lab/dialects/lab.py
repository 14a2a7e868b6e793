"""The lab's own sample files (design section 8): boundaries named per state, norm status of the final state stated."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording
from eagle3lab.records import Distribution, Sample

FORMAT = "eagle3lab-sample/1"
DISTRIBUTION = ("target_probs", "target_probs.tokens", "target_probs.covered")
KEYS = ("input_ids", "loss_mask", "final", *DISTRIBUTION)
_STATE = re.compile(r"h\.(0|[1-9]\d*)")
_INTEGERS = ("I64", "I32")

KIND = FileKind(
    name="lab",
    program="eagle3lab, your own recorder",
    files="`NAME.safetensors`",
    holds="`input_ids` int64 [T], `loss_mask` uint8 [T], `h.K` [T, Ht] for each boundary K, optionally "
    "`final` [T, Ht]; "
          "metadata `format`, `final_norm`, `origin`",
    traps="a batch axis, floats for ids, boundaries above L",
    does="reads it as it says; every fault of a file is named at once",
)  # fmt: skip


def _fits(content: Content) -> bool:
    named = any(_STATE.fullmatch(key) for key in content.keys)
    return content.file.suffix == ".safetensors" and (named or "format" in content.metadata)


def _read(content: Content, index: int, known: Known) -> Recording:
    tensors, out = content.value, Recording()
    names = sorted((n for n in tensors if _STATE.fullmatch(n)), key=lambda n: int(n[2:]))
    found = ", ".join(sorted(tensors)) or "nothing"
    kind = tensors.metadata.get("format")
    if kind != FORMAT:
        out.faults.append(f"metadata 'format' is {kind!r}, expected {FORMAT!r}: not a sample in the lab's own format")
    out.faults += [f"key {k!r} is missing; found {found}" for k in ("input_ids", "loss_mask") if k not in tensors]
    if not names:
        out.faults.append(f"no state 'h.K' is there; found {found}")
    claimed = tensors.metadata.get("final_norm", "none")
    if claimed not in ("pre", "post", "none"):
        out.faults.append(
            f"metadata 'final_norm' is {claimed!r}, expected 'pre' or 'post' the final norm, or 'none'"
        )  # fmt: skip
        claimed = "none"
    out.boundaries = tuple(int(n[2:]) for n in names)
    if out.faults:
        return out
    out.input_ids, out.loss_mask = tensors.read("input_ids"), tensors.read("loss_mask")
    out.slots = [tensors.read(n) for n in names]
    out.final = tensors.read("final") if "final" in tensors else None
    out.final_norm, out.final_stated = claimed, True
    out.origin = tensors.metadata.get("origin", "")
    out.distribution = _distribution(content)
    out.unused = tuple(sorted(n for n in tensors if n not in KEYS and not _STATE.fullmatch(n)))
    return out


def _distribution(content: Content) -> Distribution | None:
    probs, tokens = content.get("target_probs"), content.get("target_probs.tokens")
    if probs is None or tokens is None:
        return None
    first = content.metadata.get("target_probs.first", "0")
    return Distribution(probs, tokens, int(first) if first.isdecimal() else 0, content.get("target_probs.covered"))


READERS = (Reader(KIND, _fits, _read),)


def write_sample(sample: Sample, file: Path) -> Path:
    """Writes a sample in the lab's own format; read again it is equal bit by bit.

    Args:
        sample: from any reader.
        file: ``*.safetensors``, not there yet.

    Raises:
        FileExistsError: the file is there; nothing is overwritten.
    """
    if file.exists():
        raise FileExistsError(f"{file}: there already; choose another name")
    tensors: dict[str, Tensor] = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask.to(torch.uint8)}
    tensors |= {f"h.{k}": state for k, state in sample.states.items()}
    words = {"format": FORMAT, "final_norm": sample.final_norm, "origin": sample.origin or f"read from {sample.path}"}
    if sample.final is not None:
        tensors["final"] = sample.final
    if sample.distribution is not None:
        d = sample.distribution
        tensors |= {"target_probs": d.probs, "target_probs.tokens": d.tokens}
        tensors |= {"target_probs.covered": d.covered} if d.covered is not None else {}
        words["target_probs.first"] = str(d.first)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, file, metadata=words)
    return file
