"""A `Recording` becomes a `Sample`: slots named by boundary, everything checked, all faults raised together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.recordings import FileKind, Known, Recording, kept_axis, plain
from eagle3lab.records import Sample
from eagle3lab.tensors.plain import WORDS

STATE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WHOLE_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8, torch.bool)


def to_sample(recording: Recording, kind: FileKind, name: str, path: str, file: Path, known: Known) -> Sample:
    """The recording as a checked `Sample`; states stay the views they are.

    Raises:
        BadFile: every fault of the file at once.
    """
    faults = list(recording.faults)
    notes = list(recording.notes)
    ids, mask = recording.input_ids, recording.loss_mask
    if mask is None and isinstance(ids, Tensor):
        mask = torch.ones(ids.shape, dtype=torch.uint8)
        notes.append("no loss mask is recorded: every token counts as reply, the prompt's too")
    notes += _overruled(recording, known)
    states, final, claimed, assumed = _named(recording, known, faults)
    if ids is None or not isinstance(ids, Tensor):
        if not faults:
            faults.append("no token ids are there")
        raise BadFile(file, faults)
    faults += _token_faults(ids, mask, known.vocab)
    if not states and not faults:
        faults.append("no state of a boundary is there: only a final state, which an EAGLE-3 draft is not fed with")
    faults += _state_faults(states, final, ids.numel() if _row(ids) else len(ids) if ids.ndim else 0)
    if known.layers is not None and (above := sorted(k for k in states if k > known.layers)):
        faults.append(
            f"boundaries {above} lie above {known.layers}, the target's last residual; expected 0 … {known.layers} "
            f"(h.{known.layers} is the output of the last block, before the final norm)"
        )
    if faults:
        raise BadFile(file, faults)
    return Sample(
        name=name,
        path=path,
        input_ids=ids.long(),
        loss_mask=(mask != 0).to(torch.uint8),
        states=dict(sorted(states.items())),
        final=final,
        final_norm=claimed,
        last=known.layers if known.layers in states else None,
        origin=recording.origin,
        unused=recording.unused,
        writer=kind.name,
        notes=tuple(notes),
        assumed=assumed,
        distribution=recording.distribution,
    )


def _overruled(recording: Recording, known: Known) -> list[str]:
    """What case.toml says and the dump itself says otherwise: the dump is believed."""
    out = []
    said = list(known.boundaries)
    if said and recording.boundaries is not None and sorted(said) != sorted(recording.boundaries):
        own = list(recording.boundaries)
        out.append(f"case.toml says boundaries {said}, the dump itself {own}: the dump is believed")
    if known.final and recording.final_stated and recording.final is not None and known.final != recording.final_norm:
        out.append(
            f"case.toml says final {known.final!r}, the dump itself {recording.final_norm!r}: the dump is believed"
        )
    return out


def _named(
    recording: Recording, known: Known, faults: list[str]
) -> tuple[dict[int, Tensor], Tensor | None, str, tuple[str, ...]]:
    """Slots by boundary, the final state and its form, and what of it is only assumed."""
    slots, final, claimed = list(recording.slots), recording.final, recording.final_norm
    assumed: tuple[str, ...] = ()
    names = recording.boundaries
    if names is None and slots:
        names, assumed = _boundaries(recording, known, faults)
    if known.final and not recording.final_stated:
        claimed = known.final
    if names and len(set(names)) < len(names):
        faults.append(f"boundaries {list(names)} name one twice; expected each once")
    states = dict(zip(names or (), slots, strict=False))
    last = known.layers
    if claimed == "post" and final is None and last in states:
        final = states.pop(last)  # the case says that the last slot is normed
    if claimed == "pre" and final is not None and last is not None and last not in states:
        states[last], final, claimed = final, None, "none"
    if claimed == "none" and final is not None and known.final == "none":
        final = None
    if final is None:
        claimed = "none"
    elif not recording.final_stated and not known.final:
        words = "before" if claimed == "pre" else "after"
        assumed = (*assumed, f"the last state {words} the final norm, as this writer's usually is")
    return states, final, claimed, assumed


def _boundaries(
    recording: Recording, known: Known, faults: list[str]
) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
    """Boundaries that the file does not say: the case's, else the writer's default."""
    count = len(recording.slots)
    if known.boundaries:
        names = known.boundaries
        if len(names) == count + 1 and recording.final is not None and names[-1] == known.layers:
            names = names[:-1]  # the last one names the final state, which the file keeps apart
        if len(names) != count:
            faults.append(f"holds {count} states side by side, but [samples] boundaries lists {list(names)}")
            return None, ()
        return names, ()
    names_or_none = recording.default(known.layers, count) if known.layers else None
    if names_or_none is None or min(names_or_none) < 0:
        why = "the number of target layers is not known" if not known.layers else f"{count} states have no usual ones"
        faults.append(
            f"does not say which boundaries its {count} states are, and {why}; "
            f"add boundaries = [… {count} numbers] to [samples] in case.toml"
        )
        return None, ()
    return names_or_none, (f"boundaries {list(names_or_none)}, {recording.default_words}",)


def _token_faults(ids: Tensor, mask: Any, vocab: int | None) -> list[str]:
    faults = []
    sound = ids.ndim == 1 and ids.dtype in (torch.int64, torch.int32)
    if not sound:
        faults.append(f"input_ids is {_form(ids)}, expected I64 [T]{kept_axis(ids, 1)}")
    if not isinstance(mask, Tensor) or mask.ndim != 1 or mask.dtype not in WHOLE_DTYPES:
        faults.append(f"loss_mask is {_form(mask)}, expected U8 [T]{kept_axis(mask, 1)}")
    elif sound and mask.shape != ids.shape:
        faults.append(f"loss_mask has {list(mask.shape)} entries, input_ids {len(ids)}; expected the same T")
    elif len(odd := mask[(mask.long() != 0) & (mask.long() != 1)]):
        faults.append(f"loss_mask holds {odd[:5].tolist()}, expected 1 on reply tokens and 0 elsewhere")
    if not sound:
        return faults
    if len(ids) < 3:
        faults.append(f"{len(ids)} tokens are too few: a row needs its own state and the two tokens after it")
    bad = ids[(ids < 0) | (ids >= vocab)] if vocab is not None else ids[ids < 0]
    if len(bad):
        faults.append(
            f"input_ids holds {bad[:5].tolist()}, outside the vocabulary"
            + (f" of {vocab}" if vocab is not None else "")
            + "; recorded with another tokenizer, or padded?"
        )
    return faults


def _state_faults(states: dict[int, Tensor], final: Tensor | None, length: int) -> list[str]:
    faults = []
    everything: dict[str, Any] = {f"h.{k}": state for k, state in states.items()}
    if final is not None:
        everything["final"] = final
    alike: dict[str, list[str]] = {}
    for name, state in everything.items():
        if fault := _state_fault(state, length):
            alike.setdefault(fault, []).append(name)
    for fault, names in alike.items():
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        faults.append(f"{some} {fault}" if len(names) == 1 else f"{some}: each {fault}")
    widths = sorted({s.shape[1] for s in everything.values() if isinstance(s, Tensor) and s.ndim == 2})
    if len(widths) > 1 or 0 in widths:
        faults.append(f"states have widths {widths}, expected one width Ht above 0")
    return faults


def _state_fault(state: Any, length: int) -> str:
    """What is wrong with one state, "" for nothing."""
    if not isinstance(state, Tensor):
        return f"is a {type(state).__name__}, expected a tensor [T, Ht]"
    if state.ndim != 2 or state.dtype not in STATE_DTYPES or not plain(state):
        return f"is {_form(state)}, expected BF16, F16 or F32 [T, Ht]{kept_axis(state, 2)}"
    if state.shape[0] == length:
        return ""
    ratio = (
        f" (ratio {state.shape[0] / length:.2f}; one over the accept length means that a speculating engine recorded "
        "one row a round)"
    )
    return f"has {state.shape[0]} rows for {length} tokens; expected one row a token" + (
        ratio if state.shape[0] < length else ""
    )


def _row(ids: Tensor) -> bool:
    """Whether token ids are one row, or one column, of a table: an axis was kept."""
    return sum(size > 1 for size in ids.shape) == 1


def _form(value: Any) -> str:
    """``F32 [40, 16]``, or the type of what is no tensor."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{WORDS.get(value.dtype, str(value.dtype))} {list(value.shape)}"
