"""Acceptance taken apart, as rows: by definition, by position, by tree, by token, at a temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from eagle3lab.acceptance import (
    RULES,
    Acceptance,
    Drift,
    Sampled,
    accept_length_interval,
    ceiling,
    definition,
    eagle_tree,
    evaluate_tree,
    everywhere,
    first_within,
    head_cost,
    offsets,
    rates,
    sampled,
    sglang_tree,
    total,
    tree_cost,
    tree_definition,
    words_of,
)
from eagle3lab.case import Case
from eagle3lab.errors import LabError
from eagle3lab.reading import Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.tokens import ACCEPTED, FAR, NEAR, OUTSIDE, REASONS, WITHIN, Cost, Judged, costs, distance_group, judge
from eagle3lab.views.files import texts_of
from eagle3lab.views.rounds import both

GROUPS: dict[str, tuple[Callable[[Judged], str], Sequence[str]]] = {
    "text kind": (lambda token: token.kind, ("word start", "inside word", "number", "punctuation", "code",
                                             "whitespace", "special", "other")),
    "reason": (lambda token: token.verdict, REASONS),
    "distance from the prompt": (lambda token: distance_group(token), ()),
    "draft of the round": (lambda token: f"draft {token.step + 1}", ()),
}  # fmt: skip
"""By what the cost of refused drafts can be told apart."""

TEMPERATURES = (0.3, 0.6, 1.0)


def _parts(case: Case, reading: Reading | None = None, fed: str = "recorded") -> list[Acceptance]:
    return list(case.evaluate(reading or case.fitted, case.steps, fed=fed).parts.values())


def curves(case: Case) -> dict[str, Any]:
    """Rates by draft position with intervals, configured and fitted, and the vocabulary's ceiling of the fitted."""
    series = {
        label: {kind: _plain(rates(list(found.parts.values()), kind)) for kind in ("cumulative", "conditional")}
        for label, found in both(case).items()
    }
    return {"series": series, "ceiling": list(ceiling(_parts(case)).cumulative)}


def _plain(intervals: Sequence[Interval]) -> list[dict[str, Any]]:
    return [{"value": i.value, "low": i.low, "high": i.high, "n": i.n} for i in intervals]


def definitions(case: Case) -> list[dict[str, Any]]:
    """One rollout under the fitted reading, counted in six ways; the first is the headline."""
    parts = _parts(case)
    found = case.evaluate(case.fitted, case.steps)
    length, counts, all_rows, starts = found.length, found.counts, everywhere(parts), offsets(parts)
    lengths, top = [o.accept_length for o in starts], ceiling(parts)
    product, chance = 1.0, 1.0
    for rate in counts.accuracy:
        chance *= rate if rate == rate else 0.0
        product += chance
    rows = [
        ("the engine's walk", length, f"the headline: {definition(case.steps)}"),
        ("without the bonus token", _less_one(length), "the same walk: accepted / rounds, as EAGLE's "
         "evaluate_posterior and training's simulated length count"),
        ("a round at every row", all_rows, "every reply row begins a round: rows just after a refused token, where an "
         "engine always stands, weigh less here"),
        ("walks begun elsewhere", Interval(sum(lengths) / len(lengths), min(lengths), max(lengths), len(lengths)),
         f"mean, and least to most, of walks begun at offsets 0 … {case.steps}: no interval, the spread that the "
         "start alone makes"),
        ("product of the steps' accuracies", Interval(product, float("nan"), float("nan"), counts.scored[0]),
         "1 + Σ Π accuracy, what a trainer's accuracies suggest: later steps are counted after wrong drafts too"),
        ("the vocabulary's ceiling", Interval(top.accept_length, float("nan"), float("nan"), top.rounds),
         "the walk of a draft that says every token of its vocabulary right; a token outside it is a miss"),
    ]  # fmt: skip
    return [
        {"label": label, "value": i.value, "low": i.low, "high": i.high, "n": i.n, "words": words}
        for label, i, words in rows
    ]


def _less_one(i: Interval) -> Interval:
    return Interval(i.value - 1, i.low - 1, i.high - 1, i.n, i.method)


