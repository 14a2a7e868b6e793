"""NeMo Automodel's cached hidden states (``datasets/llm/eagle3_cache.py``, read at 36044ad)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, split, usual
from eagle3lab.records import Distribution
from eagle3lab.tensors import read_json

KIND = FileKind(
    name="automodel",
    program="NVIDIA NeMo Automodel, offline cache, format 2 (by reading)",
    files="`shard-NNNNNN.safetensors`, `manifest.json`",
    holds="stacked on axis 0: `input_ids`, `attention_mask`, `loss_mask` [n, S], `aux_hidden_states` [n, S, 3·Ht], "
    "`position_mask` [n, S, 1], `target_probs` [n, S, Vd] or `target_probs_values`, `target_probs_indices` [n, S, k]",
    traps="tokens, masks and probabilities are already shifted left by one, states are not; a distribution over the "
    "draft vocabulary instead of a final state: the target's logits outside it are gone",
    does="one sample a row (`shard-000000.0`, …), shifted back; the first token is not recorded and stands as 0; "
    "padding cut by `attention_mask`; boundaries k + 1 from the manifest's `aux_layer_ids`",
)

PROBS = ("target_probs", "target_probs_values", "target_probs_indices")
KEYS = ("input_ids", "attention_mask", "loss_mask", "aux_hidden_states", "position_mask", *PROBS)


def _fits(content: Content) -> bool:
    return "aux_hidden_states" in content.keys and bool(content.keys & {"target_probs", "target_probs_values"})


def _count(content: Content) -> int:
    shape: tuple[int, ...] = content.value["input_ids"].shape if "input_ids" in content.keys else ()
    return shape[0] if len(shape) == 2 else 1


def _read(content: Content, index: int, known: Known) -> Recording:
    out = Recording(default=usual, default_words="Automodel's default layer ids [1, L//2-1, L-4]")
    shifted, masks = _row(out, content, "input_ids", index, 1), _row(out, content, "loss_mask", index, 1)
    wide = _row(out, content, "aux_hidden_states", index, 2)
    if shifted is None or wide is None or out.faults:
        out.faults += [] if out.faults else ["input_ids and aux_hidden_states must both be there"]
        return out
    attended = _row(out, content, "attention_mask", index, 1)
    length = int((attended != 0).sum()) if attended is not None else len(shifted)
    if not length:
        out.faults.append("attention_mask marks no token")
    if attended is not None and bool((attended[:length] == 0).any()):
        out.faults.append("attention_mask has gaps, expected ones and then zeros")
    if length < len(shifted):
        out.notes.append(f"{len(shifted) - length} rows of padding at its end are left out")
    out.notes.append("token 0 is not recorded and stands as 0")
    out.input_ids = _unshifted(shifted, length)
    out.loss_mask = _unshifted(masks, length) if masks is not None else None
    ids = _whole_numbers(content, "aux_layer_ids")
    count = 3 if ids is None else len(ids)
    out.slots = split(out, "aux_hidden_states", wide[:length], known.hidden or wide.shape[1] // count)
    if ids is not None and len(ids) == len(out.slots):
        out.boundaries = tuple(k + 1 for k in ids.tolist())
    out.distribution = _distribution(out, content, index, length)
    out.unused = tuple(sorted(content.keys - set(KEYS)))
    return out


def _row(out: Recording, content: Content, key: str, index: int, axes: int) -> Tensor | None:
    """Row ``index`` of a stacked tensor, None where it is missing or of another rank."""
    value = content.get(key)
    if value is None:
        return None
    stack = tuple(content.value["aux_hidden_states"].shape[:2])
    if value.ndim != axes + 1 or tuple(value.shape[:2]) != stack or index >= len(value):
        out.faults.append(f"{key} is {list(value.shape)}, expected {axes + 1} axes that begin with {list(stack)}")
        return None
    return value[index]


def _unshifted(row: Tensor, length: int) -> Tensor:
    """Entry i of the file belongs to position i + 1; position 0 was shifted out."""
    return torch.cat((row.new_zeros(1), row[: length - 1]))


def _distribution(out: Recording, content: Content, index: int, length: int) -> Distribution | None:
    """Row j of the file is the target's distribution at position j + 1."""
    chosen = _whole_numbers(content, "selected_token_ids")
    if chosen is None:
        out.notes.append("no manifest.json with selected_token_ids: the recorded probabilities are not used")
        return None
    covered = _row(out, content, "position_mask", index, 2)
    kept = covered[: length - 1, 0].bool() if covered is not None else None
    whole = _row(out, content, "target_probs", index, 2)
    if whole is not None:
        if whole.shape[1] != len(chosen):
            out.faults.append(f"target_probs is {whole.shape[1]} wide, the manifest selects {len(chosen)} tokens")
            return None
        return Distribution(whole[: length - 1], chosen, 1, kept)
    values = _row(out, content, "target_probs_values", index, 2)
    places = _row(out, content, "target_probs_indices", index, 2)
    if values is None or places is None or values.shape != places.shape:
        out.faults.append("target_probs_values and target_probs_indices must be there and of one shape")
        return None
    places = places[: length - 1].long()
    if places.numel() and (int(places.min()) < 0 or int(places.max()) >= len(chosen)):
        out.faults.append(f"target_probs_indices reach outside the {len(chosen)} tokens that the manifest selects")
        return None
    return Distribution(values[: length - 1], chosen[places], 1, kept)


def _whole_numbers(content: Content, key: str) -> Tensor | None:
    """A list of whole numbers in the manifest: ``aux_layer_ids``, ``selected_token_ids`` (the draft's vocabulary)."""
    file = content.file.parent / "manifest.json"
    ids: Any = read_json(file).get(key) if file.is_file() else None
    whole = (
        isinstance(ids, list)
        and bool(ids)
        and all(isinstance(i, int) and not isinstance(i, bool) and abs(i) < 1 << 62 for i in ids)
    )
    return torch.tensor(ids) if whole else None


READERS = (Reader(KIND, _fits, _read, _count),)
