"""SpecForge's hidden-state files (``scripts/prepare_hidden_states.py``, read at a6b6b023 and before 0.2)."""

from __future__ import annotations

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, side_by_side, without_padding

KIND = FileKind(
    name="specforge",
    program="SpecForge, all versions",
    files="`rows_A-B/data_N.ckpt`, `data_N.ckpt.gz`",
    holds="torch dict: `input_ids` [T], `loss_mask` [T], `aux_hidden_state` [1, T, A·Ht], `hidden_state` [1, T, Ht]: "
    "the last state **after** the final norm",
    traps="the names swap in training: file `aux_hidden_state` becomes `hidden_state`, file `hidden_state` becomes "
    "`target`; no layer ids; batches padded with token 0, pads stored; numbers missing where a sample held NaN; a "
    "restart after changed layers keeps old files",
    does="boundaries from case.toml, else (2, L//2, L-3), said as assumed (S011); padding cut; `.gz` unpacked in "
    "memory",
)


def _fits(content: Content) -> bool:
    return {"aux_hidden_state", "hidden_state"} <= content.keys


def _read(content: Content, index: int, known: Known) -> Recording:
    words = "SpecForge's default layer ids [1, L//2-1, L-4]"
    out = side_by_side(content, index, known, wide="aux_hidden_state", final="hidden_state", words=words)
    without_padding(out)
    return out


READERS = (Reader(KIND, _fits, _read),)
