"""SGLang's settings of speculation, as its arguments and as the case say them (engines.md 7.1, by reading)."""

from __future__ import annotations

from eagle3lab.counts import Flaw, ServingRun


def setting_faults(run: ServingRun) -> list[tuple[str, str]]:
    """What the case says and SGLang would not start with: (what it is, what was expected).

    Args:
        run: the run as the case has it; what it leaves out is SGLang's to choose.
    """
    if not run.steps or not run.draft_tokens:
        return []
    return _beyond(run.steps, run.topk, run.draft_tokens)


def _beyond(steps: int, topk: int, tokens: int) -> list[tuple[str, str]]:
    """Draft tokens, the root counted, beyond the nodes that a tree has to choose from."""
    most = topk + (steps - 1) * topk**2 + 1
    if topk < 1 or steps < 1 or tokens <= most:
        return []
    words = f"{tokens} draft tokens, and {steps} steps with topk {topk} have {most - 1} candidates and the root"
    return [(words, f"{most} draft tokens at most: topk + (steps - 1) · topk² + 1")]


def settings_flaws(arguments: dict[str, str | None]) -> list[tuple[Flaw, str]]:
    """Steps and draft tokens that do not go together: the latter count the root too, so a chain has M = N + 1."""
    numbers = [arguments.get(k) or "" for k in ("num_steps", "num_draft_tokens", "eagle_topk")]
    if not all(n.isdecimal() and len(n) < 6 for n in numbers):
        return []
    steps, tokens, topk = map(int, numbers)
    if topk != 1:
        return [(Flaw.SETTINGS, text) for text, _ in _beyond(steps, topk, tokens)]
    if tokens == steps + 1:
        return []
    return [(Flaw.SETTINGS, f"speculative_num_steps {steps} and speculative_num_draft_tokens {tokens} with topk 1: the "
             f"tokens count the root, so a chain takes {steps + 1} (SGLang sets it so, with a warning)")]  # fmt: skip


def settings_remarks(arguments: dict[str, str | None]) -> list[str]:
    """What ``server_args`` say that bears on the numbers (keys without ``speculative_``)."""
    notes = []
    algorithm, topk = arguments.get("algorithm"), arguments.get("eagle_topk")
    if algorithm and algorithm != "EAGLE3":
        notes.append(f"speculative_algorithm is {algorithm}, not EAGLE3: an EAGLE-3 draft is misread then")
    if topk and topk != "1":
        tokens = arguments.get("num_draft_tokens")
        notes.append(f"a tree (topk {topk}, {tokens} nodes with the root): not comparable with a chain of K")
    return notes
