"""What a round costs, by the runs that were timed, and which setting pays most on the recorded acceptance."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab.checks.evidence import Serving
from eagle3lab.checks.figures import figures, said_steps
from eagle3lab.checks.trees import tree_lengths
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import flags
from eagle3lab.gap import cost
from eagle3lab.gap.resample import FEWEST, Draws
from eagle3lab.gap.throughput import CHECK, CostModel, Setting, Tuning, fit_cost, tune
from eagle3lab.records import Finding, Severity

CODES = {"E013": "what a round costs by K, and the setting that pays most"}


def effective_steps(run: ServingRun, otherwise: int | None = None, reports: Sequence[EngineReport] = ()) -> int:
    """K of a run: as its files say, else the case's; a chain drafts no more than its tokens less the root; else 5."""
    if not run.speculative:
        return 0
    if said := said_steps(run, reports):
        return said
    steps = run.steps or otherwise or 5
    return min(steps, run.draft_tokens - 1) if run.topk == 1 and run.draft_tokens and run.draft_tokens > 1 else steps


def settings(case: Serving) -> list[tuple[str, Setting, float]]:
    """(run, setting, cost of a round in plain steps) of each run that was timed and counted."""
    base, out = case.baseline, []
    if base is None or not (base.seconds and base.tokens):
        return []
    for run in case.runs:
        if not (run.speculative and run.seconds and run.tokens and (run.topk == 1 or run.draft_tokens)):
            continue
        reports = case.reports(run)
        length = figures(run, reports).length
        if length is None:
            continue
        price = cost(length, run.tokens / run.seconds, base.tokens / base.seconds).round_cost
        steps = effective_steps(run, reports=reports)
        tokens = steps if run.topk == 1 else (run.draft_tokens or 1) - 1
        out.append((run.name, Setting(steps, run.topk, tokens), price))
    return out


DEEP = 7
"""Chains tried at least, whatever the run's K: as deep as SpecForge trains by default."""

LEVELS = 5
"""Levels of trees tried at least: SGLang's default for Llama. Each level more costs topk draft steps a row."""


def chains_only(case: Serving) -> bool:
    """Whether the chosen run's engine grows no tree that the lab knows."""
    return case.run is not None and case.run.engine != "sglang"


def tuned(case: Serving, model: CostModel) -> Tuning:
    """Chains, and SGLang's trees where their cost can be told, under the fitted reading at the model's cost.

    All of them on the same samples. Where the run's engine drafts chains only, no tree is called best.
    """
    fitted = case.scan.fitted
    usual = case.evaluate(fitted).steps
    deep = max(usual, DEEP)
    trees = tree_lengths(case, fitted, max(usual, LEVELS)) if model.trees else {}
    names = tuple(next(iter(trees.values())).parts) if trees else ()
    found = case.evaluate(fitted, deep, names)
    draws = Draws(list(found.parts))
    settings = {Setting(k): found.cut(k) for k in range(1, deep + 1) if found.counts.scored[k - 1]} | trees
    table = {}
    for setting, one in settings.items():
        counts = {name: part.counts for name, part in one.parts.items()}
        drawn = draws.drawn(counts).length if len(found.parts) >= FEWEST else draws.weights[:0, 0]
        table[setting] = (one.counts.accept_length, drawn)
    return tune(
        model,
        table,
        found.counts.rounds,
        draws.method,
        chains_only=case.run is not None and case.run.engine != "sglang",
    )


def tuning(case: Serving) -> list[Finding]:
    """E013: the cost of a round as far as it is known, and the setting that pays most."""
    timed = settings(case)
    model = fit_cost([(setting, price) for _, setting, price in timed])
    if model is None:
        return []
    found = tuned(case, model)
    law = model.law
    behind = ", ".join(f"{name} ({s.words}): {price:.2f}" for name, s, price in timed)
    behind += f", up to {model.worst:.2f} off the model" if model.worst >= 0.005 else ""
    open_ends = [text for text in model.missing if text not in model.impossible]
    unsure = "; ".join([*model.assumed, *(f"not identified: {text}" for text in open_ends)])
    ask = "; ".join(model.asks)
    best = found.best
    if best is None:
        title = "no setting's throughput can be told"
        if model.impossible:
            title, ask = f"partial: no setting is recommended: {model.impossible[0]}", CHECK
        evidence = "; ".join(filter(None, [f"measured: {behind}", *model.impossible[1:], unsure]))
        where = "case.toml: seconds, tokens"
        return [Finding("E013", Severity.UNDETERMINED, title, where, law, evidence=evidence, remedy=ask)]
    low, high = best.speedup.low, best.speedup.high
    pays = best.speedup.value > 1
    what = best.setting.words
    title = f"{'partial: ' if model.asks else ''}{what} pays most under the fitted reading: {best.speedup.value:.2f} times plain decoding" + (
        f" [{low:.2f}, {high:.2f}]" if low == low else "")  # fmt: skip
    if not pays:
        title = f"{'partial: ' if model.asks else ''}nothing pays at this cost: the best, {what}, gives {best.speedup.value:.2f} times plain decoding"
    share = f"; best in {found.chosen:.0%} of the draws" if found.chosen == found.chosen else ""
    shown = [row for row in found.rows if row.setting.topk == 1]
    shown += sorted((row for row in found.rows if row.setting.topk > 1), key=lambda row: -row.speedup.value)[:3]
    each = ", ".join(f"{row.setting.words} {row.speedup.value:.2f}×" for row in shown)
    how = flag_words(case, best.setting)
    return [Finding("E013", Severity.INFO, title, "case.toml: seconds, tokens", f"{law}; {each}{share}",
                    evidence=f"measured: {behind}; {unsure}" if unsure else f"measured: {behind}",
                    remedy="; ".join(filter(None, [how if pays else "", f"to be sure, give {ask}" if ask else ""])))]  # fmt: skip


def flag_words(case: Serving, setting: Setting) -> str:
    """The setting as the run's engine wants it typed, every engine's way without a run."""
    engine = case.run.engine if case.run else ""
    ways = {"sglang": flags.sglang(setting.steps, setting.topk, setting.draft_tokens, "DRAFT"),
            "vllm": flags.vllm(setting.steps, "DRAFT") if setting.topk == 1 else "vLLM drafts chains only"}  # fmt: skip
    return ways.get(engine) or "; ".join(ways.values())
