"""eagle3lab: find out why an EAGLE-3 draft model is not accepted, from files alone.

>>> import eagle3lab as lab
>>> case = lab.open_case("data/demo/case.toml")
>>> case.fitted  # the Reading under which the draft predicts the recording
"""

from importlib.metadata import PackageNotFoundError, version

from eagle3lab.acceptance import Acceptance, Evaluation, accept, definition, evaluate
from eagle3lab.case import Case, open_case
from eagle3lab.counts import Counts
from eagle3lab.draft import Draft
from eagle3lab.errors import BadCase, BadFile, BadShape, Blocked, LabError
from eagle3lab.forward import Rollout, rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading, Rope
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.samples import Samples
from eagle3lab.search import search
from eagle3lab.target import Target
from eagle3lab.trace import trace
from eagle3lab.vocab import VocabMap

try:
    __version__ = version("eagle3lab")
except PackageNotFoundError:  # used from a checkout without installing
    __version__ = "0.1.0"

__all__ = [
    "Acceptance",
    "BadCase",
    "BadFile",
    "BadShape",
    "Blocked",
    "Case",
    "Counts",
    "Draft",
    "Evaluation",
    "Finding",
    "LabError",
    "Model",
    "Reading",
    "Rollout",
    "Rope",
    "Sample",
    "Samples",
    "Severity",
    "Target",
    "VocabMap",
    "accept",
    "definition",
    "evaluate",
    "open_case",
    "rollout",
    "search",
    "trace",
]
