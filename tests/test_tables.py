"""Tables: the right numbers, everything escaped, nothing lost on NaN, no rows or thousands of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from eagle3lab import tables
from eagle3lab.reading import Reading, Rope
from eagle3lab.records import Finding, Severity
from eagle3lab.tables import html as shared
from eagle3lab.tables.strip import LOOKS

NAN = float("nan")
EVIL = "<script>alert('x')</script>"
FINDINGS = [
    Finding("V001", Severity.PASS, "d2t is read as offsets"),
    Finding("W002", Severity.WARN, "dead rows", measured="12 of 576", expected="none"),
    Finding(
        "R001",
        Severity.FAIL,
        "The layer ids are wrong",
        "draft/config.json",
        "(15, 27, 30): 0.002",
        "(0, 15, 27): 0.619",
        "1,172 rows",
        "set `eagle_aux_hidden_state_layer_ids` to [0, 15, 27]",
    ),
    Finding("V002", Severity.PASS, "all target ids are in range"),
]


class Seen(HTMLParser):
    """The tags and the text of a piece of HTML."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def seen(thing: Any) -> Seen:
    return Seen(thing._repr_html_())


def row_of(name: str, shape: tuple[int, ...] = (576,), expected: tuple[int, ...] | None = (576,)) -> Any:
    info = SimpleNamespace(shape=shape, dtype="BF16", nbytes=1152)
    return SimpleNamespace(
        stored=name,
        canonical=name,
        info=info,
        symbols=("H",),
        expected=expected,
        fits=expected is None or shape == expected,
    )


@dataclass(frozen=True)
class Stats:
    norm: float = 8.03
    mean: float = 0.329
    std: float = 0.0599
    low: float = 0.1
    high: float = 0.8
    zero: float = 0.0
    nan: float = NAN
    inf: float = 0.00001
    dead_rows: int = 0


@dataclass(frozen=True)
class Operation:
    name: str = "fc"
    takes: tuple[int, ...] = (122, 1728)
    weight: str = EVIL
    weight_shape: tuple[int, ...] | None = (576, 1728)
    gives: tuple[int, ...] = (122, 576)
    symbols: str = "[T-1, H]"
    note: str = "9 heads, 3 kv heads of 64, causal, RoPE base 100000, and a note that is longer than pandas shows"


def evil_finding() -> Finding:
    return Finding(EVIL, Severity.FAIL, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL)


RATES = {"accuracy": [0.6186], "cumulative": [NAN], "conditional": []}
ACCEPTED = {"label": f"fitted {EVIL}", "accept_length": 2.19331, "low": 2.09, "high": 2.3, "rounds": 538, **RATES}
RUN = {
    "name": EVIL,
    "engine": EVIL,
    "boundaries": EVIL,
    "k": 5,
    "measured": 2.2004,
    "predicted": 2.1933,
    "low": 2.09,
    "high": 2.3,
    "drafts": 539,
    "tokens_per_second": 53.04,
    "equal": EVIL,
}
PREDICTED = {
    "position": 43,
    "fed": EVIL,
    "truth": EVIL,
    "rank": 0,
    "probability": 0.8,
    "candidates": [(EVIL, 0.8, True)],
}
SAMPLE = {
    "name": EVIL,
    "tokens": 1234,
    "reply": 80,
    "states": [0, 1, 14, 15, 16, 30],
    "dtype": "bfloat16",
    "bytes": 4_392_000,
    "final_norm": "pre",
    "headline": False,
}
VERDICT = {
    "notebook": EVIL,
    "question": EVIL,
    "severity": EVIL,
    "sentence": EVIL,
    "findings": [evil_finding().to_dict()],
}

GAP_BAR = {"name": EVIL, "start": 2.0, "end": 1.0, "low": -1.2, "high": NAN, "method": EVIL, "sentence": EVIL}
GAP_SLOT = {"text": EVIL, "slot": 15, "verdict": "same", "sentence": EVIL, "blocks": (0.1, 0.2), "best": 16, "lag": 3}
GAP_SETTING = {"steps": 2, "topk": 1, "draft_tokens": 2, "speedup": 1.3, "best": True, "flags": EVIL}
GAP_CHANGE = {"name": EVIL, "first": 0.1, "second": 0.2, "change": 0.1, "low": NAN, "high": NAN, "n": 3}
GAP_TOTAL = {"run": EVIL, "begins": 2.7, "ends": 1.0, "total": -1.7, "loss": EVIL, "lost": -1.2, "partial": EVIL}
RIVAL = {"file": EVIL, "tokens": 32000, "overlap": 0.95, "agreement": 0.013, "fault": EVIL}
BLOCK = {"table": EVIL, "low": 0, "high": 7999, "rows": 340, "equal": 1.0, "cosine": 0.999}
AGREEMENT = {"sample": EVIL, "hits": 59, "rows": 60, "lag": 7, "embedding": 0.0, "neighbours": NAN}
SPAN = {"sample": EVIL, "start": 12, "end": 40, "share": 0.7, "first": EVIL, "last": EVIL, "following": EVIL}

