"""Acceptance taken apart: definitions, offsets, intervals; recorded or own tokens; tokens and their cost; temperatures."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import tiny
import torch
from safetensors.torch import load_file
from test_acceptance import accepted, rolled, sample_of, table_of

from eagle3lab import explore, open_case, views
from eagle3lab.acceptance import (
    RULES,
    Choice,
    Drift,
    Everywhere,
    Sampled,
    accept,
    against_choice,
    ceiling,
    everywhere,
    offsets,
    rates,
    ratios,
    sampled,
)
from eagle3lab.errors import BadShape, Blocked
from eagle3lab.forward import rollout
from eagle3lab.records import Severity
from eagle3lab.samples import reply_rows
from eagle3lab.tokens import ACCEPTED, BROKEN, FAR, NEAR, OUTSIDE, costs, distance_group, judge

HITS = {2: "110", 3: "111", 4: "100", 6: "11"}
"""As in test_acceptance's walk by hand: reply [3, 10) of 12 tokens."""


def part_by_hand(covered=None):
    table = table_of(HITS, 12, 3)
    return accept(rolled(table, 12, covered), sample_of([(3, 10)], 12))


def test_every_row_by_hand():
    """Runs from rows 2 … 7 are 2, 3, 1, 0, 2, 0: eight drafts in six rounds."""
    part = part_by_hand()
    found = Everywhere.of(part.counts)
    assert (found.rounds, found.accepted, found.per_position) == (6, 8, (4, 3, 1))
    assert found.accept_length == 1 + 8 / 6
    assert found.cumulative == (4 / 6, 3 / 6, 1 / 6)
    assert found.accepted == int(part.runs().sum())
    interval = everywhere([part])
    assert interval.value == pytest.approx(found.accept_length)
    assert interval.low <= interval.value <= interval.high
    assert "too narrow" in interval.method


def test_offsets_by_hand():
    """From row 2: 2, 5, 6. From 3: 3, then 7. From 4: 4, 6. From 5: 5, 6."""
    found = [(o.offset, o.rounds, o.accepted) for o in offsets([part_by_hand()])]
    assert found == [(0, 3, 4), (1, 2, 3), (2, 2, 3), (3, 2, 2)]
    first = accepted({0: "11"}, [(0, 6)], 6, 2)
    assert offsets([first])[0].rounds == first.counts.rounds


def test_the_ceiling_is_the_walk_of_the_vocabulary():
    """Row 3's second draft cannot be said: 2 keeps all three, then 6 both."""
    covered = [[(t, k) != (3, 1) for k in range(3)] for t in range(12)]
    part = part_by_hand(covered)
    top = ceiling([part, part])
    assert (top.rounds, top.accepted) == (4, 10)
    assert top.accept_length >= part.counts.accept_length


def test_rates_by_position():
    parts = [accepted(HITS | {2: f"{i % 2}00"}, [(3, 10)], 12, 3) for i in range(6)]
    total = parts[0].counts
    for part in parts[1:]:
        total = total + part.counts
    expected = {"cumulative": total.cumulative, "conditional": total.conditional, "marginal": total.accuracy,
                "everywhere": Everywhere.of(total).cumulative}  # fmt: skip
    for kind, values in expected.items():
        for some in (parts, parts[:2]):
            found = rates(some, kind)
            assert len(found) == 3
            assert all(i.low <= i.value + 1e-12 and i.value <= i.high + 1e-12 for i in found if i.n)
            assert ("too few samples" not in found[0].method) == (len(some) == 6)
        assert [i.value for i in rates(parts, kind)] == pytest.approx(list(values), nan_ok=True)
    assert [i.value for i in rates(parts, "coverage")] == [1, 1, 1]
    with pytest.raises(ValueError, match="no rate 'joint'"):
        rates(parts, "joint")
    with pytest.raises(ValueError, match="no rate 'joint'"):
        rates(parts[:1], "joint")


