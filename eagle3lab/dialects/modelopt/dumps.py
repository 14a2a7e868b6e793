"""modelopt's hidden-state files (``examples/speculative_decoding/collect_hidden_states``, read at a2fbac7)."""

from __future__ import annotations

import torch

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, plain, side_by_side

KIND = FileKind(
    name="modelopt",
    program="NVIDIA Model-Optimizer: HF, TensorRT-LLM and vLLM scripts (by reading)",
    files="`CONVERSATION_ID.pt`",
    holds="torch dict: `input_ids` [T], `aux_hidden_states` [T, A·Ht], `hidden_states` [T, Ht], `loss_mask` [T], "
    "`conversation_id`",
    traps="three scripts write the same keys: the HF and TensorRT-LLM ones a last state **after** the final norm, the "
    "vLLM one **before** it and without saying so; the same ids mean boundaries one apart; TensorRT-LLM's has no "
    "`loss_mask`; another mask than trained with unless `answer_only_loss`",
    does="boundaries from case.toml, else (2, L//2, L-3), said as assumed (S011); takes `hidden_states_prenorm` at its "
    "word, else after the norm as modelopt's reader does; S004 tells by evidence",
)


def _fits(content: Content) -> bool:
    return {"aux_hidden_states", "hidden_states", "input_ids"} <= content.keys and content.file.suffix != ".safetensors"


def _read(content: Content, index: int, known: Known) -> Recording:
    out = side_by_side(
        content, index, known, wide="aux_hidden_states", final="hidden_states",
        words="modelopt's default layer ids [1, L//2-1, L-4]", others=("conversation_id", "hidden_states_prenorm"),
    )  # fmt: skip
    prenorm = content.get("hidden_states_prenorm")
    if isinstance(prenorm, torch.Tensor) and prenorm.numel() == 1 and plain(prenorm):
        prenorm = prenorm.item()
    if isinstance(prenorm, bool | int) and prenorm in (0, 1):
        out.final_norm, out.final_stated = "pre" if prenorm else "post", True
    elif prenorm is not None:
        out.faults.append(f"hidden_states_prenorm is {str(prenorm)[:40]!r}, expected true or false")
    if (name := content.get("conversation_id")) is not None:
        out.origin = f"conversation {name}"
    return out


READERS = (Reader(KIND, _fits, _read),)
