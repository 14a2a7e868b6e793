"""speculators' hidden-state files, three generations (read at 0.3.0, 0.4.0, 0.9.0; run at 0.4.0 and 0.9.0)."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from eagle3lab.dialects.speculators import arrow
from eagle3lab.errors import BadFile
from eagle3lab.recordings import (
    Content,
    FileKind,
    Known,
    Reader,
    Recording,
    plain,
    side_by_side,
    stacked,
    tensor,
    usual,
)
from eagle3lab.tensors import read_json

FIRST = FileKind(
    name="speculators-research",
    program="speculators, research code before 0.3 (by reading)",
    files="`*.pt`",
    holds="torch dict: `input_ids` [T], `loss_mask` [T], `hidden_state` [T, 3·Ht], `target` [T, Ht] **after** the "
    "final norm",
    traps="`hidden_state` is the aux states here, the last state in SpecForge's files",
    does="boundaries from case.toml, else (2, L//2, L-3), said as assumed (S011)",
)

SECOND = FileKind(
    name="speculators-0.3",
    program="speculators 0.3, 0.4",
    files="`data_N.pt`, with `data_config.json`, `sample_lengths.json` (0.4), `token_freq.pt`",
    holds="torch dict: `input_ids` [T], `loss_mask` [T], `hidden_states`: a list of four [T, Ht], the last one "
    "**before** the final norm",
    traps="states are captured **after** layer k, one boundary later than the same numbers since 0.5 and in vLLM; the "
    "saved draft config had no ids",
    does="boundaries k + 1 from `data_config.json`, else from case.toml, else (3, L//2+1, L-2, L), said as assumed "
    "(S011)",
)

THIRD = FileKind(
    name="speculators",
    program="speculators since 0.5",
    files="`hidden_states/hs_N.safetensors` beside an Arrow data set (`data-*.arrow`, `state.json`)",
    holds="`hidden_states` [T, n+1, Ht], the last one **before** the final norm; `token_ids` [T]; row N of the data "
    "set has `input_ids` and `loss_mask`; fp8 with `hidden_states_scales` [T, 1, 1]",
    traps="the mask is not in the shard; ids as vLLM was asked for them are not stored; numbers missing after an "
    "interrupted run; a file cut off by an interrupted move",
    does="joins the row of the same number and compares its tokens; boundaries from case.toml, else (2, L//2, L-3, L), "
    "said as assumed (S011)",
)

_NUMBERED = re.compile(r"(hs|data)_(\d+)")


def _after_layer(layers: int, slots: int) -> tuple[int, ...] | None:
    """Boundaries that 0.3 and 0.4 captured for [2, L//2, L-3, L-1]: the stream after each layer."""
    return (3, layers // 2 + 1, layers - 2, layers) if slots == 4 else None


def _read_first(content: Content, index: int, known: Known) -> Recording:
    words = "speculators' default layer ids [2, L//2, L-3]"
    return side_by_side(content, index, known, wide="hidden_state", final="target", words=words)


def _fits_second(content: Content) -> bool:
    return isinstance(content.get("hidden_states"), list | tuple) and "input_ids" in content.keys


def _read_second(content: Content, index: int, known: Known) -> Recording:
    words = "captured after layers [2, L//2, L-3, L-1], the default of 0.3 and 0.4"
    out = Recording(default=_after_layer, default_words=words)
    out.input_ids = tensor(out, content, "input_ids")
    out.loss_mask = tensor(out, content, "loss_mask")
    out.slots = list(content.get("hidden_states"))
    if any(isinstance(state, Tensor) and not plain(state) for state in out.slots):
        out.faults.append("hidden_states holds sparse or empty tensors, expected plain ones")
    out.unused = tuple(sorted(content.keys - {"input_ids", "loss_mask", "hidden_states"}))
    if ids := _layer_ids(content.file.parent):
        if len(ids) == len(out.slots):
            out.boundaries = tuple(k + 1 for k in ids)
        else:
            out.faults.append(f"holds {len(out.slots)} states, data_config.json lists layer_ids {ids}")
    return out


def _layer_ids(folder: Path) -> list[int]:
    """``hidden_states.layer_ids`` of the ``data_config.json`` beside the shards, [] where there is none."""
    file = folder / "data_config.json"
    if not file.is_file():
        return []
    table = read_json(file).get("hidden_states")
    ids = table.get("layer_ids") if isinstance(table, dict) else None
    if not isinstance(ids, list) or not all(isinstance(k, int) and not isinstance(k, bool) for k in ids):
        raise BadFile(file, f"key 'hidden_states.layer_ids' is {ids!r}, expected a list of whole numbers")
    return ids


def _fits_third(content: Content) -> bool:
    named = _NUMBERED.fullmatch(content.file.stem)
    return {"hidden_states", "token_ids"} <= content.keys and named is not None


def _read_third(content: Content, index: int, known: Known) -> Recording:
    words = "the default [2, L//2, L-3, L] of speculators' launcher"
    out = Recording(default=usual, default_words=words)
    stacked(out, content, scales="hidden_states_scales")
    number = int(content.file.stem.split("_")[1])
    folder = arrow.beside(content.file)
    if folder is None:
        out.notes.append("no Arrow data set is beside it: the loss mask is in that")
        return out
    row = arrow.row(folder, number)
    if row is None or "input_ids" not in row or "loss_mask" not in row:
        out.notes.append(f"row {number} of the Arrow data set is not there, or has no input_ids and loss_mask")
        return out
    _join(out, row, number)
    return out


def _join(out: Recording, row: dict[str, Tensor], number: int) -> None:
    """Takes the row's mask if the row is of the same tokens, as speculators' own reader asks."""
    ids, mine = row["input_ids"], out.input_ids
    if not isinstance(mine, Tensor) or out.faults:
        return
    if len(ids) == len(mine) and bool((ids == mine).all()):
        out.loss_mask = row["loss_mask"]
        return
    shared = min(len(ids), len(mine))
    first = int((ids[:shared] != mine[:shared]).to(torch.int8).argmax()) if shared else 0
    out.faults.append(
        f"token_ids [{len(mine)}] are not those of row {number} of the Arrow data set [{len(ids)}], first at place "
        f"{first}; speculators skips such rows: prepare the data set and record the states from one run"
    )


READERS = (
    Reader(FIRST, lambda content: {"hidden_state", "target", "input_ids"} <= content.keys, _read_first),
    Reader(SECOND, _fits_second, _read_second),
    Reader(THIRD, _fits_third, _read_third),
)