def trees(case: Case, sglang_topk: int = 4) -> list[dict[str, Any]]:
    """The chain beside SGLang's and EAGLE's trees under the fitted reading, all samples of the headline.

    SGLang's other defaults for Llama are steps 5 and draft tokens 8; EAGLE's are those of its evaluation, 60/5/10.
    """
    shapes = sglang_tree(topk=sglang_topk), eagle_tree(depth=5, top_k=10, total_token=60)
    every = _parts(case)
    parts = first_within(every, lambda part: sum(tree_cost(case.model, case.sample(part.sample), s) for s in shapes))
    names, partial = [part.sample for part in parts], words_of(parts, every)
    rows = [_tree_row(f"chain of {case.steps}", parts, "; ".join(filter(None, [definition(case.steps), partial])),
                      case.steps, case.steps)]  # fmt: skip
    for shape in shapes:
        case.progress(f"{shape.program}'s tree ({shape.words}) over {len(names)} samples")
        found = evaluate_tree(case.model, case.samples, names, case.fitted, shape)
        words = tree_definition(shape)
        if left := len(found.skipped):
            words += f"; partial: {left} samples left out, {next(iter(found.skipped.values()))}"
        if found.nonfinite:
            words += f"; partial: {found.nonfinite} trees hold logits that are not finite"
        label = f"{shape.program} tree, {shape.words}"
        rows.append(_tree_row(label, list(found.parts.values()), words, shape.nodes, shape.forwards))
    return rows


def _tree_row(label: str, parts: list[Acceptance], words: str, nodes: int, forwards: int) -> dict[str, Any]:
    length, by_depth = accept_length_interval(parts), rates(parts, "cumulative")
    return {"label": label, "value": length.value, "low": length.low, "high": length.high, "rounds": length.n,
            "nodes": nodes, "forwards": forwards, "depths": _plain(by_depth), "words": words}  # fmt: skip


def judged(case: Case, name: str = "", reading: Reading | None = None, steps: int = 0) -> list[Judged]:
    """The tokens that the walk judged, of one sample, or of all of the headline when ``""``."""
    chosen = reading or case.fitted
    found = case.evaluate(chosen, steps, [name] if name else ())
    out = []
    for part in found.parts.values():
        sample = case.sample(part.sample)
        out += judge(case.model, sample, chosen, part, _texts(case, sample))
    return out


def _texts(case: Case, sample: Sample) -> list[str]:
    return texts_of(case, sample.input_ids.tolist())


def cost_rows(case: Case, tokens: Sequence[Judged], by: str = "text kind") -> list[dict[str, Any]]:
    """What each group of tokens costs, most costly first where the groups have no order of their own."""
    group, order = GROUPS[by]
    found = costs([t for t in tokens if by != "reason" or t.verdict != ACCEPTED], _parts(case), group, order)
    return [
        _cost_row(cost) for cost in (sorted(found, key=lambda c: -c.lost) if by in ("text kind", "reason") else found)
    ]


def _cost_row(cost: Cost) -> dict[str, Any]:
    return {
        "group": cost.group, "judged": cost.judged, "refused": dict(zip(REASONS, cost.refused, strict=True)),
        "lost": cost.lost, "share": cost.share.value, "share_low": cost.share.low, "share_high": cost.share.high,
        "a_round": cost.a_round.value, "low": cost.a_round.low, "high": cost.a_round.high,
    }  # fmt: skip


def drift(case: Case) -> dict[str, Any]:
    """Later steps fed with recorded and with own tokens; the recorded text against the target's own choice."""
    recorded, own = _parts(case), _parts(case, fed="self")
    found = Drift.of(recorded, own)
    rows: dict[str, Any] = {
        "scored": list(found.scored),
        "recorded": [n / of if of else float("nan") for n, of in zip(found.recorded, found.scored, strict=True)],
        "own": [n / of if of else float("nan") for n, of in zip(found.own, found.scored, strict=True)],
        "rounds": found.rounds,
        "equal": found.equal,
        "choice": None,
        "missing": "",
    }
    try:
        rows["choice"] = vars(case.choice(case.fitted)[0]) | {
            "held": len(case.model.target.token_ids) if case.model.target else 0
        }
    except LabError as error:
        rows["missing"] = error.line
    return rows


def _affordable(case: Case, times: int = 1) -> list[Acceptance]:
    """The first samples whose rows can be taken through the target's head so often in reasonable time."""
    return first_within(_parts(case), lambda part: times * head_cost(case.model, case.sample(part.sample)))


