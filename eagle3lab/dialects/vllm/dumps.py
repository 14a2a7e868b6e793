"""Hidden states that vLLM's connector writes (``ExampleHiddenStatesConnector``, read at 0.33)."""

from __future__ import annotations

from eagle3lab.recordings import Content, FileKind, Known, Reader, Recording, stacked, usual

KIND = FileKind(
    name="vllm",
    program="vLLM 0.33, `extract_hidden_states` with `ExampleHiddenStatesConnector` (by reading)",
    files="`REQUEST_ID.safetensors`, `.lock` beside it",
    holds="`hidden_states` [T, n, Ht], slots in ascending id order; `token_ids` [T]: the prompt, or all tokens but the "
    "last with `include_output_tokens`",
    traps="the ids asked for are not stored; id L is the last residual **before** the final norm; no loss mask; "
    "generated tokens are missing by default",
    does="boundaries from case.toml, else for 3 or 4 slots (2, L//2, L-3[, L]), said as assumed (S011); without a mask "
    "every token counts as reply (S012)",
)


def _fits(content: Content) -> bool:
    return {"hidden_states", "token_ids"} <= content.keys


def _read(content: Content, index: int, known: Known) -> Recording:
    out = Recording(default=usual, default_words="the usual request of [2, L//2, L-3] and L")
    stacked(out, content)
    return out


READERS = (Reader(KIND, _fits, _read),)
