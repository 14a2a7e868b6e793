"""Controls for looking around: a drawing function and its choices; without a front end, one still picture.

The only module that imports ipywidgets, and only when a control is really built: the mere creation of a widget leaves
state in the notebook that a shared report would then depend on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from IPython.display import display

from eagle3lab import plots, tables, views
from eagle3lab.case import Case
from eagle3lab.errors import LabError
from eagle3lab.reading import show
from eagle3lab.stats import histogram

FORCE = "EAGLE3LAB_WIDGETS"
"""Environment variable: 1 builds controls in any kernel (tests), 0 never."""

FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")
"""Set for kernels that Jupyter, VS Code or Colab started; papermill's and nbclient's kernels have none of them."""

ALL = "all headline samples"
START = "start_from"

Choice = tuple[Sequence[Any], Any]
"""Options and the one to start from."""


def has_front_end() -> bool:
    """Whether somebody can move a control in this kernel."""
    forced = os.environ.get(FORCE)
    return forced == "1" if forced in ("0", "1") else any(os.environ.get(name) for name in FRONT_ENDS)


def explore(
    draw: Callable[..., Sequence[Any]],
    interactive: bool,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    /,
    **choices: Choice,
) -> None:
    """Shows ``draw`` for a choice of its arguments.

    Args:
        draw: takes the choices by name, returns the objects to display.
        interactive: the notebook's ``INTERACTIVE``.
        presets: name → choices that are set together; a further control, which then redraws once.
        choices: options and start of each argument; a ``range`` becomes a slider, everything else a dropdown.
    """
    if not (interactive and has_front_end()):
        display(*draw(**{name: start for name, (_, start) in choices.items()}))
        return
    import ipywidgets as widgets

    controls = {name: _control(widgets, name, options, start) for name, (options, start) in choices.items()}

    setting: set[str] = set()
    begin = _preset(widgets, presets, controls, setting) if presets else {}

    def redraw(**values: Any) -> None:
        if setting:  # half-way from one preset to another
            return
        try:
            display(*draw(**{name: value for name, value in values.items() if name in controls}))
        except LabError as error:
            display(tables.facts([("not possible", str(error))]))

    shown = widgets.interactive_output(redraw, {**controls, **begin})
    everything = [*begin.values(), *controls.values()]
    row = widgets.HBox(everything, layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
    display(widgets.VBox([row, shown]))


def _preset(
    widgets: Any, presets: Mapping[str, Mapping[str, Any]], controls: Mapping[str, Any], setting: set[str]
) -> dict[str, Any]:
    """A control that sets the others; made before they are observed, so that it is the last to redraw."""
    begin = _control(widgets, START, list(presets), next(iter(presets)))

    def put(change: Any) -> None:
        setting.add(START)
        for name, value in presets[change["new"]].items():
            controls[name].value = value
        setting.clear()

    begin.observe(put, "value")
    return {START: begin}


def _control(widgets: Any, name: str, options: Sequence[Any], start: Any) -> Any:
    label = name.replace("_", " ")
    if isinstance(options, range):
        return widgets.IntSlider(
            value=start,
            min=options.start,
            max=max(options.start, options.stop - 1),
            step=options.step,
            description=label,
            continuous_update=False,
        )
    return widgets.Dropdown(
        options=list(options),
        value=start,
        description=label,
        style={"description_width": "initial"},
        layout=widgets.Layout(width="max-content", margin="2px 14px 2px 2px"),
    )


def tensor(case: Case, interactive: bool) -> None:
    """Value distribution of one tensor (notebook 01)."""
    names = [n for n, info in case.draft.tensors.items() if len(info.shape) == 2]

    def draw(tensor: str) -> list[Any]:
        picture = plots.value_histograms({tensor: histogram(case.draft.tensors.read(tensor))}, columns=1)
        rows = [row for row in case.draft.rows if row.stored == tensor]
        return [picture, tables.tensors(rows, case.stats)]

    explore(draw, interactive, tensor=(names, names[0]))


def draft_ids(case: Case, interactive: bool) -> None:
    """Rows of the vocabulary map from a chosen draft id on (notebook 02)."""
    size = case.draft.arch.draft_vocab

    def draw(first_draft_id: int) -> list[Any]:
        return [tables.vocab_rows(views.vocab_rows(case, first_draft_id))]

    explore(draw, interactive, first_draft_id=(range(0, size, max(1, size // 100)), 0))


def states(case: Case, interactive: bool, sample: str = "") -> None:
    """RMS of the states and cosines of one sample (notebook 03)."""
    names = case.samples.looked_at

    def draw(sample: str) -> list[Any]:
        spans = case.sample(sample).spans
        return [plots.rms_by_position(views.rms_of(case, sample), spans=spans),
                plots.cosine_matrix(*views.cosines(case, sample))]  # fmt: skip

    explore(draw, interactive, sample=(names, sample or case.sample().name))


def by_hand(case: Case, interactive: bool, sample: str = "", steps: int = 0) -> None:
    """A reading set by hand, beside the fitted and the configured one: every field at once (notebook 04)."""
    one = case.sample(sample)
    fields = views.fields_of(case, one)
    names = [*case.samples, ALL]
    starts = views.presets(case, fields)
    begin = starts.get("fitted") or {name: next(iter(values)) for name, values in fields.items()}
    if case.aux and len(case.aux) == len(case.fitted.aux):
        begin |= {f"slot_{i}": show(b) for i, b in enumerate(case.aux) if show(b) in fields.get(f"slot_{i}", {})}
    choices: dict[str, Choice] = {name: (list(values), begin[name]) for name, values in fields.items()}

    def draw(sample: str, **chosen: str) -> list[Any]:
        reading = views.by_hand(case, fields, chosen)
        which = () if sample == ALL else [sample]
        found = {f"by hand, boundaries {show(reading.aux)}": case.evaluate(reading, steps, which)}
        found |= views.both(case, steps, which)
        counts = next(iter(found.values())).counts
        return [
            tables.facts(views.differences(case, reading)),
            tables.acceptance([views.acceptance_row(label, e) for label, e in found.items()], definition=sample),
            plots.accuracy_by_step({label: e.counts.accuracy for label, e in found.items()}, n=counts.scored,
                                   training=case.file.accuracy or None),
        ]  # fmt: skip

    explore(draw, interactive, starts, sample=(names, one.name), **choices)


def predictions(case: Case, interactive: bool, sample: str = "", steps: int = 0, count: int = 10) -> None:
    """The draft's candidates beside the recorded tokens (notebook 04)."""
    one = case.sample(sample)
    last = max(0, sum(b - a for a, b in one.spans) - 2 - count)

    def draw(sample: str, step: int, position: int) -> list[Any]:
        return [tables.predictions(views.predictions(case, sample, step, position, count))]

    explore(draw, interactive, sample=(case.samples.looked_at, one.name), step=(list(range(steps or case.steps)), 0),
            position=(range(last + 1), 0))  # fmt: skip


