"""Pictures: valid PNGs with alt text, the right numbers in them, and no crash on NaN, nothing or far too much."""

from __future__ import annotations

import base64
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from eagle3lab import plots
from eagle3lab.plots import Picture
from eagle3lab.plots import picture as shared
from eagle3lab.tables import html as tables_html

NAN = float("nan")
FITTED = [0.6186, 0.5381, 0.5070, 0.4706, 0.4314]
CONFIGURED = [0.0017, 0.0026, 0.0018, 0.0018, 0.0036]
SCORED = [1172, 1156, 1140, 1124, 1108]
DIMS = {
    "H": 576,
    "Ht": 576,
    "A": 3,
    "heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "I": 1536,
    "V": 49152,
    "Vd": 8192,
    "layers": 1,
    "aux": [0, 15, 27],
    "fc": True,
    "own_embedding": False,
    "own_head": True,
    "aux_norm": "none",
    "residual": "pre_norm",
    "feedback": "pre_norm",
}


def texts(picture: Picture) -> str:
    """Every text of a figure, after it was laid out."""
    with shared.styled():
        picture.figure.draw_without_rendering()
    return "\n".join(t.get_text() for t in picture.figure.findobj(Text))


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def ranking_rows(n: int = 3) -> list[dict[str, Any]]:
    kinds = ["fitted", "tie", "configured"]
    return [
        {
            "label": f"(0, {i}, 27)",
            "accuracy": 0.6 - i / 1000,
            "low": 0.5,
            "high": 0.7,
            "kind": kinds[i] if i < 3 else "other",
        }
        for i in range(n)
    ]


def sample_rows(n: int) -> list[dict[str, Any]]:
    return [{"name": f"s{i:03}", "configured": 1.0, "fitted": 1 + i / n, "rounds": 30} for i in range(n)]


def run_rows() -> list[dict[str, Any]]:
    return [
        {"name": "right", "measured": 2.2004, "predicted": 2.1933, "low": 2.09, "high": 2.30, "k": 5},
        {"name": "none", "measured": None, "predicted": None, "low": None, "high": None, "k": 0},
    ]


def buckets(**changes: Any) -> list[dict[str, Any]]:
    row = {"low": 0, "high": 16, "rate": 0.6, "interval_low": 0.5, "interval_high": 0.7, "n": 40} | changes
    return [row, row | {"low": 16, "high": 32, "rate": 0.4}]


BARS = [
    {"name": "bonus token", "start": 2.725, "end": 3.725, "low": NAN, "high": NAN},
    {"name": "wiring (0, 15, 27) → (15, 27, 30)", "start": 3.725, "end": 1.002, "low": -1.42, "high": -0.99},
    {"name": "fed its own drafts", "start": 1.002, "end": 1.002, "low": 0.0, "high": 0.0},
]
SETTINGS = [
    {"steps": 1, "topk": 1, "draft_tokens": 1, "speedup": 1.32, "accept_length": 1.6},
    {"steps": 2, "topk": 1, "draft_tokens": 2, "speedup": 0.9, "accept_length": 1.89},
    {"steps": 2, "topk": 4, "draft_tokens": 20, "speedup": NAN, "accept_length": 2.36},
]
CHANGES = [
    {"name": "word start", "change": 0.593, "low": 0.5, "high": 0.6, "n": 946, "group": "by_kind"},
    {"name": "number", "change": -0.2, "low": NAN, "high": NAN, "n": 20, "group": "by_kind"},
    {"name": "tokens 1 … 16", "change": 0.01, "low": -0.1, "high": 0.1, "n": 240, "group": "by_position"},
]
POINTS = [{"name": "right", "accept_length": 2.2004, "tokens_per_second": 53.0}]


def curve(*values: float) -> dict[str, Any]:
    points = [{"value": v, "low": v - 0.05, "high": v + 0.05, "n": 90} for v in values]
    return {"cumulative": points, "conditional": points}


