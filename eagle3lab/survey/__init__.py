"""One pass over the recording, kept as small numbers: what rows hold, whose tokens they belong to, what is marked."""

from eagle3lab.survey.alignment import LENS_ROWS, Lens, Pick
from eagle3lab.survey.found import Odd, Span, Survey
from eagle3lab.survey.reading import survey
from eagle3lab.survey.trained import Trained, trained

__all__ = ["LENS_ROWS", "Lens", "Odd", "Pick", "Span", "Survey", "Trained", "survey", "trained"]
