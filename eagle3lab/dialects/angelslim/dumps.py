"""AngelSlim's hidden-state files (``tools/generate_hidden_for_draft_model.py``, read at 67394ce)."""

from __future__ import annotations

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, side_by_side

KIND = FileKind(
    name="angelslim",
    program="Tencent AngelSlim (by reading)",
    files="`rank_R/rows_A-B/data_N.ckpt`",
    holds="torch dict with a batch axis of 1: `input_ids` [1, T], `loss_mask` [1, T], `hidden_states` [1, T, 3·Ht], "
    "`target_hiddens` [1, T, Ht] **after** the final norm; `position_ids`, `inputs_embeds` for VLMs",
    traps="N is counted by rank, so every rank has a `data_0`; no layer ids; the norm hook may have fallen back to the "
    "state before the norm with a warning",
    does="samples of one number are told apart by their folders; boundaries from case.toml, else (2, L//2, L-3), said "
    "as assumed (S011)",
)


def _fits(content: Content) -> bool:
    return {"hidden_states", "target_hiddens"} <= content.keys


def _read(content: Content, index: int, known: Known) -> Recording:
    words = "AngelSlim's default layer ids [1, L//2-1, L-4]"
    return side_by_side(content, index, known, wide="hidden_states", final="target_hiddens", words=words)


READERS = (Reader(KIND, _fits, _read),)