TREES: list[dict[str, Any]] = [
    {"label": "chain of 2", "value": 2.19, "low": 1.99, "high": 2.42, "nodes": 2, "forwards": 2,
     "depths": curve(0.57, 0.3)["cumulative"]},
    {"label": "SGLang tree, steps 5, topk 4", "value": 2.5, "low": 2.3, "high": 2.7, "nodes": 7, "forwards": 17,
     "depths": curve(0.75, 0.44, 0.2)["cumulative"]},
]  # fmt: skip
COST = {
    "group": "word start", "judged": 920, "refused": {"near miss": 213, "far": 196, "out of draft vocab": 24},
    "lost": 696, "share": 0.47, "share_low": 0.43, "share_high": 0.51, "a_round": 1.29, "low": 1.16, "high": 1.4,
}  # fmt: skip
CURVES = [{"name": "a", "cumulative": [0.7, 0.3], "accept_length": 2.0, "rounds": 30}]

FULL: dict[str, Callable[[], Picture]] = {
    "draft_map": lambda: plots.draft_map(DIMS),
    "value_histograms": lambda: plots.value_histograms({"fc.weight": (torch.linspace(-1, 1, 11), torch.arange(10))}),
    "norm_weights": lambda: plots.norm_weights({"norm.weight": torch.tensor([1.0, 1.5, 2.0], dtype=torch.bfloat16)}),
    "vocab_curve": lambda: plots.vocab_curve(torch.arange(100) * 3, vocab=400),
    "coverage": lambda: plots.coverage({"a": (78, 80), "b": (70, 80)}, ceiling=5.31, steps=5),
    "agreement_by_lag": lambda: plots.agreement_by_lag({-1: (20, 1000), 0: (30, 1000), 7: (985, 1000)}),
    "coverage_by_kind": lambda: plots.coverage_by_kind({"number": (10, 20), "word start": (970, 980)}),
    "rms_by_position": lambda: plots.rms_by_position(
        {15: [1042.0] + [6.4] * 20, 0: torch.full((21,), 0.1)}, spans=[(5, 21)]
    ),
    "cosine_matrix": lambda: plots.cosine_matrix([0, 15], [[1, 0.25], [0.25, 1]]),
    "wiring_matrix": lambda: plots.wiring_matrix(
        {(0, 0): 0.6186, (0, 15): 0.0017, (1, 15): 0.6186}, configured=(15, 27), fitted=(0, 15), n=1172
    ),
    "ranking": lambda: plots.ranking(ranking_rows(), n=1172),
    "accuracy_by_step": lambda: plots.accuracy_by_step(
        {"configured (15, 27, 30)": CONFIGURED, "fitted (0, 15, 27)": FITTED}, n=SCORED, training=[0.65, 0.57]
    ),
    "survival": lambda: plots.survival({"fitted": curve(0.5706, 0.2974), "configured": curve(0.0017)}, ceiling=[0.95]),
    "chain_and_trees": lambda: plots.chain_and_trees(TREES),
    "token_costs": lambda: plots.token_costs([COST]),
    "by_step_fed": lambda: plots.by_step_fed(scored=[1172, 1156], recorded=[0.619, 0.538], own=[0.619, 0.421]),
    "sample_curves": lambda: plots.sample_curves(CURVES * 4, together=[0.6, 0.3]),
    "round_histogram": lambda: plots.round_histogram({"fitted (0, 15, 27)": [231, 147, 67, 42, 20, 31]}),
    "by_sample": lambda: plots.by_sample(sample_rows(4)),
    "by_position": lambda: plots.by_position(buckets(), ylabel="accept length"),
    "engine_beside_prediction": lambda: plots.engine_beside_prediction(run_rows()),
    "throughput": lambda: plots.throughput(baseline=53.5, points=POINTS, round_cost=2.21),
    "waterfall": lambda: plots.waterfall(BARS, begins="training's accuracies added up, K=5", ends="the engine"),
    "tuning": lambda: plots.tuning(
        SETTINGS, best={"steps": 1, "topk": 1, "draft_tokens": 1}, law="round cost = 1 + 0.2 · steps"
    ),
    "differences": lambda: plots.differences(CHANGES, first="configured", second="fitted"),
    "state_errors": lambda: plots.state_errors({0: [(0, 0.0), (1, 0.0)], 15: [(0, 0.01), (1, 0.4)]}, name="request_0"),
}
"""Every plot with a small real input."""

