"""Every kind of recorded hidden states, in the order in which readers are asked whether an opened file is theirs."""

from __future__ import annotations

from eagle3lab.dialects import lab
from eagle3lab.dialects.angelslim import dumps as angelslim
from eagle3lab.dialects.automodel import dumps as automodel
from eagle3lab.dialects.modelopt import dumps as modelopt
from eagle3lab.dialects.sglang import dumps as sglang
from eagle3lab.dialects.specforge import dumps as specforge
from eagle3lab.dialects.speculators import dumps as speculators
from eagle3lab.dialects.trtllm import dumps as trtllm
from eagle3lab.dialects.vllm import dumps as vllm
from eagle3lab.recordings import Content, Reader

READERS: tuple[Reader, ...] = tuple(
    reader
    for module in (lab, specforge, speculators, modelopt, trtllm, angelslim, automodel, vllm, sglang)
    for reader in module.READERS
)
"""vLLM's form comes after speculators', which is the same with another name and a data set beside it."""

NOT_USABLE = {
    frozenset(
        {"hidden_state", "input_ids"}
    ): "EAGLE-1/2 data: a last state only, and an EAGLE-3 draft needs aux states",
    frozenset(
        {"hidden_states", "target_last_hidden_states"}
    ): "a DFlash or DSpark dump, made for another kind of draft",
    frozenset({"hidden_states", "input_ids", "loss_mask"}): "a DFlash dump, or another's whose slots nothing names",
}
"""Keys of recordings that are known and of no use here, and what they are."""


def reader_of(content: Content) -> Reader | None:
    """The reader of an opened file's kind, None when no kind has such keys."""
    return next((reader for reader in READERS if reader.fits(content)), None)


def unusable(content: Content) -> str:
    """What a file that no reader takes is, in words, "" when that is not known either."""
    return next((words for keys, words in NOT_USABLE.items() if keys <= content.keys), "")
