"""A case: the front door. It opens the files and hands out everything below, lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab import checks, scancache
from eagle3lab.acceptance import Choice, Evaluation, TreeShape
from eagle3lab.casefile import CaseFile, find_case, read_case
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import ENGINES, resolve
from eagle3lab.draft import Draft
from eagle3lab.errors import BadCase, Blocked, LabError
from eagle3lab.evaluations import Evaluations
from eagle3lab.model import Model
from eagle3lab.options import boundaries, usable_device
from eagle3lab.outcome import ScanResult
from eagle3lab.reading import Aux, Reading
from eagle3lab.recordings import Known
from eagle3lab.records import Finding, Interpretation, Sample
from eagle3lab.samples import Samples
from eagle3lab.search import search
from eagle3lab.stats import TensorStats, Track, all_stats
from eagle3lab.survey import Survey, Trained, survey, trained
from eagle3lab.target import Target

STEPS = 5
"""Draft steps when neither the notebook nor the run says."""


def open_case(
    path: str | Path,
    run: str = "",
    *,
    aux: str | Sequence[int] = "",
    out: str | Path = "",
    steps: int = 0,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Case:
    """Opens a case.

    Args:
        path: ``case.toml`` or its folder.
        run: name of the serving run to start with; ``""`` for the first.
        aux: boundaries that replace the configured ones, e.g. ``"0,15,27"``; ``""`` as configured.
        out: folder for sidecars and for the remembered search; ``""`` is ``reports/<case>`` in the working folder,
            which is only written to by notebooks and reports.
        steps: K of every number that is not a particular run's; 0 for the chosen run's own.
        device: torch device for the forward.
        progress: called with one line a stage of long work.

    Raises:
        BadCase: the file's faults, all at once, or an unknown run.
        BadOption: ``aux`` or ``device`` is not what it should be.
    """
    file, words = find_case(path)
    folder, content = Path(out) if out else None, resolve.named(read_case(file))
    return Case(content, words, run, boundaries(aux), folder, steps, usable_device(device), progress)


class Case:
    """One investigation; every attribute below is computed when it is first asked for."""

    def __init__(self, file: CaseFile, found: str, run: str, aux: Aux | None, out: Path | None, steps: int, device: str,
                 progress: Callable[[str], None] | None):  # fmt: skip
        self.file, self.found, self.aux, self.device = file, found, aux, device
        self._steps, self._asked = steps, bool(run)
        self.progress = progress or (lambda line: None)
        self.track: Track | None = None
        self.remembers = out is not None
        self.out = out or Path("reports") / file.root.resolve().name
        names = [r.name for r in file.runs]
        if run and run not in names:
            raise BadCase(file.path, f"no serving run {run!r}; found {', '.join(map(repr, names)) or 'none'}")
        self.run: ServingRun | None = next((r for r in file.runs if not run or r.name == run), None)
        self.evaluations = Evaluations(self)

    @property
    def title(self) -> str:
        """The case's title."""
        return self.file.title

    @property
    def root(self) -> Path:
        """The folder that the case's paths are relative to."""
        return self.file.root

    @property
    def runs(self) -> tuple[ServingRun, ...]:
        """All serving runs, in the file's order."""
        return self.file.runs

    @property
    def baseline(self) -> ServingRun | None:
        """The run without speculation, None when the case has none."""
        return next((r for r in self.runs if not r.speculative), None)

    @property
    def steps(self) -> int:
        """K as asked for, else of the chosen run, else as many steps as training reported, else 5."""
        if self._steps:
            return self._steps
        if self.run and self.run.steps:
            return self.run.steps
        return len(self.file.accuracy) or STEPS

    @property
    def trainer(self) -> str:
        """The program that trained the draft: as the case says, else as the checkpoint looks."""
        return self.file.program or self.draft.arch.program

    @property
    def training_accuracy(self) -> tuple[float, ...]:
        """Training's accuracy per step as the case states it, () when it does not."""
        return self.file.accuracy

    @cached_property
    def target(self) -> Target | None:
        """The target, None when the case gives none."""
        return Target(self.file.target) if self.file.target else None

    def attempt(self, name: str) -> Any:
        """An attribute, None where its input is missing or broken: whoever can do without goes on."""
        try:
            return getattr(self, name)
        except LabError:
            return None

    @cached_property
    def draft(self) -> Draft:
        """The draft checkpoint."""
        target = self.attempt("target")
        return Draft(self.file.draft, target.hidden if target else None, target.vocab if target else None)

    @cached_property
    def samples(self) -> Samples:
        """The recorded samples.

        Raises:
            Blocked: the case gives none.
        """
        if self.file.samples is None:
            raise Blocked(f"{self.file.path.name}: no [samples] table; recorded hidden states answer this question")
        target, draft = self.attempt("target"), self.attempt("draft")
        known = Known(
            layers=self.layers,
            hidden=target.hidden if target else draft.arch.target_hidden if draft else None,
            vocab=target.vocab if target else draft.arch.vocab if draft else None,
            boundaries=self.file.boundaries,
            final=self.file.final,
            access=self.file.access,
        )
        return Samples(self.file.samples, self.root, self.file.exclude, known)

    def sample(self, name: str = "") -> Sample:
        """Sample ``name``, the first of the headline when ``""``."""
        return self.samples[name or (self.samples.headline or list(self.samples))[0]]

    @property
    def layers(self) -> int | None:
        """L of the target: its own config, else what the draft's config says."""
        target, draft = self.attempt("target"), self.attempt("draft")
        if target:
            return int(target.layers)
        stated = draft.config.get("target_num_hidden_layers") if draft else None
        return int(stated) if stated else None

    @cached_property
    def model(self) -> Model:
        """The draft's weights, ready to run."""
        return Model(self.draft, self.attempt("target"), self.device)

    @property
    def target_type(self) -> str:
        """The target's ``model_type``, ``""`` when unknown."""
        target = self.attempt("target")
        return target.model_type if target else ""

    def served(self, run: ServingRun) -> Interpretation:
        """How the run's engine serves this checkpoint.

        Raises:
            Blocked: the engine is not one the lab knows.
        """
        return resolve.served(self.draft.arch, self.layers, self.target_type, run)

    @cached_property
    def trained(self) -> Interpretation | None:
        """What the trainer's dialect implies, None when the case names a program without one."""
        return resolve.trained(self.draft.arch, self.layers, self.trainer)

    @cached_property
    def configured(self) -> Interpretation:
        """What the chosen run makes of the checkpoint; without one, the trained reading. AUX replaces boundaries."""
        runs, program = [self.run, *self.runs] if self.run else [], self.file.program
        arch, layers = self.draft.arch, self.layers
        return resolve.configured(arch, layers, self.target_type, runs, program, self.aux, self._asked)

    @property
    def plainest(self) -> Reading | None:
        """The reading of the program the checkpoint looks like, None when it has none."""
        return resolve.plainest(self.draft.arch, self.layers)

    @cached_property
    def everyone(self) -> dict[str, Interpretation]:
        """How each known engine and version would serve this checkpoint as its config stands."""
        return resolve.everyone(self.draft.arch, self.layers, self.target_type)

    @cached_property
    def scan(self) -> ScanResult:
        """The search's result, remembered under ``out`` while no input changes (notebooks and reports only)."""
        ways = (self.configured, self.attempt("trained"), *self.everyone.values())
        starts = [reading for way in ways if way and (reading := way.reading or way.conventions)]
        if self.configured.reading is None and not self.configured.refused:
            starts += [self.plainest] if self.plainest else []
        if not starts:
            raise Blocked("no program's reading of this checkpoint can be run: " + "; ".join(self.configured.refused))
        if not self.remembers:
            return self._searched(starts)
        key = scancache.fingerprint(self.file, starts, [self.samples.file(name) for name in self.samples.headline])
        return scancache.remembered(self.out / "search.json", key, lambda: self._searched(starts))

    def _searched(self, starts: Sequence[Reading]) -> ScanResult:
        configured = self.configured.reading
        wanted = {b for b in configured.aux if isinstance(b, int)} if configured else set()
        used = self.samples.searchable(self.draft.arch.target_hidden, wanted)
        found = search(self.model, used, starts, self.progress)
        left = len(self.samples.headline) - len(used)
        words = f"; {left} headline samples are left out: S001, S002, S008, S010, S018 and S026 say why" if left else ""
        return replace(found, evidence=found.evidence + words)

    def readable(self, name: str) -> Sample | None:
        """The sample, None when its file is faulty: the samples' own check says why."""
        return self.samples.readable(name)

    @property
    def fitted(self) -> Reading:
        """The reading that fits best."""
        return self.scan.fitted

    def evaluate(
        self, reading: Reading, steps: int = 0, names: Sequence[str] = (), fed: str = "recorded"
    ) -> Evaluation:
        """Accuracy and acceptance under ``reading`` on ``names`` (the headline samples when empty), remembered."""
        return self.evaluations.chain(reading, steps, names, fed)

    def evaluate_trees(self, reading: Reading, shapes: Sequence[TreeShape]) -> list[Evaluation]:
        """What trees accept under ``reading``, on as many headline samples as time allows (`Evaluations.trees`)."""
        return self.evaluations.trees(reading, shapes)

    def choice(self, reading: Reading) -> tuple[Choice, str]:
        """The recorded text against the target's own greedy choice (`Evaluations.choice`)."""
        return self.evaluations.choice(reading)

    def reports(self, run: ServingRun) -> list[EngineReport]:
        """What the run's files say, best evidence first; [] for an unknown engine or a run without files."""
        if run.engine not in ENGINES or not (run.log or run.metrics or run.responses):
            return []
        return ENGINES[run.engine].read_reports(self.root, run.log, run.metrics, run.responses, run.steps)

    @cached_property
    def survey(self) -> Survey:
        """One pass over all samples: finiteness, RMS, cosines, the lens (see `Survey`)."""
        self.progress(f"survey: {len(self.samples)} samples")
        return survey(self.samples, self.attempt("target"))

    @cached_property
    def trained_on(self) -> Trained | None:
        """Which headline texts are among those it was trained on, None where the case names no such recordings."""
        return trained(self.samples, self.file.trained_on, self.progress) if self.file.trained_on else None

    @cached_property
    def stats(self) -> dict[str, TensorStats]:
        """Statistics of every tensor of the draft by stored name."""
        files = self.draft.files
        return all_stats(files.measurable, files.read, files.rows, self.track)

    @cached_property
    def replies(self) -> Tensor | None:
        """int64 [N]: reply tokens of all headline samples, None without samples."""
        if self.file.samples is None:
            return None
        parts = [s.input_ids[s.loss_mask.bool()] for s in map(self.readable, self.samples.headline) if s is not None]
        return torch.cat(parts) if parts else None

    def findings(self, *stages: str) -> list[Finding]:
        """The findings of the named stages, all of them in reading order when none is named.

        A stage whose input is missing or broken gives one finding that says so (C001, C002); the others still run.
        """
        return checks.stages.findings(self, stages)