EMPTY: dict[str, Callable[[], Picture]] = {
    "draft_map": lambda: plots.draft_map({}),
    "value_histograms": lambda: plots.value_histograms({}),
    "norm_weights": lambda: plots.norm_weights({}),
    "vocab_curve": lambda: plots.vocab_curve([], vocab=10),
    "coverage": lambda: plots.coverage({"no reply": (0, 0)}, ceiling=None, steps=5),
    "agreement_by_lag": lambda: plots.agreement_by_lag({0: (0, 0)}),
    "coverage_by_kind": lambda: plots.coverage_by_kind({"number": (0, 0)}),
    "rms_by_position": lambda: plots.rms_by_position({}),
    "cosine_matrix": lambda: plots.cosine_matrix([], []),
    "wiring_matrix": lambda: plots.wiring_matrix({}, configured=(), fitted=(), n=0),
    "ranking": lambda: plots.ranking([], n=0),
    "accuracy_by_step": lambda: plots.accuracy_by_step({}, n=[]),
    "survival": lambda: plots.survival({"fitted": {}}),
    "chain_and_trees": lambda: plots.chain_and_trees([]),
    "token_costs": lambda: plots.token_costs([]),
    "by_step_fed": lambda: plots.by_step_fed(scored=[], recorded=[], own=[]),
    "sample_curves": lambda: plots.sample_curves([]),
    "round_histogram": lambda: plots.round_histogram({"none": [0, 0]}),
    "by_sample": lambda: plots.by_sample([]),
    "by_position": lambda: plots.by_position([]),
    "engine_beside_prediction": lambda: plots.engine_beside_prediction([]),
    "throughput": lambda: plots.throughput(baseline=0.0, points=[], round_cost=NAN),
    "waterfall": lambda: plots.waterfall([]),
    "tuning": lambda: plots.tuning([SETTINGS[2]]),
    "differences": lambda: plots.differences([], first="a", second="b"),
    "state_errors": lambda: plots.state_errors({3: []}),
}