def test_ratios_are_seeded_and_know_an_empty_denominator():
    top, bottom = torch.tensor([[1.0, 0], [3, 0]]).double(), torch.tensor([[2.0, 0], [4, 0]]).double()
    one, none = ratios(top, bottom, "words")
    assert (one.value, one.n, one.method) == (4 / 6, 6, "words")
    assert (one.low, one.high) == (0.5, 0.75)
    assert none.value != none.value
    assert ratios(top, bottom, "words")[0] == one


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Recorded tokens are the draft's own at step 0 and the target's greedy choice."""
    return open_case(tiny.write_case(tmp_path_factory.mktemp("walks")))


def reading_of(case):
    return case.configured.reading


def other_text(folder, every):
    """A case whose every n-th reply token is another: no draft and no target said it."""
    file = tiny.write_case(folder)
    for sample in (folder / "samples").iterdir():

        def change(t):
            t["input_ids"][tiny.PROMPT + 3 :: every] = (t["input_ids"][tiny.PROMPT + 3 :: every] + 2) % tiny.V

        tiny.edit(sample, change)
    return open_case(file)


def test_own_and_recorded_tokens_part_after_the_first_wrong_draft(case, tmp_path):
    """Greedy text or not: a chain has read the same tokens as long as all its drafts were right."""
    for one in (case, other_text(tmp_path, 4)):
        for name in one.samples:
            sample = one.sample(name)
            rolls = [rollout(one.model, sample, reading_of(one), 4, rows=reply_rows(sample), fed=fed)
                     for fed in ("recorded", "self")]  # fmt: skip
            a, b = (accept(r, sample) for r in rolls)
            assert a.rounds == b.rounds
            assert torch.equal(a.runs(), b.runs())
            drift = Drift.of([a], [b])
            assert drift.equal == drift.rounds == len(a.rounds)
            assert drift.recorded == a.counts.correct and drift.own == b.counts.correct
            assert drift.recorded[0] == drift.own[0]


def test_greedy_text_is_known_and_other_text_too(case, tmp_path):
    def total(one):
        found = Choice(0, 0, 0, 0, 0, 0, 0)
        for name, part in one.evaluate(reading_of(one), 3).parts.items():
            found = found + against_choice(one.model, one.sample(name), reading_of(one), part)
        return found

    sound = total(case)
    assert sound.share == 1.0
    assert sound.met == 0
    assert sound.right == sound.chosen == sound.rows
    other = total(other_text(tmp_path, 4))
    assert other.tokens == sound.tokens == 2 * (tiny.T - tiny.PROMPT)
    assert other.greedy == sound.tokens - 2 * 7
    assert other.met > 0
    assert other.right < other.rows
    # the recorded states still lead to the tokens that were replaced
    assert other.chosen > other.right


def test_what_the_findings_say_of_it(case, tmp_path):
    (said,) = [f for f in case.findings("acceptance") if f.code == "A020"]
    assert said.severity is Severity.PASS
    assert "0 of" in said.measured
    (said,) = [f for f in other_text(tmp_path, 4).findings("acceptance") if f.code == "A020"]
    assert said.severity is Severity.WARN
    assert "(75.0%): the walk is an estimate" in said.title


def test_a_recording_without_last_state(tmp_path):
    file = tiny.write_case(tmp_path)
    for sample in (tmp_path / "samples").iterdir():
        tiny.edit(sample, lambda t: t.pop("h.8"))
    one = open_case(file)
    found = {f.code: f for f in one.findings("acceptance")}
    for code in ("A020", "A023"):
        assert found[code].severity is Severity.BLOCKED
        assert "no final state is recorded" in found[code].measured
    assert views.drift(one)["choice"] is None
    assert "no final state" in views.drift(one)["missing"]
    with pytest.raises(Blocked, match="no final state"):
        views.sampling(one)


def test_replies_too_short_for_k(tmp_path):
    file = tiny.write_case(tmp_path)

    def shorten(t):
        t["loss_mask"].zero_()
        t["loss_mask"][20:23] = 1

    tiny.edit(tmp_path / "samples" / "first.safetensors", shorten)
    (said,) = [f for f in open_case(file, steps=4).findings("acceptance") if f.code == "A021"]
    assert said.severity is Severity.LIMIT
    assert "1 of 2 samples" in said.title and "partial" in said.title
    assert "first holds 2" in said.measured
    tiny.edit(tmp_path / "samples" / "second.safetensors", shorten)
    (said,) = [f for f in open_case(file, steps=4).findings("acceptance") if f.code == "A021"]
    assert said.severity is Severity.WARN
    assert "rows scored by position 4, 2, 0, 0" in said.measured


def judged_one(case, name="first", steps=3, **changes):
    sample = case.sample(name)
    part = case.evaluate(reading_of(case), steps, [name]).parts[name]
    return sample, part, judge(case.model, sample, reading_of(case), part, ["x"] * sample.length, **changes)


def test_each_judged_token(case):
    """Every token of the walk's rounds once, with what a rollout of its own says of it."""
    sample, part, tokens = judged_one(case)
    places = [t.place for t in tokens]
    assert places == sorted(set(places))
    assert len(tokens) == sum(min(r.accepted + 1, r.offered) for r in part.rounds)
    assert sum(t.verdict == ACCEPTED for t in tokens) == part.counts.accepted
    rolled = rollout(case.model, sample, reading_of(case), 3, keep=("logits",))
    for token in tokens:
        row = part.rounds[token.round].row
        assert token.place == row + 2 + token.step
        assert token.distance == token.place - tiny.PROMPT
        assert token.token == int(sample.input_ids[token.place])
        logits = rolled.steps[token.step].logits[row]
        odds = logits.softmax(-1)
        hot = case.model.vocab_map(reading_of(case)).hot_token_id.tolist()
        assert token.entropy == pytest.approx(float(-(odds * odds.log()).sum()), abs=1e-4)
        assert token.best == hot[int(logits.argmax())]
        assert token.confidence == pytest.approx(float(odds.max()), rel=1e-3)
        assert (token.best == token.token) == (token.verdict == ACCEPTED)
        if token.token in hot:
            mine = logits[hot.index(token.token)]
            assert token.rank == int((logits > mine).sum())
            assert token.probability == pytest.approx(float(odds[hot.index(token.token)]), rel=1e-3)
        if token.verdict == ACCEPTED:
            assert (token.rank, token.lost) == (0, 0)
        else:
            right = [bool(part.correct[row, k]) for k in range(token.step + 1, part.rounds[token.round].offered)]
            assert token.lost == 1 + len(list(itertools.takewhile(bool, right)))