def strip(case: Case, interactive: bool, sample: str = "", steps: int = 0) -> None:
    """The token strip of one sample under the fitted or the configured reading (notebook 05)."""
    choices = ["fitted", "configured"] if case.configured.reading else ["fitted"]

    def draw(sample: str, reading: str) -> list[Any]:
        chosen = case.fitted if reading == "fitted" else case.configured.reading
        assert chosen is not None
        found = case.evaluate(chosen, steps, [sample])
        caption = f"{sample}, {reading} {show(chosen.aux)}: accept length {found.counts.accept_length:.2f}, " \
                  f"{found.counts.rounds} rounds, K={found.steps}"  # fmt: skip
        return [tables.token_strip(**views.strip(case, sample, steps, chosen), caption=caption)]

    explore(draw, interactive, sample=(case.samples.looked_at, case.sample(sample).name), reading=(choices, "fitted"))


def costs(case: Case, interactive: bool) -> None:
    """Which tokens cost most accept length, told apart by a chosen property (notebook 05)."""
    tokens = views.judged(case)

    def draw(by: str) -> list[Any]:
        rows = views.cost_rows(case, tokens, by)
        return [plots.token_costs(rows, by=by), tables.token_costs(rows, by=by)]

    explore(draw, interactive, by=(list(views.GROUPS), "text kind"))


def trees(case: Case, interactive: bool) -> None:
    """A chain beside SGLang's tree of a chosen width and EAGLE's (notebook 05)."""

    def draw(sglang_topk: int) -> list[Any]:
        rows = views.trees(case, sglang_topk)
        return [plots.chain_and_trees(rows), tables.trees(rows)]

    explore(draw, interactive, sglang_topk=([1, 2, 4, 8], 4))


def recorded(case: Case) -> None:
    """Later steps fed with recorded or own tokens, and whether the text is the target's own (notebook 05)."""
    found = views.drift(case)
    picture = plots.by_step_fed(scored=found["scored"], recorded=found["recorded"], own=found["own"])
    display(picture, tables.recorded_choice(found))


def waterfall(case: Case, interactive: bool, run: str = "") -> None:
    """From training's figure to the engine's, for a chosen serving run (notebook 06)."""
    names = [r.name for r in case.runs]

    def draw(run: str) -> list[Any]:
        found = views.waterfall(case, run)
        picture = plots.waterfall(
            found["bars"], begins=found["begins"], ends=found["ends"], title=f"Run: {found['run']}"
        )
        return [picture, tables.waterfall(found["bars"], missing=found["missing"])]

    explore(draw, interactive, run=(names or [""], run or (case.run.name if case.run else "")))


def gain(case: Case, interactive: bool) -> None:
    """Speed-up against accept length for a chosen cost of a round (notebook 06)."""
    found = views.throughput(case)
    if found is None:
        needed = "two timed runs are needed, one without speculation: seconds and tokens in case.toml"
        display(tables.facts([("throughput", needed)]))
        return
    if found["left_out"]:
        display(tables.facts([("not drawn", why) for why in found["left_out"]]))
    measured = f"{found['round_cost']:.2f}"
    others = [f"{point['round_cost']:.2f}" for point in found["points"]]
    options = list(dict.fromkeys([measured, *others, "1.20", "1.50", "2.00", "2.50", "3.00"]))

    def draw(round_cost: str) -> list[Any]:
        return [plots.throughput(baseline=found["baseline"], points=found["points"], round_cost=float(round_cost))]

    explore(draw, interactive, round_cost=(options, measured))