BROKEN: dict[str, Callable[[], Picture]] = {
    "draft_map": lambda: plots.draft_map({"H": NAN, "aux": ["final"], "A": 1, "fc": False, "layers": 3}),
    "value_histograms": lambda: plots.value_histograms({"x": ([NAN] * 4, [0, 0, 0]), "y": ([0, 1, 2], [0, 0])}),
    "norm_weights": lambda: plots.norm_weights({"a": [NAN, NAN], "b": [1.0, float("inf"), NAN], "c": []}),
    "vocab_curve": lambda: plots.vocab_curve([-3, 5, 900], vocab=100),
    "coverage": lambda: plots.coverage({"a": (80, 80)}, ceiling=NAN, steps=5),
    "agreement_by_lag": lambda: plots.agreement_by_lag({0: (0, 5)}),
    "coverage_by_kind": lambda: plots.coverage_by_kind({"a$b": (0, 5)}),
    "rms_by_position": lambda: plots.rms_by_position({0: [NAN, NAN], 3: [0.0, 1.0, NAN]}, spans=[(0, 3)]),
    "cosine_matrix": lambda: plots.cosine_matrix([0, "final"], [[1, NAN], [NAN, 1]]),
    "wiring_matrix": lambda: plots.wiring_matrix({(0, 5): NAN}, configured=("final",), fitted=(5,), n=1),
    "ranking": lambda: plots.ranking(
        [{"label": "x", "accuracy": NAN, "low": NAN, "high": NAN, "kind": "configured"}], n=0
    ),
    "accuracy_by_step": lambda: plots.accuracy_by_step({"fitted": [NAN, 0.5], "": []}, n=[3], training=[]),
    "survival": lambda: plots.survival({"fitted": curve(0.0, NAN), "engine": {}}),
    "chain_and_trees": lambda: plots.chain_and_trees(
        [{"label": "x, y, z", "value": 1.0, "low": NAN}, {"label": "none", "value": NAN}]
    ),
    "token_costs": lambda: plots.token_costs([{"group": "<x>", "judged": 0, "a_round": NAN, "share": None}]),
    "by_step_fed": lambda: plots.by_step_fed(scored=[], recorded=[NAN, 0.5], own=[0.5]),
    "sample_curves": lambda: plots.sample_curves([{"name": "a", "cumulative": [NAN], "accept_length": None}]),
    "round_histogram": lambda: plots.round_histogram({"fitted": [5], "configured": [1, 0, 0]}),
    "by_sample": lambda: plots.by_sample([{"name": "a", "configured": None, "fitted": None, "rounds": None}]),
    "by_position": lambda: plots.by_position(buckets(interval_low=NAN, interval_high=NAN, n=1)),
    "engine_beside_prediction": lambda: plots.engine_beside_prediction(run_rows()[1:]),
    "throughput": lambda: plots.throughput(
        baseline=50.0, points=[{"name": "x", "accept_length": None}], round_cost=1.5
    ),
    "waterfall": lambda: plots.waterfall([{"name": "<x>", "start": 1.0, "end": 1.0, "low": None, "high": None}]),
    "tuning": lambda: plots.tuning(
        [{"steps": 1, "topk": 1, "draft_tokens": 1, "speedup": 1.0, "accept_length": None}], best=None
    ),
    "differences": lambda: plots.differences(
        [CHANGES[1] | {"n": None}, {"name": "x", "change": NAN}], first="", second=""
    ),
    "state_errors": lambda: plots.state_errors({3: [(0, 0.0)]}),
}

HUGE: dict[str, Callable[[], Picture]] = {
    "value_histograms": lambda: plots.value_histograms({f"layers.{i}.x": ([0, 1, 2], [3, 4]) for i in range(100)}),
    "norm_weights": lambda: plots.norm_weights({f"layers.{i}.norm": [1.0, 2.0] for i in range(100)}),
    "coverage": lambda: plots.coverage({f"s{i}": (i, 200) for i in range(1, 101)}, ceiling=4.0, steps=5),
    "rms_by_position": lambda: plots.rms_by_position({k: np.full(40, 2.0) for k in range(62)}),
    "cosine_matrix": lambda: plots.cosine_matrix(list(range(62)), np.eye(62)),
    "wiring_matrix": lambda: plots.wiring_matrix(
        {(s, k): 0.1 for s in range(3) for k in range(62)}, configured=(2, 30, 58), fitted=(1, 31, 59), n=9
    ),
    "ranking": lambda: plots.ranking(ranking_rows(100), n=9),
    "by_sample": lambda: plots.by_sample(sample_rows(100)),
    "token_costs": lambda: plots.token_costs([COST] * 100),
    "sample_curves": lambda: plots.sample_curves(CURVES * 100),
    "differences": lambda: plots.differences(
        [CHANGES[0] | {"name": f"kind {i}"} for i in range(100)], first="a", second="b"
    ),
}


@pytest.mark.parametrize("name", plots.__all__)
def test_every_plot_is_tested(name: str) -> None:
    assert name == "Picture" or (name in FULL and name in EMPTY and name in BROKEN)