def test_reasons(tmp_path):
    """Outside the vocabulary, near, far and broken, each made on purpose."""
    one = other_text(tmp_path, 4)
    _, _, tokens = judged_one(one)
    for token in tokens:
        if token.verdict == OUTSIDE:
            assert token.token % 2 == 1 and token.probability == 0 and token.rank == -1
        if token.verdict == NEAR:
            assert 1 <= token.rank < 4
        if token.verdict == FAR:
            assert token.rank >= 4
    assert {NEAR, FAR} & {t.verdict for t in tokens}
    sample = one.sample("second")
    states = {k: v.clone() for k, v in sample.states.items()}
    states[2][25:] = float("nan")
    broken = dataclasses.replace(sample, states=states)
    reading = reading_of(one)
    part = accept(rollout(one.model, broken, reading, 2, rows=reply_rows(broken)), broken)
    tokens = judge(one.model, broken, reading, part, ["x"] * broken.length)
    assert {t.verdict for t in tokens if t.place >= 27} == {BROKEN}
    assert all(t.rank == t.best == -1 and t.lost == 1 for t in tokens if t.verdict == BROKEN)


def test_costs_add_up(tmp_path):
    one = other_text(tmp_path, 3)
    parts, tokens = [], []
    for name in one.samples:
        _, part, found = judged_one(one, name)
        parts.append(part)
        tokens += found
    rounds = sum(len(p.rounds) for p in parts)
    found = costs(tokens, parts, lambda t: "odd" if t.token % 2 else "even", ("odd", "even"))
    assert [c.group for c in found] == [g for g in ("odd", "even") if any(c.group == g for c in found)]
    assert sum(c.judged for c in found) == len(tokens)
    assert sum(c.lost for c in found) == sum(t.lost for t in tokens)
    assert sum(c.a_round.value for c in found) == pytest.approx(sum(t.lost for t in tokens) / rounds)
    assert sum(sum(c.refused) for c in found) == sum(t.verdict != ACCEPTED for t in tokens)
    assert all(c.share.low <= c.share.value <= c.share.high for c in found)
    many = [dataclasses.replace(p, sample=f"{p.sample}{i}") for i in range(3) for p in parts]
    copies = [dataclasses.replace(t, sample=f"{t.sample}{i}") for i in range(3) for t in tokens]
    again = costs(copies, many, lambda t: "odd" if t.token % 2 else "even", ("odd", "even"))
    assert "samples" in again[0].share.method
    assert [c.share.value for c in again] == pytest.approx([c.share.value for c in found])
    assert {t.kind for t in tokens} == {"inside word"}, "every text is x: letters after letters"
    sample, part = one.sample("first"), parts[0]
    nameless = [f"<{t}>" for t in sample.input_ids.tolist()]
    assert {t.kind for t in judge(one.model, sample, reading_of(one), part, nameless)} == {"other"}
    assert distance_group(dataclasses.replace(tokens[0], distance=35)) == "32–47"


