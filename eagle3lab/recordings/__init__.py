"""What a dump of hidden states holds, as its reader hands it on, and how that becomes a `Sample`.

A reader (one a file kind, in its program's dialect) knows the keys. What every kind needs is here: files opened once,
tails of padding cut, views instead of copies. `checked.to_sample` names the slots and raises all faults of a file.
"""

from eagle3lab.recordings.content import MOST_LOOKED_AT, Content
from eagle3lab.recordings.kinds import FileKind, Known, Reader, Recording
from eagle3lab.recordings.pieces import kept_axis, plain, side_by_side, split, stacked, tensor, usual, without_padding

__all__ = [
    "MOST_LOOKED_AT",
    "Content",
    "FileKind",
    "Known",
    "Reader",
    "Recording",
    "kept_axis",
    "plain",
    "side_by_side",
    "split",
    "stacked",
    "tensor",
    "usual",
    "without_padding",
]