@pytest.mark.parametrize("name", FULL)
def test_a_picture_is_a_png_with_alt_text(name: str) -> None:
    picture = FULL[name]()
    data, metadata = picture._repr_mimebundle_()
    width, height = size(base64.b64decode(data["image/png"], validate=True))
    about = metadata["image/png"]
    assert about["alt"] == picture.alt == data["text/plain"]
    assert about["width"] == width // 2
    assert about["width"] <= 900, "wider than a notebook's column"
    assert height < 3 * width
    assert picture.alt.endswith(".")
    assert len(picture.alt) > 40
    assert any(c.isdigit() for c in picture.alt)


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_draw_is_said_in_a_sentence(name: str) -> None:
    picture = EMPTY[name]()
    assert picture.alt.endswith(".")
    if name != "draft_map":
        assert picture.alt in texts(picture)


@pytest.mark.parametrize("name", BROKEN)
def test_nan_and_gaps_are_drawn(name: str) -> None:
    picture = BROKEN[name]()
    size(base64.b64decode(picture._repr_mimebundle_()[0]["image/png"]))
    assert "nan" not in texts(picture).lower().replace("nan/inf", "")


@pytest.mark.parametrize("name", HUGE)
def test_many_things_stay_readable(name: str) -> None:
    picture = HUGE[name]()
    width, height = picture.figure.get_size_inches()
    assert width <= 9
    assert height <= 11
    if name in {"value_histograms", "norm_weights", "coverage", "ranking", "by_sample"}:
        assert "of 100" in texts(picture)


SAID = {
    "draft_map": ["[576 × 1728]", "[49152 × 576]", "[576 × 1152]", "[192 × 1152]", "[8192 × 576]", "h[15]", "block 14"],
    "norm_weights": ["1.5   [1, 2]", "norm  [3]"],
    "vocab_curve": ["V = 400", "100 draft ids in a vocabulary of 400"],
    "coverage": ["0.925 of 160", "5.31", "0.975  78 of 80"],
    "agreement_by_lag": ["lag +7: 0.985 of 1,000 rows"],
    "coverage_by_kind": ["0.990 of 980", "0.500 of 20", "1,000 reply tokens"],
    "rms_by_position": ["163 × the median", "reply", "h[15]"],
    "cosine_matrix": ["0.25", "1.00", "h[15]"],
    "wiring_matrix": ["0.619", "0.002", "configured (15, 27)", "fitted (0, 15)", "n = 1,172"],
    "ranking": ["1,172", "0.600", "cannot be told from it"],
    "accuracy_by_step": ["0.619", "0.002", "0.650", "n = 1,172", "training", "fitted (0, 15, 27)"],
    "survival": ["0.571", "0.297", "n = 90", "vocabulary's ceiling", "configured"],
    "chain_and_trees": ["2.19", "7 verified, 17 draft steps", "SGLang tree"],
    "token_costs": ["1.29 [1.16, 1.40]   n = 920", "word start", "near miss"],
    "by_step_fed": ["0.421", "0.538", "n = 1,156"],
    "sample_curves": ["a: 2.00", "30 rounds"],
    "round_histogram": ["538 rounds", "0.43", "0.06"],
    "by_sample": ["1.00 → 1.75", "30 rounds"],
    "by_position": ["0.600", "n = 40", "accept length"],
    "engine_beside_prediction": ["2.200 measured, 2.193 predicted", "not measured, not predicted", "K = 5"],
    "throughput": ["breaks even at 2.21", "53.5 tok/s", "2.20 tokens a round, 53.0 tok/s"],
}


@pytest.mark.parametrize("name", SAID)
def test_the_numbers_are_in_the_picture(name: str) -> None:
    found = texts(FULL[name]())
    assert not [text for text in SAID[name] if text not in found], found


def colours_of(figure: Figure) -> set[Any]:
    return {matplotlib.colors.to_hex(line.get_color()) for axes in figure.axes for line in axes.lines}


