"""What a round costs, by the runs that were timed, and which setting pays most on the recorded acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3lab.checks.evidence import Serving
from eagle3lab.checks.figures import figures, said_steps
from eagle3lab.checks.trees import tree_lengths
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import flags
from eagle3lab.errors import LabError
from eagle3lab.gap import Cost, cost
from eagle3lab.gap.resample import FEWEST, Draws
from eagle3lab.gap.throughput import CHECK, TREE, CostModel, Setting, fit_cost
from eagle3lab.gap.tuning import Tuned, Tuning, tune
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


PRINTED = "by the engine's printed mean, without counts"
"""Where an accept length comes from when the engine gave no counts."""


@dataclass(frozen=True)
class Timed:
    """A run whose round has a price.

    Attributes:
        run: the run.
        setting: how much it drafts.
        cost: what a round costs, in plain steps of ``baseline``.
        baseline: the run without speculation beside it, timed.
        speed: tokens/s of the run.
        plain: tokens/s of the baseline.
        printed: the accept length is a mean that the engine printed.
    """

    run: ServingRun
    setting: Setting
    cost: Cost
    baseline: ServingRun
    speed: float
    plain: float
    printed: bool = False

    @property
    def foreign(self) -> bool:
        """Whether the baseline ran in another engine; one that names none is taken as the run's own."""
        return bool(self.baseline.engine) and self.baseline.engine != self.run.engine

    @property
    def reserved(self) -> str:
        """What the price is to be taken with, "" when with nothing."""
        foreign = f"against {self.baseline.name!r}, which ran in {self.baseline.engine}, not in {self.run.engine}: the cost " \
                  "holds what the two engines differ by"  # fmt: skip
        return "; ".join([PRINTED] * self.printed + [foreign] * self.foreign)

    @property
    def words(self) -> str:
        """Run, setting, price."""
        also = f" ({self.reserved})" if self.reserved else ""
        return f"{self.run.name} ({self.setting.words}): {self.cost.round_cost:.2f}{also}"


def speed_of(run: ServingRun) -> float | None:
    """Tokens/s, None when the run was not timed."""
    return run.tokens / run.seconds if run.seconds and run.tokens else None


def baseline_of(case: Serving, run: ServingRun | None) -> ServingRun | None:
    """The timed run without speculation that ``run`` is measured by: of its own engine, if possible of its version."""
    plain = [other for other in case.runs if not other.speculative and speed_of(other)]
    if run is None:
        return plain[0] if plain else None
    return min(
        plain,
        key=lambda r: (r.engine != run.engine, bool(r.engine), r.version != run.version, r.runner != run.runner),
        default=None,
    )


def timed(case: Serving, run: ServingRun) -> Timed | str:
    """What a round of ``run`` costs, or why that cannot be told."""
    base, speed = baseline_of(case, run), speed_of(run)
    if speed is None:
        return "its seconds and tokens are not given"
    plain = speed_of(base) if base else None
    if base is None or plain is None:
        return "no run without speculation was timed (steps = 0, seconds, tokens)"
    if run.topk > 1 and not run.draft_tokens:
        return "draft_tokens is not given, so the size of its tree is not known"
    try:
        reports = case.reports(run)
    except LabError as error:
        return error.line
    usable = figures(run, reports)
    length = usable.length
    if printed := length is None and usable.printed is not None:
        length = usable.printed.reported_length if usable.printed else None
    if length is None:
        return usable.why or "its files hold no accept length"
    steps = effective_steps(run, reports=reports)
    setting = Setting(steps, run.topk, steps if run.topk == 1 else (run.draft_tokens or 1) - 1)
    return Timed(run, setting, cost(length, speed, plain), base, speed, plain, printed)