WALK_COST: dict[str, Any] = {
    "group": EVIL, "judged": 9, "refused": {"far": 4}, "lost": 7, "share": 0.44, "share_low": 0.2, "share_high": 0.7,
    "a_round": 0.61, "low": 0.3, "high": 0.9,
}  # fmt: skip
WITH_EVIL = {
    "findings": tables.findings([evil_finding(), Finding(EVIL, Severity.PASS, EVIL)], sentence=EVIL),
    "overview": tables.overview([VERDICT]),
    "tensors": tables.tensors([row_of(EVIL)], {}),
    "trace": tables.trace([Operation()]),  # type: ignore[list-item]
    "readings": tables.readings({EVIL: Reading(aux=(0, 15), dropped=(EVIL,))}),
    "vocab_rows": tables.vocab_rows([{"draft_id": 1, "d2t": 3, "target_id": 4, "text": EVIL}]),
    "lost_tokens": tables.lost_tokens([{"token": 4, "text": EVIL, "count": 2, "share": 0.01}]),
    "samples": tables.samples([SAMPLE]),
    "rival_maps": tables.rival_maps([RIVAL]),
    "table_blocks": tables.table_blocks([BLOCK]),
    "agreement": tables.agreement([AGREEMENT]),
    "parity": tables.parity(
        [
            {
                "name": EVIL,
                "module": EVIL,
                "shape": (3, 4),
                "largest": 0.5,
                "mean": float("nan"),
                "relative": 1e-7,
                "equal": False,
                "note": EVIL,
            }
        ],
        words=EVIL,
    ),
    "spans": tables.spans([SPAN]),
    "predictions": tables.predictions([PREDICTED]),
    "acceptance": tables.acceptance([ACCEPTED], definition=EVIL),
    "runs": tables.runs([RUN]),
    "definitions": tables.definitions([{"label": EVIL, "value": 2.0, "low": NAN, "high": None, "n": 5, "words": EVIL}]),
    "trees": tables.trees([{"label": EVIL, "value": 2.0, "words": EVIL, "depths": [{"value": 0.5}]}]),
    "token_costs": tables.token_costs([WALK_COST], by=EVIL),
    "sampling": tables.sampling([{"temperature": 1.0, "rule": EVIL, "exact": False, "cumulative": [0.5]}]),
    "recorded_choice": tables.recorded_choice({"rounds": 3, "equal": 3, "choice": None, "missing": EVIL}),
    "token_strip": tables.token_strip([EVIL], ["accepted"], ['" onmouseover="alert(1)'], caption=EVIL),
    "provenance": tables.provenance([(EVIL, EVIL)]),
    "facts": tables.facts([("a", EVIL)]),
    "waterfall": tables.waterfall([GAP_BAR], missing=[EVIL]),
    "totals": tables.totals([GAP_TOTAL, {"run": "x", "why": EVIL}]),
    "published": tables.published([{"what": EVIL, "number": EVIL, "assumption": EVIL}]),
    "dump_slots": tables.dump_slots([GAP_SLOT]),
    "settings": tables.settings([GAP_SETTING], notes=[EVIL]),
    "differences": tables.differences([GAP_CHANGE], first=EVIL, second="b", note=EVIL),
    "repairs": tables.repairs(
        [
            {
                "repair": 1,
                "field": EVIL,
                "from": EVIL,
                "to": EVIL,
                "gain": 0.1,
                "low": 0.0,
                "high": 0.2,
                "before": [0.1],
                "after": [0.2],
                "nats": [],
            }
        ]
    ),
    "served_as": tables.served_as(
        [
            {
                "program": EVIL,
                "boundaries": EVIL,
                "differs": EVIL,
                "length": None,
                "low": None,
                "high": None,
                "rounds": 0,
            }
        ],
        definition=EVIL,
    ),
    "inventory": tables.inventory({EVIL: [{"tensor": EVIL, "what it is": EVIL}], "unknown": []}, "tensor"),
}