def test_the_same_colour_means_the_same() -> None:
    steps = colours_of(FULL["accuracy_by_step"]().figure)
    assert {shared.CONFIGURED, shared.FITTED, shared.TRAINING} <= steps
    assert {shared.CONFIGURED, shared.FITTED} <= colours_of(FULL["by_sample"]().figure)
    assert {shared.ENGINE, shared.PREDICTED} <= colours_of(FULL["engine_beside_prediction"]().figure)
    for name in ("CONFIGURED", "FITTED", "ENGINE", "TRAINING", "PREDICTED", "INK", "SOFT", "FAINT", "LINE"):
        assert getattr(shared, name) == getattr(tables_html, name), f"{name} differs between plots and tables"


def test_the_diagram_follows_the_reading() -> None:
    changed = DIMS | {
        "residual": "post_norm",
        "feedback": "post_norm",
        "own_embedding": True,
        "own_head": False,
        "layers": 3,
        "aux_norm": "fc_norm",
    }
    before, after = texts(plots.draft_map(DIMS)), texts(plots.draft_map(changed))
    for old, new in (
        ("residual, before", "residual, after"),
        ("taken before norm", "taken after norm"),
        ("the target's table", "the draft's own table"),
        ("the draft's own", "the target's"),
        ("DECODER LAYER", "LAYER 0 OF 3"),
    ):
        assert old in before
        assert new in after
    assert "fc_norm" in after
    assert "fc skipped" in texts(plots.draft_map(DIMS | {"fc": False}))


def test_a_paired_distance_is_shown_where_it_is_known() -> None:
    rows = ranking_rows()
    rows[1] |= {"behind": 0.006, "behind_low": -0.004, "behind_high": 0.016}
    assert "behind by 0.006 [-0.004, 0.016]" in texts(plots.ranking(rows, n=10))


def test_names_cannot_break_a_picture() -> None:
    names = ["a$b$c_{", "日本語 <script>", "x" * 300, "line\nbreak"]
    rows = [{"name": n, "configured": 1.0, "fitted": 2.0, "rounds": 3} for n in names]
    picture = plots.by_sample(rows)
    size(base64.b64decode(picture._repr_mimebundle_()[0]["image/png"]))
    found = texts(picture)
    assert "a$b$c_{" in found
    assert "x" * 100 not in found
    assert "…" in found
    assert "日" not in found, "no font of matplotlib's own has it"


def test_nothing_is_displayed_and_settings_come_back() -> None:
    before = dict(matplotlib.rcParams)
    for draw in FULL.values():
        draw()._repr_mimebundle_()
    assert dict(matplotlib.rcParams) == before
    matplotlib.rcParams["font.size"] = 30
    try:
        assert plots.ranking(ranking_rows(), n=1).figure.axes[0].title.get_fontsize() == 10.5
    finally:
        matplotlib.rcParams["font.size"] = before["font.size"]


def test_no_plot_opens_a_window() -> None:
    draw = "import sys, eagle3lab.plots as p; p.ranking([], n=0)._repr_mimebundle_(); "
    script = draw + "sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_picture_can_be_saved(tmp_path: Any) -> None:
    picture = FULL["ranking"]()
    assert size(picture.save(tmp_path / "a.png").read_bytes())[0] == 1720
    assert "<svg" in picture.save(tmp_path / "a.svg").read_text()
    assert picture.save(tmp_path / "b.png").read_bytes() == picture.save(tmp_path / "c.png").read_bytes()


@pytest.mark.parametrize(
    "values", [[1, None, 3], np.array([1, np.nan, 3]), torch.tensor([1.0, NAN, 3.0], dtype=torch.bfloat16), (1, NAN, 3)]
)
def test_any_kind_of_numbers_will_do(values: Any) -> None:
    found = shared.floats(values)
    assert found[0] == 1
    assert math.isnan(found[1])
    assert found[2] == 3
