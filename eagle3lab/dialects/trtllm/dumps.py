"""TensorRT-LLM's raw hidden-state files (``SaveHiddenStatesDecodingConfig``; by reading)."""

from __future__ import annotations

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, side_by_side

KIND = FileKind(
    name="trtllm",
    program="TensorRT-LLM, `SaveHiddenStatesDecodingConfig` (by reading)",
    files="`PREFIX_N.pt`, N from 1",
    holds="a list, one dict a request of the iteration: `id`, `input_ids` [T], `hidden_state` [T, Ht] **after** the "
    "final norm, `aux_hidden_states` [T, A·Ht]",
    traps="older versions wrote `hidden_state_features` for the aux states; layer -1 asked for by hand puts the final "
    "state behind them; no loss mask; several requests in one file, N the last one's",
    does="one sample a request (`PREFIX_N.0`, …); without a mask every token counts as reply (S012)",
)


def _fits(content: Content) -> bool:
    is_list = isinstance(content.value, list)
    return is_list and {"input_ids", "hidden_state"} <= content.keys


def _count(content: Content) -> int:
    return len(content.value)


def _read(content: Content, index: int, known: Known) -> Recording:
    wide = "aux_hidden_states" if "aux_hidden_states" in content.item(index) else "hidden_state_features"
    words = "TensorRT-LLM's default layers (1, L//2-1, L-4)"
    out = side_by_side(content, index, known, wide=wide, final="hidden_state", words=words, others=("id",))
    if (name := content.get("id", index)) is not None:
        out.origin = f"request {name}"
    return out


READERS = (Reader(KIND, _fits, _read, _count),)