def sampling(case: Case, temperatures: Sequence[float] = TEMPERATURES) -> list[dict[str, Any]]:
    """Expected acceptance at temperatures, greedy drafts and, at the first position, probabilistic ones."""
    totals: dict[tuple[float, str], Sampled] = {}
    whole = case.target is not None and not case.target.sliced
    chosen = _affordable(case, len(temperatures))
    for part in chosen:
        for one in sampled(case.model, case.sample(part.sample), case.fitted, case.steps, temperatures, greedy=False):
            key = (one.temperature, one.rule)
            totals[key] = totals[key] + one if key in totals else one
    joint = total(chosen).joint
    reached = next((one.reached for (_, rule), one in totals.items() if rule == RULES[0]), (0.0,) * case.steps)
    first = Sampled(RULES[0], 0.0, True, reached, tuple(map(float, joint)))
    rows = [{"temperature": 0.0, "rule": RULES[0], "exact": True, "cumulative": list(first.cumulative),
             "accept_length": first.accept_length, "n": round(reached[0])}]  # fmt: skip
    for (temperature, rule), one in sorted(totals.items(), key=lambda item: (item[0][0], item[0][1])):
        partial = len(one.reached) < case.steps
        rows.append({"temperature": temperature, "rule": rule, "exact": whole and one.exact,
                     "cumulative": list(one.cumulative), "n": round(one.reached[0]),
                     "accept_length": float("nan") if partial else one.accept_length})  # fmt: skip
    return rows


def sample_curves(case: Case) -> dict[str, Any]:
    """Cumulative rate by position of each sample under the fitted reading, and of all together."""
    found = case.evaluate(case.fitted, case.steps)
    rows = [
        {"name": name, "cumulative": list(part.counts.cumulative), "accept_length": part.counts.accept_length,
         "rounds": part.counts.rounds}
        for name, part in found.parts.items()
    ]  # fmt: skip
    return {"rows": rows, "together": list(found.counts.cumulative)}


def strip(case: Case, name: str = "", steps: int = 0, reading: Reading | None = None) -> dict[str, list[str]]:
    """A sample's tokens as the engine's walk sees them, with what the draft thought of each."""
    sample, chosen = case.sample(name), reading or case.fitted
    part = case.evaluate(chosen, steps, [sample.name]).parts[sample.name]
    ids, texts = sample.input_ids.tolist(), _texts(case, sample)
    kinds = ["reply" if m else "prompt" for m in sample.loss_mask.tolist()]
    titles = [f"position {t}, token {i} {text!r}" for t, (i, text) in enumerate(zip(ids, texts, strict=True))]
    for number, r in enumerate(part.rounds):
        place = r.row + 1 + chosen.shift + r.accepted
        if r.accepted == r.offered and any(a <= place < b for a, b in part.spans):
            kinds[place] = "bonus"
            titles[place] += f"\nround {number}: the target's own token after {r.accepted} accepted drafts"
    tokens: list[Judged] = []
    with suppress(LabError):  # the walk stands without what the draft thought
        tokens = judge(case.model, sample, chosen, part, texts)
    instead = texts_of(case, [token.best for token in tokens])
    for token, text in zip(tokens, instead, strict=True):
        kinds[token.place] = _look(token)
        titles[token.place] += "\n" + _thought(token, text)
    return {"tokens": texts, "kinds": kinds, "titles": titles}


def _look(token: Judged) -> str:
    return "accepted" if token.verdict == ACCEPTED else "oov" if token.verdict == OUTSIDE else "rejected"


def _thought(token: Judged, instead: str) -> str:
    """What a pointer on the token shows: round, reason, rank and probability, and what the draft said instead."""
    lines = [f"round {token.round}, draft {token.step + 1}: {token.verdict}"]
    if token.verdict != ACCEPTED:
        why = {
            OUTSIDE: "the draft vocabulary lacks this token",
            NEAR: f"among the draft's {WITHIN} best",
            FAR: f"not among the draft's {WITHIN} best",
        }.get(token.verdict, "the draft's logits are broken here")
        lines[0] += f": refused, {why}; cost {token.lost} drafts"
        if token.best >= 0:
            lines.append(f"the draft said {instead!r} with probability {token.confidence:.3f}")
    if token.rank >= 0:
        lines.append(f"no. {token.rank + 1} of the draft's candidates, probability {token.probability:.3f}")
    lines.append(f"entropy of the draft {token.entropy:.2f} nats; {token.kind}; {token.distance} tokens into the reply")
    return "\n".join(lines)
