"""Progress bars for long work: plain text on stderr, so that no report depends on a widget."""

from __future__ import annotations

from eagle3lab.stats import Track

LONG = 1 << 28
"""Elements below which no bar is shown: the work is over in a second or two."""


def bar(label: str) -> Track:
    """What long work calls with elements done and in all; draws nothing for short work."""
    from tqdm import tqdm

    shown: list[tqdm] = []

    def track(done: int, total: int) -> None:
        if total < LONG:
            return
        if not shown:
            shown.append(tqdm(total=total, desc=label, unit="", unit_scale=True, leave=False))
        shown[0].update(done - shown[0].n)
        if done >= total:
            shown.pop().close()

    return track
