"""One line of the shape trace, and the check that a weight's width is the one that arrives."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lab.draft import Draft
from eagle3lab.errors import BadShape
from eagle3lab.trace.causes import OTHER, turned


@dataclass(frozen=True)
class Operation:
    """One line of the trace; shapes are the numbers, ``symbols`` the output in names."""

    name: str
    takes: tuple[int, ...]
    weight: str
    weight_shape: tuple[int, ...] | None
    gives: tuple[int, ...]
    symbols: str
    note: str = ""


def op(draft: Draft, name: str, takes: tuple[int, ...], weight: str, gives: tuple[int, ...], symbols: str,
        note: str = "") -> Operation:  # fmt: skip
    """One operation with a weight, under its stored name and with its own shape."""
    return Operation(
        name,
        takes,
        draft.stored.get(weight, f"{weight} (missing)"),
        draft.shape(weight),
        gives,
        symbols,
        note,
    )


def fit(draft: Draft, operation: str, weight: str, axis: int, width: int, causes: list[str]) -> None:
    """Refuses a weight whose ``axis`` is not ``width`` wide.

    Raises:
        BadShape: with ``causes``, the likely ones first; a matrix that lies transposed is said to, whatever they are.
    """
    shape = draft.shape(weight)
    if shape is None:
        return  # a missing tensor is its own error, raised where it is read
    if shape[axis] != width:
        stored = draft.stored[weight]
        side = "gives" if axis == 0 and len(shape) == 2 else "takes"
        verb = "is expected" if side == "gives" else "arrives"
        if transposed := turned(draft, weight):
            causes = [transposed, OTHER]
        raise BadShape(
            operation,
            f"{draft.tensors[stored].file}: {stored} {list(shape)} {side} width {shape[axis]}",
            f"width {width} {verb}",
            causes or [f"the tensor belongs to another draft, or hidden_size in config.json is not {shape[axis]}"],
        )
