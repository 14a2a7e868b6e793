"""What readers share: tensors checked and taken out of their file as views, tails of padding cut."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3lab.recordings.content import Content
from eagle3lab.recordings.kinds import Known, Recording


def usual(layers: int, slots: int) -> tuple[int, ...] | None:
    """Boundaries (2, L//2, L-3), with L after them for a fourth slot: what every trainer takes by default."""
    three = (2, layers // 2, layers - 3)
    return {3: three, 4: (*three, layers)}.get(slots)


def tensor(recording: Recording, content: Content, key: str, index: int = 0, axes: int = 1) -> Tensor | None:
    """The tensor under ``key`` with ``axes`` axes; a leading batch axis of one is taken off.

    What is there and is not such a tensor goes into the recording's faults; what is missing is None without one.
    """
    value = content.get(key, index)
    if value is None:
        return None
    if not isinstance(value, Tensor):
        recording.faults.append(f"{key} is a {type(value).__name__}, expected a tensor")
        return None
    if not plain(value):
        recording.faults.append(
            f"{key} is {value.layout} on {value.device}, expected a plain tensor".replace("torch.", "")
        )
        return None
    if value.ndim == axes + 1 and value.shape[0] == 1:
        value = value[0]
    if value.ndim == axes + 1 and value.shape[0] > 1 and not kept_axis(value, axes):
        recording.faults.append(f"{key} is {list(value.shape)}: a batch of {value.shape[0]}, expected one conversation")
        return None
    if value.ndim != axes:
        words = {1: "[T]", 2: "[T, width]", 3: "[T, slots, Ht]"}[axes]
        recording.faults.append(f"{key} is {list(value.shape)}, expected {words}{kept_axis(value, axes)}")
        return None
    return value


def kept_axis(value: object, axes: int) -> str:
    """What to do with an axis of one that a tensor of ``axes`` axes has beside them, "" where it has none."""
    if not isinstance(value, Tensor) or value.ndim != axes + 1 or 1 not in value.shape:
        return ""
    at = list(value.shape).index(1)
    name = "batch axis" if at == 0 else "axis of one"
    return f"; squeeze the {name} (.squeeze({at})): {list(value.squeeze(at).shape)}"


def plain(value: Tensor) -> bool:
    """Whether a tensor has numbers of its own: not sparse, not quantised, not a shape without content."""
    return value.layout == torch.strided and not value.is_meta and not value.is_quantized


def split(recording: Recording, key: str, wide: Tensor | None, hidden: int | None) -> list[Tensor]:
    """States [T, n·Ht] side by side → n views [T, Ht]; nothing is copied."""
    if wide is None:
        return []
    if not hidden:
        recording.faults.append(
            f"{key} is {list(wide.shape)} and the width of one state is not known; give [target] with a config.json"
        )
        return []
    if wide.shape[1] % hidden:
        recording.faults.append(
            f"{key} is {wide.shape[1]} wide, no multiple of the target's {hidden}: it comes from another target"
        )
        return []
    return [wide[:, i : i + hidden] for i in range(0, wide.shape[1], hidden)]


def side_by_side(
    content: Content, index: int, known: Known, *, wide: str, final: str, words: str, others: Sequence[str] = ()
) -> Recording:
    """Aux states side by side under one key and the last state after the final norm under another.

    Args:
        content: the opened file.
        index: which conversation of it.
        known: what is known from outside.
        wide: key of the aux states [T, A·Ht].
        final: key of the last state [T, Ht].
        words: the writer's default layer ids, as a finding says them.
        others: keys that are used otherwise.
    """
    out = Recording(default=usual, default_words=words, final_norm="post")
    out.input_ids = tensor(out, content, "input_ids", index)
    out.loss_mask = tensor(out, content, "loss_mask", index)
    out.final = tensor(out, content, final, index, axes=2)
    states = tensor(out, content, wide, index, axes=2)
    out.slots = split(out, wide, states, out.final.shape[1] if out.final is not None else known.hidden)
    if len(out.slots) > 3 and out.final is not None and torch.equal(out.slots[-1], out.final):
        del out.slots[-1]
        out.notes.append(f"{wide} repeats the last state as its last slot: left out")
    used = {"input_ids", "loss_mask", wide, final, *others}
    out.unused = tuple(sorted(str(key) for key in content.item(index) if key not in used))
    return out


def stacked(recording: Recording, content: Content, scales: str = "") -> None:
    """Fills in states stacked as ``hidden_states`` [T, n, Ht] with ``token_ids`` [T], vLLM's connector's form.

    Args:
        recording: filled in place; slots are views.
        content: the opened file.
        scales: key of fp8 scales [T, 1, 1], by which states are multiplied; "" where there are none.
    """
    recording.input_ids = tensor(recording, content, "token_ids")
    states = tensor(recording, content, "hidden_states", axes=3)
    used = {"token_ids", "hidden_states", scales}
    if states is not None and states.itemsize == 1 and states.is_floating_point() and scales in content.keys:
        factor = content.get(scales)
        if tuple(factor.shape) != (len(states), 1, 1) or not factor.is_floating_point():
            found = f"{factor.dtype} {list(factor.shape)}".replace("torch.", "")
            recording.faults.append(f"{scales} is {found}, expected one number a token, [{len(states)}, 1, 1]")
            return
        # in bfloat16, as speculators' own reader hands it on
        states = (states.float() * factor.float()).to(torch.bfloat16)
        recording.notes.append("its states are stored as fp8 with one scale a token")
    recording.slots = list(states.unbind(1)) if states is not None else []
    recording.unused = tuple(sorted(content.keys - used))


def without_padding(recording: Recording, pad: int = 0) -> None:
    """Cuts a tail of ``pad`` tokens outside the reply: batched writers pad to the longest row and store it."""
    ids, mask = recording.input_ids, recording.loss_mask
    if not isinstance(ids, Tensor) or ids.ndim != 1 or not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return
    kept = ((ids != pad) | (mask != 0)).nonzero()[:, 0]
    length = int(kept[-1]) + 1 if len(kept) else len(ids)
    if length == len(ids):
        return
    recording.notes.append(f"{len(ids) - length} rows of padding at its end are left out")
    recording.input_ids, recording.loss_mask = ids[:length], mask[:length]
    recording.slots = [s[:length] if len(s) == len(ids) else s for s in recording.slots]
    if isinstance(recording.final, Tensor) and len(recording.final) == len(ids):
        recording.final = recording.final[:length]
