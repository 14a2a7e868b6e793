"""What the checks of forward, acceptance and serving ask for; a `Case`, one floor up, has it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from eagle3lab.acceptance import Choice, Evaluation, TreeShape
from eagle3lab.casefile import CaseFile
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.draft import Draft
from eagle3lab.evaluations import Source
from eagle3lab.outcome import ScanResult
from eagle3lab.reading import Reading
from eagle3lab.records import Interpretation, Sample
from eagle3lab.samples import Samples
from eagle3lab.stats import TensorStats
from eagle3lab.survey import Survey, Trained
from eagle3lab.target import Target


class Evidence(Protocol):
    """The draft, its readings, and the means to measure them."""

    @property
    def draft(self) -> Draft:
        """The checkpoint."""

    @property
    def configured(self) -> Interpretation:
        """What the chosen run makes of it."""

    @property
    def plainest(self) -> Reading | None:
        """The reading of the program the checkpoint looks like, None when it has none."""

    @property
    def scan(self) -> ScanResult:
        """What the search found."""

    @property
    def run(self) -> ServingRun | None:
        """The chosen serving run."""

    @property
    def target_type(self) -> str:
        """The target's ``model_type``."""

    @property
    def training_accuracy(self) -> Sequence[float]:
        """Training's accuracy per step, as stated."""

    def evaluate(
        self, reading: Reading, steps: int = 0, names: Sequence[str] = (), fed: str = "recorded"
    ) -> Evaluation:
        """Accuracy and acceptance under a reading."""

    def evaluate_trees(self, reading: Reading, shapes: Sequence[TreeShape]) -> list[Evaluation]:
        """What trees accept under a reading."""

    def choice(self, reading: Reading) -> tuple[Choice, str]:
        """The recorded text against the target's own choice, and on which samples."""


class Serving(Evidence, Protocol):
    """Evidence, and the serving runs."""

    @property
    def trainer(self) -> str:
        """The program that trained the draft."""

    @property
    def runs(self) -> Sequence[ServingRun]:
        """All runs of the case."""

    @property
    def baseline(self) -> ServingRun | None:
        """The run without speculation."""

    @property
    def samples(self) -> Mapping[str, Sample]:
        """The recordings."""

    @property
    def everyone(self) -> Mapping[str, Interpretation]:
        """Each engine's way with the checkpoint."""

    def served(self, run: ServingRun) -> Interpretation:
        """How a run's engine serves the checkpoint."""

    def reports(self, run: ServingRun) -> list[EngineReport]:
        """What a run's files say."""


class Opened(Serving, Source, Protocol):
    """A case: everything above, its files, and what can be had of those that may be broken."""

    @property
    def file(self) -> CaseFile:
        """The case file."""

    @property
    def fitted(self) -> Reading:
        """The reading that fits best."""

    @property
    def root(self) -> Path:
        """The folder that paths are relative to."""

    @property
    def target(self) -> Target | None:
        """The target, None when the case gives none."""

    @property
    def samples(self) -> Samples:
        """The recordings, as files."""

    @property
    def survey(self) -> Survey:
        """One pass over them."""

    @property
    def trained_on(self) -> Trained | None:
        """Which headline texts are among those it was trained on."""

    @property
    def stats(self) -> Mapping[str, TensorStats]:
        """Statistics of the draft's tensors."""

    def attempt(self, name: str) -> Any:
        """An attribute, None where its input is missing or broken."""

    def readable(self, name: str) -> Sample | None:
        """A sample, None when its file is faulty."""
