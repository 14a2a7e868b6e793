"""The block diagram of an EAGLE-3 draft with the checkpoint's real dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from eagle3lab.plots.picture import FAINT, INK, LINE, SOFT, Picture, drawn, label

WIDE, HIGH = 9.0, 6.3
WIRE, HANDED = "#5a6372", "#9a6b00"
KINDS = {
    "weight": ("#e6eef6", "#9db4cb"),
    "norm": ("#f4f1ea", "#cfc6b2"),
    "step": ("#ffffff", "#b4bac4"),
    "data": ("#eef1f4", "#eef1f4"),
}
"""Kind of box → fill and edge: tensors of the file, norms, operations without weights, what flows in and out."""

ARROW: dict[str, Any] = {"arrowstyle": "-|>,head_length=3.2,head_width=1.7", "fill": True, "joinstyle": "round"}

Point = tuple[float, float]


class _Dims:
    """The dimensions as text; what is missing shows as ``?``."""

    def __init__(self, dims: Mapping[str, Any]):
        self.dims = dims

    def __getitem__(self, name: str) -> str:
        value = self.dims.get(name)
        return "?" if value is None or value != value else str(value)

    def times(self, a: str | int, b: str) -> str:
        left, right = (a if isinstance(a, int) else self.dims.get(a)), self.dims.get(b)
        return str(left * right) if isinstance(left, int) and isinstance(right, int) else "?"


@drawn
def draft_map(dims: Mapping[str, Any]) -> Picture:
    """How one draft step runs, box by box, with this checkpoint's shapes.

    Args:
        dims: ``H``, ``Ht``, ``A``, ``heads``, ``kv_heads``, ``head_dim``, ``I``, ``V``, ``Vd``, ``layers``, ``aux``
            (boundaries, in order), ``fc``, ``own_embedding``, ``own_head`` (bool), ``aux_norm``, ``residual``,
            ``feedback`` (words of the Reading). A missing one shows as ``?``.

    Returns:
        The diagram; token and state come in on the left, the draft token leaves on the right.
    """
    d = _Dims(dims)
    figure = Figure(figsize=(WIDE, HIGH))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDE), ylim=(0, HIGH))
    axes.axis("off")
    raw = dims.get("aux")
    aux = list(raw) if isinstance(raw, Sequence) and not isinstance(raw, str) else []
    axes.text(0.2, 6.08, "One step of this EAGLE-3 draft", weight="bold", size=11, va="center")
    names = {"H": "H", "Ht": "Ht", "A": "A", "d": "head_dim", "I": "I", "V": "V", "Vd": "Vd"}
    sizes = [f"{symbol} {d[name]}" for symbol, name in names.items()]
    axes.text(8.8, 6.08, "   ".join(sizes), size=7.5, color=FAINT, ha="right", va="center")
    for x, w, title in ((0.42, 3.55, "INPUTS"), (4.64, 2.5, _layers_title(dims)), (7.4, 1.4, "DRAFT TOKEN")):
        axes.add_patch(
            FancyBboxPatch((x, 0.72), w, 4.62, "round,pad=0,rounding_size=0.1", fc="#fafbfc", ec="#e8eaee", lw=0.8)
        )
        axes.text(x + 0.1, 5.2, title, size=7, color=FAINT, weight="bold", va="center")
    state = _inputs(axes, d, aux)
    added = _layer(axes, d, state)
    _token(axes, d, added, state)
    return Picture(figure, _alt(d, aux))


def _layers_title(dims: Mapping[str, Any]) -> str:
    layers = dims.get("layers")
    return f"LAYER 0 OF {layers} (MIDLAYER)" if isinstance(layers, int) and layers > 1 else "DECODER LAYER (MIDLAYER)"


def _inputs(axes: Axes, d: _Dims, aux: list[Any]) -> float:
    """Token and aux states down to their concatenation; returns the height where the state is handed in."""
    left, right = 1.13, 2.9
    _box(axes, left, 4.72, 1.2, 0.5, "token t+1", "", "data")
    axes.text(right, 5.05, "the target's states at position t", size=6.5, color=FAINT, ha="center", va="center")
    whose = "draft's own" if d.dims.get("own_embedding") else "target's"
    _box(axes, left, 3.55, 1.3, 0.56, "embed_tokens", f"[{d['V']} × {d['H']}]", "weight")
    axes.text(left, 3.17, f"the {whose} table", size=6.5, color=FAINT, ha="center", va="center")
    _box(axes, left, 1.95, 1.3, 0.42, "input_layernorm", f"[{d['H']}]", "norm")
    shown: list[Any] = aux if len(aux) <= 4 else [*aux[:2], "…", aux[-1]]
    pitch = min(0.62, 2.05 / max(len(shown), 1))
    for place, boundary in enumerate(shown):
        x = right + (place - (len(shown) - 1) / 2) * pitch
        name, detail = _boundary(boundary)
        _box(axes, x, 4.72, pitch - 0.06, 0.5, name, detail, "data", small=6)
        _wire(axes, [(x, 4.47), (x, 4.27)])
    fused = d.times(len(aux), "Ht") if aux else d.times("A", "Ht")
    states = len(aux) if aux else d["A"]
    norm = {"input_norm": "input_norm over all", "fc_norm": "each by its fc_norm"}.get(str(d.dims.get("aux_norm")), "")
    _box(axes, right, 4.08, 1.86, 0.36, "concat", f"{states} × {d['Ht']} = {fused}", "step", line=True)
    axes.text(right + 0.08, 3.72, norm, size=6.5, color=SOFT, va="center")
    _wire(axes, [(right, 3.9), (right, 3.5)])
    if d.dims.get("fc", True):
        _box(axes, right, 3.25, 1.5, 0.5, "fc", f"[{d['H']} × {d.times('A', 'Ht')}]", "weight")
    else:
        _box(axes, right, 3.25, 1.5, 0.5, "fc skipped", "the state goes straight in", "step", small=6)
    _box(axes, right, 1.95, 1.3, 0.42, "hidden_norm", f"[{d['H']}]", "norm")
    _wire(axes, [(right, 3.0), (right, 2.16)])
    _wire(axes, [(left, 4.47), (left, 3.83)])
    _wire(axes, [(left, 3.06), (left, 2.16)])
    _box(
        axes,
        2.02,
        1.12,
        2.9,
        0.4,
        "concat",
        f"[embedding ; state]  2H = {d.times(2, 'H')}",
        "step",
        line=True,
    )
    _wire(axes, [(left, 1.74), (left, 1.32)])
    _wire(axes, [(right, 1.74), (right, 1.32)])
    return 2.62


def _boundary(boundary: Any) -> tuple[str, str]:
    if boundary == "…":
        return "…", ""
    if boundary == 0:
        return "h[0]", "embedding\noutput"
    if isinstance(boundary, int):
        return f"h[{boundary}]", f"after\nblock {boundary - 1}"
    return label(boundary, 8), "post-norm\nstate"


def _layer(axes: Axes, d: _Dims, state: float) -> float:
    """The decoder layer, upwards; returns the height of its last sum."""
    x, h, wide = 5.9, d["H"], d.times(2, "H")
    queries, keys = d.times("heads", "head_dim"), d.times("kv_heads", "head_dim")
    axes.plot([3.47, 4.2, 4.2, x + 0.76], [1.12, 1.12, 0.86, 0.86], color=WIRE, lw=1, zorder=2)
    for place, (name, rows) in enumerate((("q_proj", queries), ("k_proj", keys), ("v_proj", keys))):
        at = x + (place - 1) * 0.76
        _wire(axes, [(at, 0.86), (at, 1.0)])
        _box(axes, at, 1.23, 0.72, 0.44, name, f"[{rows} × {wide}]", "weight", small=5.7)
        _wire(axes, [(at, 1.45), (at, 1.58)])
    kv = f"{d['heads']} heads × {d['head_dim']}, {d['kv_heads']} kv heads"
    _box(axes, x, 1.81, 2.24, 0.44, "causal attention, RoPE", kv, "step")
    _wire(axes, [(x, 2.03), (x, 2.16)])
    _box(axes, x, 2.35, 1.9, 0.38, "o_proj", f"[{h} × {queries}]", "weight", line=True)
    first, last = 2.76, 4.86
    _wire(axes, [(x, 2.54), (x, first - 0.09)])
    _wire(axes, [(x, first + 0.09), (x, 3.0)])
    _box(axes, x, 3.17, 1.9, 0.34, "post_attention_layernorm", "", "norm")
    for at, name in ((5.36, "gate_proj"), (6.44, "up_proj")):
        middle = x + (at - x) * 0.9
        _wire(axes, [(middle, 3.34), (middle, 3.5)])
        _box(axes, at, 3.73, 0.98, 0.46, name, f"[{d['I']} × {h}]", "weight")
        _wire(axes, [(middle, 3.96), (middle, 4.14)])
    _box(axes, x, 4.34, 1.9, 0.4, "down_proj", f"[{h} × {d['I']}]", "weight", line=True)
    axes.text(x, 4.05, "silu(gate) · up", size=6.2, color=FAINT, ha="center", va="center")
    _wire(axes, [(x, 4.54), (x, last - 0.09)])
    _wire(axes, [(x, 2.88), (4.75, 2.88), (4.75, last), (x - 0.09, last)])
    # The state joins the first sum, before or after hidden_norm.
    if str(d.dims.get("residual", "pre_norm")) == "post_norm":
        start, rule = (2.9, 1.55), "after hidden_norm"
    else:
        start, rule = (2.9, 2.4), "before hidden_norm"
    _wire(axes, [start, (4.5, start[1]), (4.5, first), (x - 0.09, first)])
    _dot(axes, *start)
    axes.text(4.44, start[1] - 0.1, f"residual, {rule}", size=6.2, color=SOFT, ha="right", va="top")
    for y in (first, last):
        axes.add_patch(Circle((x, y), 0.09, fc="white", ec=WIRE, lw=1, zorder=4))
        axes.plot([x - 0.05, x + 0.05], [y, y], color=WIRE, lw=1, zorder=5)
        axes.plot([x, x], [y - 0.05, y + 0.05], color=WIRE, lw=1, zorder=5)
    layers = d.dims.get("layers")
    if isinstance(layers, int) and layers > 1:
        more = "then layer 1" if layers == 2 else f"then layers 1–{layers - 1}"
        axes.text(x + 0.14, last + 0.02, more, size=6.2, color=SOFT, va="bottom")
    return last


def _token(axes: Axes, d: _Dims, added: float, state: float) -> None:
    """Norm, head and map, downwards, and what goes back into the next step."""
    x = 8.1
    after = str(d.dims.get("feedback", "pre_norm")) == "post_norm"
    _wire(axes, [(5.99, added), (x, added), (x, 4.48)])
    _box(axes, x, 4.28, 1.2, 0.4, "norm", f"[{d['H']}]", "norm", line=True)
    _wire(axes, [(x, 4.08), (x, 3.54)])
    whose = "the draft's own" if d.dims.get("own_head", True) else "the target's"
    _box(axes, x, 3.25, 1.24, 0.58, "lm_head", f"[{d['Vd']} × {d['H']}]\n{whose}", "weight", small=6.5)
    _wire(axes, [(x, 2.96), (x, 2.62)])
    axes.text(x + 0.08, 2.8, "argmax", size=6.5, color=FAINT, ha="left", va="center")
    _box(axes, x, 2.32, 1.24, 0.58, "hot_token_id", f"[{d['Vd']}]\nd2t + arange", "weight", small=6.5)
    _wire(axes, [(x, 2.03), (x, 1.62)])
    _box(axes, x, 1.36, 1.2, 0.5, "target id", f"of {d['V']}", "data")
    # Back: the state over the top, the token round below.
    y = 3.8 if after else added
    corner = (
        [(x, y), (7.27, y), (7.27, 5.62), (4.28, 5.62), (4.28, state), (2.93, state)]
        if after
        else [(7.27, y), (7.27, 5.62), (4.28, 5.62), (4.28, state), (2.93, state)]
    )
    _wire(axes, corner, colour=HANDED, dashed=True)
    _dot(axes, *corner[0], colour=HANDED)
    rule = "after norm" if after else "before norm"
    axes.text(
        5.75,
        5.68,
        f"state handed to the next step, taken {rule}",
        size=7,
        color=HANDED,
        ha="center",
        va="bottom",
    )
    axes.text(3.0, state + 0.05, "from step 1 on, in place of fc", size=6.2, color=HANDED, ha="left", va="bottom")
    _wire(axes, [(x, 1.11), (x, 0.42), (0.2, 0.42), (0.2, 4.72), (0.53, 4.72)], colour=HANDED, dashed=True)
    axes.text(5.75, 0.36, "drafted token, the next step's token", size=7, color=HANDED, ha="center", va="top")


def _box(
    axes: Axes,
    x: float,
    y: float,
    w: float,
    h: float,
    name: str,
    detail: str,
    kind: str,
    *,
    small: float = 7,
    line: bool = False,
) -> None:
    """One box centred at (x, y): the name, and the shape under it (or beside it with ``line``)."""
    fill, edge = KINDS[kind]
    axes.add_patch(
        FancyBboxPatch(
            (x - w / 2, y - h / 2), w, h, "round,pad=0,rounding_size=0.05", fc=fill, ec=edge, lw=0.9, zorder=3
        )
    )
    weight = "bold" if kind == "weight" else "normal"
    size = 7.8 if len(name) < 20 else 7
    if not detail:
        axes.text(x, y, name, size=size, ha="center", va="center", zorder=5, color=INK, weight=weight)
    elif line:
        axes.text(x - w / 2 + 0.09, y, name, size=size, va="center", zorder=5, color=INK, weight=weight)
        axes.text(x + w / 2 - 0.09, y, detail, size=small, ha="right", va="center", zorder=5, color=SOFT)
    else:
        rise = min(0.1, h / 2 - 0.125) if "\n" not in detail else h / 2 - 0.12
        axes.text(x, y + rise, name, size=size, ha="center", va="center", zorder=5, color=INK, weight=weight)
        axes.text(
            x,
            y - (rise if "\n" not in detail else 0.09),
            detail,
            size=small,
            ha="center",
            va="center",
            zorder=5,
            color=SOFT,
            linespacing=1.05,
        )


def _wire(axes: Axes, points: Sequence[Point], *, colour: str = WIRE, dashed: bool = False) -> None:
    """An arrow along straight pieces."""
    axes.add_patch(
        FancyArrowPatch(
            path=Path(points),
            mutation_scale=1,
            color=colour,
            lw=1,
            zorder=2,
            **ARROW,
            linestyle=(0, (4, 2)) if dashed else "-",
        )
    )


def _dot(axes: Axes, x: float, y: float, colour: str = WIRE) -> None:
    axes.add_patch(Circle((x, y), 0.03, fc=colour, ec=LINE, lw=0, zorder=6))


def _alt(d: _Dims, aux: list[Any]) -> str:
    names = ", ".join("the embedding output" if k == 0 else str(k) for k in aux) or "unknown boundaries"
    fc = f"fc [{d['H']} × {d.times('A', 'Ht')}]" if d.dims.get("fc", True) else "no fc"
    residual, feedback = (d[name].replace("_", "-") for name in ("residual", "feedback"))
    return (
        f"Block diagram of one draft step: states of boundaries {names} of width {d['Ht']} go through {fc}, meet the "
        f"embedding of the next token (table [{d['V']} × {d['H']}]) as a {d.times(2, 'H')}-wide input, run through "
        f"{d['layers']} decoder layer(s) with {d['heads']} heads of {d['head_dim']}, {d['kv_heads']} kv heads and an "
        f"MLP of {d['I']}, then norm and lm_head [{d['Vd']} × {d['H']}]; hot_token_id maps the draft id to one of "
        f"{d['V']} target ids. The residual is taken {residual}, the state handed on {feedback}."
    )