EMPTY = {
    "findings": tables.findings([]),
    "overview": tables.overview([]),
    "tensors": tables.tensors([], {}),
    "trace": tables.trace([]),
    "readings": tables.readings({"configured": None}),
    "vocab_rows": tables.vocab_rows([]),
    "lost_tokens": tables.lost_tokens([]),
    "samples": tables.samples([]),
    "rival_maps": tables.rival_maps([]),
    "table_blocks": tables.table_blocks([]),
    "agreement": tables.agreement([]),
    "parity": tables.parity([]),
    "spans": tables.spans([]),
    "predictions": tables.predictions([]),
    "acceptance": tables.acceptance([]),
    "runs": tables.runs([]),
    "definitions": tables.definitions([]),
    "trees": tables.trees([]),
    "token_costs": tables.token_costs([]),
    "sampling": tables.sampling([]),
    "recorded_choice": tables.recorded_choice({}),
    "token_strip": tables.token_strip([], []),
    "provenance": tables.provenance([]),
    "facts": tables.facts([]),
    "repairs": tables.repairs([]),
    "served_as": tables.served_as([]),
    "inventory": tables.inventory({"unknown tensors": []}, "tensor"),
    "waterfall": tables.waterfall([]),
    "totals": tables.totals([]),
    "published": tables.published([]),
    "dump_slots": tables.dump_slots([]),
    "settings": tables.settings([]),
    "differences": tables.differences([], first="a", second="b"),
}


@pytest.mark.parametrize("name", [n for n in tables.__all__ if n not in ("Html", "Table", "findings_text")])
def test_every_table_is_tested(name: str) -> None:
    assert name in WITH_EVIL
    assert name in EMPTY


@pytest.mark.parametrize("name", WITH_EVIL)
def test_everything_is_escaped(name: str) -> None:
    found = seen(WITH_EVIL[name])
    assert "script" not in found.tags
    assert not [key for key, _ in found.attributes if key.startswith("on")]
    assert "alert" in found.text
    assert "&lt;lt;" not in WITH_EVIL[name]._repr_html_()
    assert "&lt;" not in found.text, "escaped twice"


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_show_is_shown(name: str) -> None:
    assert seen(EMPTY[name]).tags


def test_findings_come_worst_first_and_passes_last_in_one_row() -> None:
    text = seen(tables.findings(FINDINGS, sentence="The engine feeds the wrong layers.")).text
    places = [text.index(word) for word in ("The engine feeds", "R001", "W002", "2 checks", "V001", "V002")]
    assert places == sorted(places)
    for word in (
        "(15, 27, 30): 0.002",
        "(0, 15, 27): 0.619",
        "1,172 rows",
        "draft/config.json",
        "1 FAIL, 1 WARN, 2 PASS",
    ):
        assert word in text
    assert "set eagle_aux_hidden_state_layer_ids to [0, 15, 27]" in text
    assert "Nothing was checked" in seen(tables.findings([])).text


@pytest.mark.parametrize("severity", Severity)
def test_every_severity_has_a_badge_that_says_its_word(severity: Severity) -> None:
    ink, paper = shared.SEVERITY[str(severity)]
    html = shared.badge(severity)
    assert ink in html
    assert paper in html
    assert str(severity) in Seen(html).text
    assert contrast(ink, paper) >= 4.5