def settings(case: Serving) -> tuple[list[Timed], list[str]]:
    """Runs whose rounds have a price, of the chosen run's engine where it has any; why other timed runs are left out."""
    found = {run.name: timed(case, run) for run in case.runs if run.speculative and speed_of(run)}
    out = [one for one in found.values() if isinstance(one, Timed)]
    left = [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
    engine = case.run.engine if case.run else ""
    own = [one for one in out if one.run.engine == engine]
    if own:
        left += [
            f"{one.run.name}: it ran in {one.run.engine or 'an engine not named'}" for one in out if one not in own
        ]
    return own or out, left


def fitted_cost(case: Serving) -> tuple[CostModel | None, list[Timed], list[str]]:
    """The cost model of the timed runs, None without any; those runs, and why others are left out."""
    found, left = settings(case)
    return fit_cost([(one.setting, one.cost.round_cost) for one in found]), found, left


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
    return tune(model, table, found.counts.rounds, draws.method, chains_only=chains_only(case))


def asked(case: Serving, model: CostModel, found: Sequence[Timed] = ()) -> list[str]:
    """What to measure to be sure; no tree of an engine that grows none."""
    again = f"the runs of one setting timed again under one load: {CHECK}"
    out = [again] * bool(model.contrary) + [text for text in model.asks if text != TREE or not chains_only(case)]
    if found and case.run and case.run.engine not in {one.run.engine for one in found}:
        out.append(
            f"a timed run of {case.run.engine or 'the chosen engine'}: the prices here are {found[0].run.engine}'s"
        )
    foreign = dict.fromkeys(one.run.engine for one in found if one.foreign)
    out += [f"a timed run of {name or 'the same engine'} without speculation" for name in foreign]
    return out + [f"metrics or answers of {one.run.name!r}, for its counts" for one in found if one.printed]


def tuning(case: Serving) -> list[Finding]:
    """E013: the cost of a round as far as it is known, and the setting that pays most."""
    model, priced, left = fitted_cost(case)
    where = "case.toml: seconds, tokens"
    if model is None:
        return [Finding("E013", Severity.UNDETERMINED, "what a round costs cannot be told", where, evidence="; ".join(left),
                        remedy="give what is named here")] if left else []  # fmt: skip
    found = tuned(case, model)
    behind = ", ".join(one.words for one in priced)
    behind += f", up to {model.worst:.2f} off the model" if model.worst >= 0.005 else ""
    open_ends = [f"not identified: {text}" for text in model.missing if text not in model.impossible]
    unsure = [*model.contrary, *model.assumed, *open_ends, *(f"left out: {text}" for text in left)]
    asks = asked(case, model, priced)
    best = found.best
    if best is None:
        title, remedy = "no setting's throughput can be told", "; ".join(asks)
        if model.impossible:
            title, remedy = f"partial: no setting is recommended: {model.impossible[0]}", CHECK
        evidence = "; ".join([f"measured: {behind}", *model.impossible[1:], *unsure])
        return [Finding("E013", Severity.UNDETERMINED, title, where, model.law, evidence=evidence, remedy=remedy)]
    pays = best.speedup.value > 1
    title = ("partial: " if asks else "") + _title(best) + ("; runs of one setting differ" if model.contrary else "")
    shown = [row for row in found.rows if row.setting.topk == 1]
    shown += sorted((row for row in found.rows if row.setting.topk > 1), key=lambda row: -row.speedup.value)[:3]
    each = ", ".join(
        f"{row.setting.words} –" if row.why else f"{row.setting.words} {row.speedup.value:.2f}×" for row in shown
    )
    whys = dict.fromkeys(f"–: {row.why}" for row in shown if row.why)
    evidence = "; ".join([f"measured: {behind}", f"interval: {best.speedup.method}", *unsure, *whys])
    how = flag_words(case, best.setting) if pays else ""
    ask = f"to be sure, give {'; '.join(asks)}" if asks else ""
    return [Finding("E013", Severity.WARN if model.contrary else Severity.INFO, title, where,
                    "; ".join(filter(None, [model.law, each, found.sure])), evidence=evidence,
                    remedy="; ".join(filter(None, [how, ask])))]  # fmt: skip


def _title(best: Tuned) -> str:
    value, low, high = best.speedup.value, best.speedup.low, best.speedup.high
    interval = f" [{low:.2f}, {high:.2f}]" if low == low else ""
    if value > 1 and low < 1:
        interval += ", so that it may not pay"
    if value > 1:
        return f"{best.setting.words} pays most under the fitted reading: {value:.2f} times plain decoding{interval}"
    return (
        f"nothing pays at this cost: the best, {best.setting.words}, gives {value:.2f} times plain decoding{interval}"
    )


def flag_words(case: Serving, setting: Setting) -> str:
    """The setting as the run's engine wants it typed; SGLang's and vLLM's way without a run."""
    engine = case.run.engine if case.run else ""
    return flags.typed(engine, setting.steps, setting.topk, setting.draft_tokens, "DRAFT")
