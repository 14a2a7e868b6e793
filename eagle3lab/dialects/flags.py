"""What to type for a number of drafts: each engine's own flags, word for word."""

from __future__ import annotations

import json


def sglang(steps: int, topk: int, draft_tokens: int, draft: str) -> str:
    """SGLang's flags (0.5.9, 0.5.23). Its draft tokens count the root; for a chain it insists on steps + 1.

    Args:
        steps: draft steps.
        topk: branches a node.
        draft_tokens: drafts verified a round, root not counted.
        draft: path of the checkpoint.
    """
    whole = steps + 1 if topk == 1 else draft_tokens + 1
    return (
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {draft} --speculative-num-steps {steps} "
        f"--speculative-eagle-topk {topk} --speculative-num-draft-tokens {whole}"
    )


def vllm(steps: int, draft: str) -> str:
    """The option of vLLM; a chain only. ``method`` is given, since a path may make vLLM guess another."""
    config = {"method": "eagle3", "model": draft, "num_speculative_tokens": steps}
    return f"--speculative-config '{json.dumps(config)}'"


LEFT_OUT = {
    "torchspec": True,
    "automodel": True,
    "modelopt": True,
    "speculators": True,
    "angelslim": False,
}
"""Whether a trainer's own accuracy leaves out targets that the draft vocabulary lacks (or scores another token in their
place); SpecForge did until its commit bcb2ec2a, so its figure alone does not say."""