def everything(case, sample, temperature):
    """The target's distribution after each row, [T, V], by plain softmax."""
    states = case.model.final_state(sample).float()
    return (states @ case.target.head().float().T / temperature).softmax(-1)


def test_sampling_against_plain_softmax(case):
    """Both rules, every position, over the whole head: the sums written down again, row by row."""
    sample, reading, temperature = case.sample("second"), reading_of(case), 0.7
    found = {s.rule: s for s in sampled(case.model, sample, reading, 3, [temperature], greedy=False)}
    p = everything(case, sample, temperature)
    hot = case.model.vocab_map(reading).hot_token_id
    rolled = rollout(case.model, sample, reading, 3, keep=("logits",))
    reached, taken = {rule: [0.0] * 3 for rule in RULES}, {rule: [0.0] * 3 for rule in RULES}
    for row in reply_rows(sample).tolist():
        weight = dict.fromkeys(RULES, 1.0)
        for k in range(min(3, tiny.T - 2 - row)):
            step = rolled.steps[k]
            q = torch.zeros(tiny.V)
            q[hot] = (step.logits[row] / temperature).softmax(-1)
            at, best, truth = p[row + 1 + k], int(step.top_ids[row, 0]), int(step.truth[row])
            chance = {RULES[0]: float(at[best]), RULES[1]: float(torch.minimum(at, q).sum())}
            onward = {RULES[0]: float(best == truth), RULES[1]: min(1.0, float(q[truth] / at[truth]))}
            for rule in RULES:
                reached[rule][k] += weight[rule]
                taken[rule][k] += weight[rule] * chance[rule]
                weight[rule] *= onward[rule]
    for rule in RULES:
        assert found[rule].exact
        assert list(found[rule].reached) == pytest.approx(reached[rule], rel=1e-4)
        assert list(found[rule].accepted) == pytest.approx(taken[rule], rel=1e-4)


def test_sampling_near_temperature_0_is_the_greedy_chain(case):
    sample, reading = case.sample("first"), reading_of(case)
    (cold,) = sampled(case.model, sample, reading, 3, [1e-3])
    part = case.evaluate(reading, 3, ["first"]).parts["first"]
    assert list(cold.accepted) == pytest.approx(list(part.counts.joint), abs=1e-3)


def test_sums_add_up():
    one = Sampled(RULES[0], 1.0, True, (10.0, 4.0), (5.0, 1.0))
    both = one + dataclasses.replace(one, exact=False)
    assert both == Sampled(RULES[0], 1.0, False, (20.0, 8.0), (10.0, 2.0))
    assert both.conditional == (0.5, 0.25)
    assert both.cumulative == (0.5, 0.125)
    assert both.accept_length == 1.625
    assert Sampled(RULES[0], 1.0, True, (4.0, 0.0), (0.0, 0.0)).accept_length == 1.0
    with pytest.raises(ValueError, match="do not add up"):
        one + dataclasses.replace(one, temperature=0.5)


def sliced(folder, keep):
    """The case with a slice of the target: only ``keep`` rows."""
    file = tiny.write_case(folder)
    whole = load_file(folder / "target" / "model.safetensors")
    (folder / "target" / "model.safetensors").unlink()
    tiny.write_sample(
        folder / "target" / "slice.safetensors",
        {"token_ids": keep, "embed_tokens.rows": whole["model.embed_tokens.weight"][keep],
         "lm_head.rows": whole["lm_head.weight"][keep], "norm.weight": whole["model.norm.weight"]},
        format="eagle3lab-target-slice/1", vocab_size=str(tiny.V),
    )  # fmt: skip
    return open_case(file)


def test_a_slice_gives_an_upper_bound_and_says_so(case, tmp_path):
    """Tokens of the draft vocabulary and of the recording are held, eight others are not."""
    missing = torch.tensor(
        [t for t in range(1, tiny.V, 2) if all(t not in s.input_ids for s in map(case.sample, case.samples))]
    )
    assert len(missing)
    keep = torch.tensor([t for t in range(tiny.V) if t not in missing])
    one = sliced(tmp_path, keep)
    for name in one.samples:
        exact = {s.rule: s for s in sampled(case.model, case.sample(name), reading_of(case), 3, [1.0], greedy=False)}
        most = {s.rule: s for s in sampled(one.model, one.sample(name), reading_of(one), 3, [1.0], greedy=False)}
        assert not most[RULES[0]].exact
        assert all(a >= b - 1e-6 for a, b in zip(most[RULES[0]].accepted, exact[RULES[0]].accepted, strict=True))
        assert len(most[RULES[1]].accepted) == 1
        assert most[RULES[1]].accepted[0] >= exact[RULES[1]].accepted[0] - 1e-6
    rows = views.sampling(one)
    assert [r["exact"] for r in rows] == [r["temperature"] == 0 for r in rows]
    (said,) = [f for f in one.findings("acceptance") if f.code == "A023"]
    assert said.severity is Severity.LIMIT and "at most" in said.title


