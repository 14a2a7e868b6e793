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


def llamacpp(steps: int, draft: str) -> str:
    """The flags of llama.cpp, a chain only. By reading ``common/arg.cpp`` of 2026; older builds say ``--draft-max``."""
    return f"--spec-type draft-eagle3 -md {draft} --spec-draft-n-max {steps}"


def trtllm(steps: int, draft: str) -> str:
    """What TensorRT-LLM wants in its YAML (``--extra_llm_api_options``), a chain.

    By reading ``llmapi/llm_args.py`` (``Eagle3DecodingConfig``): its own trees are not those of the lab.
    """
    config = {"decoding_type": "Eagle3", "max_draft_len": steps, "speculative_model": draft}
    return f"speculative_config: {json.dumps(config)}"


def typed(engine: str, steps: int, topk: int, draft_tokens: int, draft: str) -> str:
    """What to type for an engine, ``""`` for all that were run; in words where the lab knows no way.

    Args:
        engine: its name, ``""`` when none is chosen.
        steps: draft steps.
        topk: branches a node.
        draft_tokens: drafts verified a round, root not counted.
        draft: path of the checkpoint.
    """
    chains = {"vllm": vllm, "llamacpp": llamacpp, "trtllm": trtllm}
    named = {"vllm": "vLLM", "llamacpp": "llama.cpp", "trtllm": "TensorRT-LLM"}
    if engine == "sglang":
        return sglang(steps, topk, draft_tokens, draft)
    if engine in chains:
        if topk > 1:
            return "vLLM drafts chains only" if engine == "vllm" else f"no tree of {named[engine]}'s is known here"
        return chains[engine](steps, draft) + ("" if engine == "vllm" else " (by reading, not run)")
    if engine:
        return f"the lab does not know the flags of {engine}: set it to {steps} drafts a round"
    return f"{sglang(steps, topk, draft_tokens, draft)}; {typed('vllm', steps, topk, draft_tokens, draft)}"


LEFT_OUT = {
    "torchspec": True,
    "automodel": True,
    "modelopt": True,
    "speculators": True,
    "angelslim": False,
}
"""Whether a trainer's own accuracy leaves out targets that the draft vocabulary lacks (or scores another token in their
place); SpecForge did until its commit bcb2ec2a, so its figure alone does not say."""
