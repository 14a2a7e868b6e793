"""What every plot returns, and what they share: style, colours, number formats, plain numbers from anything."""

from __future__ import annotations

import base64
import io
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib.style
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import ScaledTranslation

STYLE = Path(__file__).parents[1] / "lab.mplstyle"
WIDTH = 8.6
"""Width of a picture in inches: 860 CSS pixels, a notebook's column."""
DPI = 100

CONFIGURED = "#d55e00"
FITTED = "#0072b2"
ENGINE = "#2b3038"
TRAINING = "#009e73"
PREDICTED = "#8a4f9e"
TIE = "#7fb2d8"
OTHER = "#98a1ad"
INK, SOFT, FAINT, LINE = "#1d2430", "#4a5361", "#7d8694", "#d8dce2"

COLOURS = {
    "configured": CONFIGURED,
    "fitted": FITTED,
    "engine": ENGINE,
    "measured": ENGINE,
    "training": TRAINING,
    "trained": TRAINING,
    "predicted": PREDICTED,
    "tie": TIE,
}
"""First word of a label → its colour, the same in every picture and table; a safe choice for colour-blind eyes."""
MARKERS = {CONFIGURED: "o", FITTED: "o", ENGINE: "s", TRAINING: "D", PREDICTED: "^"}
SPARE = ("#56b4e9", "#b58900", "#cc79a7", OTHER)

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with the sentence that says what it shows; the last expression of a cell shows both.

    Attributes:
        figure: the drawing, attached to no window and no global state.
        alt: what is to be seen, with the numbers that matter, for those who do not see it.
    """

    figure: Figure
    alt: str

    def _png(self, scale: float) -> bytes:
        buffer = io.BytesIO()
        with styled():
            self.figure.savefig(buffer, format="png", dpi=DPI * scale, metadata={"Description": self.alt})
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        """PNG at twice the screen's density, the alt text beside it."""
        png = self._png(2)
        width = struct.unpack(">I", png[16:20])[0] // 2
        data = {"image/png": base64.b64encode(png).decode("ascii"), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, "width": width}}

    def save(self, path: str | Path) -> Path:
        """Writes the picture; the suffix names the format (png, svg, pdf). Returns the path."""
        path = Path(path)
        if path.suffix.lower() == ".png":
            path.write_bytes(self._png(2))
        else:
            with styled():
                self.figure.savefig(path)
        return path


@contextmanager
def styled() -> Iterator[None]:
    """The lab's style on matplotlib's defaults; whatever the user had set is back afterwards."""
    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def drawn(function: Callable[P, Picture]) -> Callable[P, Picture]:
    """Draws under the lab's style."""

    @wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> Picture:
        with styled():
            return function(*args, **kwargs)

    return draw


def new(height: float, width: float = WIDTH) -> Figure:
    """An empty figure in inches that lays itself out."""
    return Figure(figsize=(width, height), layout="constrained")


def nothing(sentence: str) -> Picture:
    """A picture that says in words why there is nothing to draw."""
    figure = new(0.7)
    figure.text(0.012, 0.5, sentence, va="center", color=SOFT, style="italic")
    return Picture(figure, sentence)


def floats(values: Any) -> np.ndarray:
    """``values`` (list, array, tensor of any float type, with None for unknown) as float64."""
    if hasattr(values, "detach"):  # a torch tensor; numpy does not know bfloat16
        values = values.detach().cpu().double().numpy()
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.astype(np.float64)
    if isinstance(values, Iterable) and not isinstance(values, str):
        return np.array([floats(v) if isinstance(v, list | tuple) else number(v) for v in values], dtype=np.float64)
    return np.array(number(values))


def number(value: Any) -> float:
    """``value`` as a float, NaN for None or a word that is none."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        return float("nan")


def known(value: Any) -> bool:
    """Whether ``value`` is a finite number."""
    return math.isfinite(number(value))


def show(value: Any, digits: int = 3) -> str:
    """A rate or length with ``digits`` decimals, a dash when it is not known."""
    value = number(value)
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def count(value: Any) -> str:
    """An integer with separators, a dash when it is not known."""
    return f"{int(number(value)):,}" if known(value) else "–"


def amount(value: float, _: Any = None) -> str:
    """A number of any size in few characters, for ticks and labels."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.0e}".replace("e+0", "e")
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


AMOUNT = FuncFormatter(amount)


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


def label(text: Any, limit: int = 34) -> str:
    """``text`` on one line of at most ``limit`` characters; what the font cannot draw becomes ``�``."""
    line = "".join(c if ord(c) in _glyphs() and c.isprintable() else "�" for c in " ".join(str(text).split()))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def tail(name: str, limit: int) -> str:
    """A tensor's name without ``.weight``; of a long one the end, which tells it from others."""
    name = label(name.removesuffix(".weight"), 10_000)
    return name if len(name) <= limit else "…" + name[1 - limit :]


def colour_of(name: str, place: int = 0) -> str:
    """The fixed colour of a series by the first word of its name, else a spare one."""
    words = name.split()
    return COLOURS.get(words[0].lower().strip(":,(") if words else "", SPARE[place % len(SPARE)])


def marker_of(colour: str) -> str:
    """The marker that goes with a colour, so that colour is never the only cue."""
    return MARKERS.get(colour, "o")


def boundaries(aux: Sequence[Any]) -> str:
    """``(0, 15, 27)``."""
    return "(" + ", ".join(str(k) for k in aux) + ")"


def first(names: Sequence[Any], limit: int, what: str) -> str:
    """``" – first 40 of 100 samples shown"``, empty when all fit."""
    return f" – first {limit} of {len(names):,} {what} shown" if len(names) > limit else ""


def note(axes: Axes, text: str, xy: tuple[Any, Any], offset: tuple[float, float] = (0, 0), **more: Any) -> None:
    """``text`` at ``xy``, moved by ``offset`` points."""
    look: dict[str, Any] = {"size": 8, "color": SOFT, **more}
    axes.annotate(text, xy, xytext=offset, textcoords="offset points", **look)


def beside(axes: Axes, y: float, text: str, colour: str = SOFT) -> None:
    """``text`` to the right of the row at height ``y``."""
    axes.text(1.012, y, text, transform=axes.get_yaxis_transform(), va="center", size=7.8, color=colour)


def rows_of(axes: Axes, names: Sequence[str]) -> None:
    """One named row after the other from the top, as in every picture that lists things."""
    axes.set_yticks(range(len(names)), list(names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(False)
    axes.grid(True, axis="x")


def headroom(axes: Axes, values: Iterable[float], least: float = 0.1) -> None:
    """Y from 0 to a little over the largest value."""
    finite = [v for v in values if math.isfinite(v)]
    axes.set_ylim(0, max([*finite, least]) * 1.14)


def key(axes: Axes) -> None:
    """The legend as one line over the axes, under a title with ``pad=26``."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        above = axes.transAxes + ScaledTranslation(0, 6 / 72, axes.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
        axes.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=above, ncols=4, labelcolor=SOFT
        )


def listing(pairs: Mapping[str, Any] | Sequence[tuple[str, Any]], limit: int = 8) -> str:
    """``"a 0.6, b 0.5 and 3 more"`` for an alt text."""
    items = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    text = ", ".join(f"{name} {value}" for name, value in items[:limit])
    return text + (f" and {len(items) - limit} more" if len(items) > limit else "")
