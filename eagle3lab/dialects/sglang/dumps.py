"""Hidden states in SGLang's answers (``return_hidden_states``, read at 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eagle3lab.recordings import MOST_LOOKED_AT, Content, FileKind, Known, Reader, Recording, split, usual

KIND = FileKind(
    name="sglang",
    program="SGLang, answers of `/generate` with `return_hidden_states` (by reading)",
    files="`*.json`, `*.jsonl`: one answer, a list, or one a line",
    holds="`meta_info.hidden_states`: the prompt's rows as one nested list, then one row a generated token; "
    "`output_ids`; put the request's `input_ids` beside them",
    traps="the prompt's tokens are not in the answer; a cached prefix is not computed again and has no rows; without "
    "`--enable-return-aux-hidden-states` (or EAGLE3) rows hold the final state only; no row for the last token",
    does="one sample an answer, prompt masked; the last token, which has no row, is left out; boundaries from "
    "case.toml, else (2, L//2, L-3), said as assumed (S011)",
)


def _fits(content: Content) -> bool:
    """One answer with states is enough: the others say themselves what they lack."""
    answers = content.value[:MOST_LOOKED_AT] if isinstance(content.value, list) else [content.value]
    metas = [answer.get("meta_info") for answer in answers if isinstance(answer, dict)]
    return any(isinstance(meta, Mapping) and "hidden_states" in meta for meta in metas)


def _count(content: Content) -> int:
    return len(content.value) if isinstance(content.value, list) else 1


def _read(content: Content, index: int, known: Known) -> Recording:
    out = Recording(default=usual, default_words="SGLang's default [2, L//2, L-3]")
    meta = content.get("meta_info", index)
    if not isinstance(meta, Mapping) or "hidden_states" not in meta:
        out.faults.append(f"answer {index} has no meta_info.hidden_states; ask with return_hidden_states")
        return out
    prompt = _prompt(content.item(index), meta)
    reply = content.get("output_ids", index)
    if prompt is None:
        out.faults.append("no prompt token ids; put the request's under the key 'input_ids' beside the answer")
    if not _whole(reply):
        out.faults.append("no 'output_ids'; ask SGLang for token ids, or put them beside the answer")
    rows = _rows(meta["hidden_states"], out)
    if out.faults or prompt is None:
        return out
    tokens = [*prompt, *reply]
    if len(rows) == len(tokens) - 1:
        tokens = tokens[:-1]
        out.notes.append("the last token has no row and is left out")
    if missing := meta.get("cached_tokens"):
        out.notes.append(f"{missing} tokens of the prompt came from the cache: their rows are missing; switch it off")
    out.input_ids = torch.tensor(tokens)
    out.loss_mask = (torch.arange(len(tokens)) >= len(prompt)).to(torch.uint8)
    out.slots = split(out, "hidden_states", rows, known.hidden)
    if len(out.slots) == 1:
        out.final, out.slots, out.final_norm = out.slots[0], [], "post"
    out.origin = f"request {meta.get('id', index)}"
    return out


def _prompt(item: Any, meta: Mapping[str, Any]) -> list[int] | None:
    for key in ("input_ids", "prompt_token_ids"):
        if _whole(item.get(key)):
            return list(item[key])
    logged = meta.get("input_token_logprobs")  # [log-probability, id, text] of each prompt token
    ids = (
        [entry[1] for entry in logged if isinstance(entry, list) and len(entry) > 1] if isinstance(logged, list) else []
    )
    return ids if _whole(ids) else None


def _whole(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 1 << 62 for i in value)


def _rows(listed: Any, out: Recording) -> torch.Tensor:
    """Rows float32 [T, width] of the prompt's nested list and the single ones after it."""
    rows: list[Any] = []
    for entry in listed if isinstance(listed, list) else ():
        nested = isinstance(entry, list) and bool(entry) and isinstance(entry[0], list)
        rows += entry if nested else [entry]
    try:
        table = torch.tensor(rows, dtype=torch.float32)
    except (TypeError, ValueError, OverflowError) as error:
        out.faults.append(f"meta_info.hidden_states is not rows of numbers of one width ({error})")
        return torch.empty(0, 0)
    if table.ndim != 2:
        out.faults.append(f"meta_info.hidden_states is {list(table.shape)}, expected rows of numbers")
        return torch.empty(0, 0)
    return table


READERS = (Reader(KIND, _fits, _read, _count),)
