"""The shape trace: each operation of one draft step, from headers alone, and what a mismatch means."""

from __future__ import annotations

from eagle3lab.draft import Draft
from eagle3lab.errors import BadShape
from eagle3lab.reading import Reading
from eagle3lab.trace import causes
from eagle3lab.trace.layers import layer_operations
from eagle3lab.trace.operations import Operation, fit, op

__all__ = ["Operation", "trace"]


def trace(draft: Draft, reading: Reading, rows: int, width: int | None = None) -> list[Operation]:
    """The operations of step 0 under ``reading`` for ``rows`` positions.

    Args:
        draft: only its headers are read.
        reading: how it is run.
        rows: T-1.
        width: Ht of the recorded states; the target's when None.

    Raises:
        BadShape: at the first operation whose widths do not fit, with the likely causes.
    """
    a = draft.arch
    width = width or a.target_hidden
    states = len(reading.aux)
    fused = states * width
    ops = [
        Operation(
            "aux states",
            (rows, states, width),
            "",
            None,
            (rows, fused),
            "[T-1, A·Ht]",
            f"cat of boundaries {list(reading.aux)}",
        )
    ]
    if reading.aux_norm == "input_norm":
        fit(draft, "input_norm", "input_norm.weight", -1, fused, [])
        ops.append(op(draft, "input_norm", (rows, fused), "input_norm.weight", (rows, fused), "[T-1, A·Ht]"))
    elif reading.aux_norm == "fc_norm":
        for slot in range(states):
            fit(draft, "fc_norm.k", f"fc_norm.{slot}.weight", 0, width, [])
        ops.append(
            op(
                draft,
                "fc_norm.k",
                (rows, fused),
                "fc_norm.0.weight",
                (rows, fused),
                "[T-1, A·Ht]",
                "one a state",
            )
        )
    if reading.fc == "applied":
        fit(draft, "fc", "fc.weight", 1, fused, causes.of_fc(draft, states, width))
        fit(draft, "fc", "fc.weight", 0, a.hidden, [])
        ops.append(op(draft, "fc", (rows, fused), "fc.weight", (rows, a.hidden), "[T-1, H]", "fuses the aux states"))
    elif fused != a.hidden:
        raise BadShape(
            "fc skipped",
            f"{states} states of {width} give width {fused}",
            f"the layer takes {a.hidden}",
            ["the draft needs its fc: set fc to 'applied' in the reading"],
        )
    ops.append(
        Operation(
            "embedding",
            (rows,),
            f"{reading.embedding} embed_tokens.weight",
            (a.vocab, a.hidden),
            (rows, a.hidden),
            "[T-1, H]",
            "of token t+1",
        )
    )
    for layer in range(a.layers):
        ops += layer_operations(draft, reading, layer, rows)
    ops.append(
        op(
            draft,
            "norm",
            (rows, a.hidden),
            "norm.weight",
            (rows, a.hidden),
            "[T-1, H]",
            f"feeds lm_head; the state handed on is {reading.feedback.replace('_', '-')}",
        )
    )
    if reading.head == "own":
        fit(draft, "lm_head", "lm_head.weight", 1, a.hidden, [])
    _rest(draft, reading)
    ops.append(op(draft, "lm_head", (rows, a.hidden), "lm_head.weight", (rows, a.draft_vocab), "[T-1, Vd]"))
    ops.append(
        Operation(
            "hot_token_id",
            (rows,),
            "d2t",
            draft.shape("d2t"),
            (rows,),
            "[T-1]",
            f"draft id → target id, read as {reading.vocab_map}",
        )
    )
    return ops


def _rest(draft: Draft, reading: Reading) -> None:
    """Norms, biases and whatever else the forward multiplies with: torch would stretch a tensor of one entry."""
    unused = {"fc.weight", "d2t", "t2d", *reading.dropped}
    unused |= {"embed_tokens.weight"} if reading.embedding == "target" else set()
    unused |= {"lm_head.weight"} if reading.head == "target" else set()
    for row in draft.rows:
        if not row.fits and row.canonical not in unused:
            raise BadShape(
                row.canonical or row.stored,
                f"{row.info.file}: {row.stored} is {list(row.info.shape)}",
                f"[{', '.join(row.symbols or ())}] = {list(row.expected or ())} is expected",
                [*filter(None, [causes.turned(draft, row.canonical) if row.canonical else ""]), causes.OTHER],
            )