def contrast(ink: str, paper: str) -> float:
    """WCAG contrast ratio of two colours."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted([light(ink), light(paper)])
    return (bright + 0.05) / (dark + 0.05)


def test_the_report_pages_use_the_same_severity_colours(repo: Path) -> None:
    style = (repo / "eagle3lab" / "report_template" / "style.css.j2").read_text()
    light = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", style.split("@media")[0]))
    for name, colours in (
        ("fail", shared.FAIL),
        ("warn", shared.WARN),
        ("note", shared.NOTE),
        ("open", shared.OPEN),
        ("pass", shared.GOOD),
    ):
        assert (light[name], light[f"{name}-bg"]) == colours


def test_findings_for_a_terminal() -> None:
    long = Finding("F009", Severity.UNDETERMINED, "word " * 60, measured="a\x1b[31mred", evidence="two\nlines")
    text = tables.findings_text([*FINDINGS, long])
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 100
    assert "\x1b" not in text
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")][:4] == [
        "FAIL",
        "WARN",
        "UNDETERMINED",
        "PASS",
    ]
    assert "2 checks: V001, V002" in text
    assert lines[-1] == "1 FAIL, 1 WARN, 1 UNDETERMINED, 2 PASS"
    assert {line.index("0.") for line in lines if line.strip().startswith(("measured  (", "expected  ("))}
    assert tables.findings_text([]) == "Nothing was checked."
    coloured = tables.findings_text(FINDINGS, colour=True)
    assert "\x1b[31;1mFAIL" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == tables.findings_text(FINDINGS)


def test_tensors_say_what_fits() -> None:
    rows = [row_of("norm.weight"), row_of("fc.weight", (576, 1152), (576, 1728)), row_of("odd", (3,), None)]
    found = tables.tensors(rows, {"norm.weight": Stats()})  # type: ignore[dict-item]
    assert isinstance(found, pd.DataFrame)
    assert found.index.name == "stored name"
    assert list(found["fits"]) == ["✓", "✗ expected [576, 1728]", "not checked"]
    assert found.loc["norm.weight", "zero / NaN / Inf"] == "0 / NaN / 1e-05"
    assert found.loc["norm.weight", "bytes"] == "1.2 kB"
    assert found.loc["fc.weight", "norm"] == "–"


def test_many_tensors_show_the_misfits_and_say_what_is_left_out() -> None:
    rows = [*(row_of(f"layers.{i}.x") for i in range(200)), row_of("bad", (1,))]
    found = tables.tensors(rows, {})
    text = seen(found).text
    assert len(found) == 201
    assert "the first 60 of 201 rows" in text
    assert "bad" in text


def test_a_trace_shows_whole_notes() -> None:
    text = seen(tables.trace([Operation(), Operation(weight="", weight_shape=None)])).text  # type: ignore[list-item]
    assert Operation.note in text
    assert "[122, 1728]" in text
    assert "[576, 1728]" in text
    assert "[T-1, H]" in text


def test_readings_put_the_differences_first() -> None:
    one = Reading(aux=(15, 27, 30))
    found = tables.readings(
        {"configured": one, "fitted": one.replace(aux=(0, 15, 27), rope=Rope(base=1e5)), "served": None}
    )
    assert list(found.index[:2]) == ["● aux", "● rope.base"]
    assert list(found.iloc[0]) == ["(15, 27, 30)", "(0, 15, 27)", "does not run"]
    assert not [field for field in found.index[2:] if field.startswith("●")]
    assert {"rope.scaling", "shift", "dtype"} <= {field.strip() for field in found.index}


def test_tokens_keep_their_spaces() -> None:
    found = tables.vocab_rows([{"draft_id": 1000, "d2t": 30000, "target_id": 31000, "text": " the\n"}])
    assert list(found.iloc[0]) == ["+30,000", "31,000", repr(" the\n")]
    assert found.index[0] == "1,000"
    lost = tables.lost_tokens([{"token": 5, "text": "\u202e", "count": 3, "share": 0.00125}])
    assert lost.iloc[0]["token"] == "'\\u202e'"
    assert lost.iloc[0]["share of reply tokens"] in ("0.0013", "0.0012")


def test_samples_shorten_runs_of_boundaries() -> None:
    found = tables.samples(
        [SAMPLE, SAMPLE | {"name": "b", "states": list(range(31)), "headline": True, "final_norm": "none"}]
    )
    assert list(found["boundaries"]) == ["0, 1, 14–16, 30", "0–30"]
    assert list(found["headline"]) == ["left out", "yes"]
    assert found.iloc[0]["tokens"] == "1,234"
    assert found.iloc[0]["states"] == "4.4 MB"


def test_headline_numbers_have_three_decimals() -> None:
    text = seen(tables.acceptance([ACCEPTED | {"label": "fitted (0, 15, 27)"}], definition="bonus included")).text
    for word in ("2.193", "[2.090, 2.300]", "538", "0.619", "–", "bonus included", "fitted (0, 15, 27)"):
        assert word in text
    text = seen(tables.runs([RUN, {"name": "none", "k": 0, "measured": None, "predicted": None}])).text
    for word in ("2.200", "2.193", "+0.007", "539 rounds", "53.0"):
        assert word in text
    assert "nan" not in text.lower().replace("nan ", "")


def test_predictions_mark_hits_and_what_the_draft_cannot_say() -> None:
    rows = [
        {
            "position": 43,
            "fed": " The",
            "truth": " capital",
            "rank": 0,
            "probability": 0.81,
            "candidates": [(" capital", 0.81, True), ("\n", 0.1, False)],
        },
        {"position": 44, "fed": "x", "truth": "y", "rank": -1, "probability": 0.0, "candidates": [("z", 0.5, False)]},
        {"position": 45, "fed": "x", "truth": "y", "rank": 2, "probability": NAN, "candidates": []},
    ]
    found = tables.predictions(rows)
    text = seen(found).text
    for word in ("✓ first", "not in draft vocab", "no. 3", "·capital", "0.810", "\\n"):
        assert word in text
    assert found._repr_html_().count(f"border-bottom:2px solid {shared.GOOD[0]}") == 1


def test_the_token_strip() -> None:
    kinds = ["prompt", "reply", "accepted", "rejected", "oov", "bonus", "plain", "made up"]
    strip = tables.token_strip(
        ["<s>", " two words", "\n", "\t\x00", "", "é", "\n\n", "z"], kinds, [f"position {i}" for i in range(8)]
    )
    html = strip._repr_html_()
    found = seen(strip)
    for word in ("·two·words", "⏎", "→\\x00", "∅", "⏎⏎", "draft accepted", "not in the draft vocabulary"):
        assert word in found.text
    assert found.tags.count("br") == 2
    assert ("data-about", "position 3") in found.attributes
    assert "content:attr(data-about)" in html, "the pointer shows it by CSS alone"
    for line in ("solid", "double", "wavy", "dotted"):
        assert f"underline {line}" in html
    assert "script" not in html
    for _, paper, ink, _ in LOOKS.values():
        assert contrast(ink, paper) >= 4.5
    with pytest.raises(ValueError, match="2 tokens, 1 kinds"):
        tables.token_strip(["a", "b"], ["plain"])


def test_a_huge_strip_says_where_it_stops() -> None:
    strip = tables.token_strip(["x"] * 5000, ["reply"] * 5000)
    assert "the first 4,000 of 5,000 tokens" in seen(strip).text


def test_tables_are_small_and_the_same_every_time() -> None:
    first, second = (tables.findings(FINDINGS)._repr_html_() for _ in range(2))
    assert first == second
    assert len(first) < 40_000
    assert len(tables.facts([("a", "b")])._repr_html_()) < 2_000


def test_the_overview_links_each_notebook() -> None:
    found = seen(
        tables.overview(
            [
                {
                    "notebook": "01_weights",
                    "question": "Whole?",
                    "severity": "",
                    "sentence": "not run yet",
                    "findings": [],
                }
            ]
        )
    )
    assert ("href", "01_weights.ipynb") in found.attributes
    assert "not run yet" in found.text


def test_maps_show_rows_beside_sets() -> None:
    (row,) = tables.rival_maps([RIVAL | {"file": "vocab_mapping.pt", "fault": ""}]).to_dict("records")
    assert (row["tokens"], row["same tokens"], row["same rows"]) == ("32,000", "0.950", "0.013")


def test_samples_rows_show_their_lag_and_gaps() -> None:
    shown = tables.agreement([AGREEMENT, AGREEMENT | {"rows": 0, "lag": None, "embedding": None}])
    assert list(shown["best lag"]) == ["+7", "–"]
    assert list(shown["next tokens predicted"]) == ["0.983", "–"]
    spans = tables.spans([SPAN | {"following": ""}])
    assert (spans.iloc[0]["to"], spans.iloc[0]["then"]) == ("39", "the text ends")


def test_tables_of_the_walk() -> None:
    """Intervals beside the numbers; an upper bound says so, an unknown accept length is not made up."""
    costs = seen(tables.token_costs([WALK_COST])).text
    assert "0.440 [0.200, 0.700]" in costs and "0.610 [0.300, 0.900]" in costs
    assert "near miss" not in costs.split("Drafts lost")[0], "a reason that nobody has is no column"
    rows = [{"temperature": 0.6, "rule": "greedy drafts", "exact": False, "cumulative": [0.55, 0.3], "accept_length": 2.1, "n": 9},
            {"temperature": 0.6, "rule": "probabilistic drafts", "exact": False, "cumulative": [0.6], "accept_length": NAN, "n": 9}]  # fmt: skip
    found = seen(tables.sampling(rows)).text
    assert "≤ 2.100" in found and "first position only" in found and "at most" in found
    exact = [{"temperature": 0.6, "rule": "greedy drafts", "exact": True, "cumulative": [0.5], "accept_length": 1.5}]
    assert "≤" not in seen(tables.sampling(exact)).text
    choice = {"tokens": 40, "greedy": 20, "rounds": 9, "met": 5, "rows": 38, "right": 12, "chosen": 19, "held": 64}
    told = seen(tables.recorded_choice({"rounds": 9, "equal": 9, "choice": choice})).text
    assert "50.0% of 40" in told and "the walk is an estimate" in told and "12 in 38" not in told
    assert "12 of 38 rows" in told