def test_a_slice_without_the_drafts_own_rows_is_blocked(case, tmp_path):
    held = torch.cat([case.sample(n).input_ids for n in case.samples]).unique()
    # embeddings of all recorded tokens are there, head rows of some drafts are not
    one = sliced(tmp_path, held)
    with pytest.raises(Blocked, match="tokens of the draft vocabulary have no lm_head row"):
        sampled(one.model, one.sample("first"), reading_of(one), 2, [1.0])


def test_a_head_that_does_not_fit(case):
    sample = case.sample("first")
    wide = dataclasses.replace(sample, final=torch.zeros(sample.length, 20), final_norm="post")
    with pytest.raises(BadShape, match="20 wide"):
        sampled(case.model, wide, reading_of(case), 2, [1.0])
    part = case.evaluate(reading_of(case), 2, ["first"]).parts["first"]
    with pytest.raises(BadShape, match="20 wide"):
        against_choice(case.model, wide, reading_of(case), part)
    with pytest.raises(Blocked, match="must be above 0"):
        sampled(case.model, sample, reading_of(case), 2, [0.0])


def test_models_that_shape_their_logits(tmp_path):
    """Gemma 2's cap and Granite's scaling change probabilities, and nothing greedy."""
    file = tiny.write_case(tmp_path)
    plain = open_case(file)
    (before,) = sampled(plain.model, plain.sample("first"), reading_of(plain), 2, [1.0])
    tiny.edit_json(tmp_path / "target" / "config.json", logits_scaling=2.0, final_logit_softcapping=5.0)
    shaped = open_case(file)
    (after,) = sampled(shaped.model, shaped.sample("first"), reading_of(shaped), 2, [1.0])
    assert after.accepted[0] < before.accepted[0]
    p = (shaped.model.final_state(shaped.sample("first")).float() @ shaped.target.head().float().T) / 2
    p = (5 * (p / 5).tanh()).softmax(-1)
    said = rollout(
        shaped.model, shaped.sample("first"), reading_of(shaped), 1, rows=reply_rows(shaped.sample("first"))
    ).steps[0]
    assert after.accepted[0] == pytest.approx(float(p[said.rows + 1, said.top_ids[:, 0]].sum()), rel=1e-4)


def test_rows_for_the_notebook(case, monkeypatch):
    """Plain numbers all the way, as the pictures and tables take them; the strip says what the draft thought."""
    shown = []
    monkeypatch.setattr(explore, "display", lambda *things: shown.extend(things))
    explore.trees(case, False)
    explore.costs(case, False)
    explore.recorded(case)
    assert len(shown) == 6
    for rows in (
        views.curves(case),
        views.definitions(case),
        views.drift(case),
        views.sampling(case),
        views.sample_curves(case),
    ):
        json.dumps(rows)
    lines = views.definitions(case)
    assert lines[0]["value"] == case.evaluate(case.fitted, case.steps).length.value
    assert lines[1]["value"] == pytest.approx(lines[0]["value"] - 1)
    strip = views.strip(case, "first", 3)
    part = case.evaluate(case.fitted, 3, ["first"]).parts["first"]
    assert strip["kinds"].count("accepted") == part.counts.accepted
    title = strip["titles"][tiny.PROMPT + 1]
    for word in (
        "position 13",
        "round 0, draft 1",
        "no. 1 of the draft's candidates, probability",
        "entropy",
        "1 tokens into",
    ):
        assert word in title, title


def test_the_strip_says_what_the_draft_said_instead(tmp_path):
    one = other_text(tmp_path, 4)
    strip = views.strip(one, "first", 3)
    refused = [title for title, kind in zip(strip["titles"], strip["kinds"], strict=True) if kind == "rejected"]
    assert refused
    for title in refused:
        assert "the draft said '<" in title
        assert "among the draft's 4 best" in title
