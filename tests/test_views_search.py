"""The search as notebook 04 shows it: repairs, and how each engine would serve the checkpoint."""

from __future__ import annotations

from planted import Plan, plant

from eagle3lab import Reading, open_case, tables, views

PLAN = Plan(samples=3, held=(2, 4, 5), linked=2, reading=Reading(aux=(2, 4, 5), residual="post_norm"),
            config={"norm_before_residual": True})  # fmt: skip


def test_engines_that_read_alike_are_run_once(tmp_path, monkeypatch):
    """vLLM keeps norm_before_residual, SGLang ignores it: two readings of the same wiring, whatever the versions."""
    ids = {
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    }
    case = open_case(plant(tmp_path, PLAN.but(config=PLAN.config | ids)))
    rows = {row["program"]: row for row in views.served_as(case)}
    assert set(rows) == set(case.everyone)
    kept, ignored = rows["vllm 0.33.0 v1"], rows["sglang 0.5.23"]
    assert (kept["boundaries"], kept["differs"]) == ("(2, 4, 5)", "as fitted")
    assert (ignored["boundaries"], ignored["differs"]) == ("(2, 4, 5)", "residual: post_norm → pre_norm")
    assert kept["length"] > ignored["length"] > 1
    assert kept["rounds"] == case.evaluate(case.fitted).length.n
    distinct = {row["differs"] for row in rows.values() if row["length"] is not None}
    assert len(case.evaluations.chains) <= len(distinct) + 1
    assert "residual" in tables.served_as(list(rows.values()))._repr_html_()


def test_a_repair_shows_what_it_gained_by_step(tmp_path):
    case = open_case(plant(tmp_path, PLAN.but(config={})))
    (row,) = views.repairs(case)
    assert (row["repair"], row["field"], row["from"], row["to"]) == (1, "residual", "pre_norm", "post_norm")
    assert row["after"][0] == 1.0 > row["before"][0]
    assert row["gain"] > row["low"] > 0
    assert row["nats"][0] > 0
    assert "pre_norm" in tables.repairs([row])._repr_html_()


def test_nothing_to_repair_is_said(tmp_path):
    case = open_case(plant(tmp_path, PLAN))
    assert views.repairs(case) == []
    assert "nothing to repair" in tables.repairs([])._repr_html_()
