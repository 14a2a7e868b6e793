"""SpecForge's and speculators' own draft models, where they are installed: given a draft's weights, run as they train.

Their losses and metrics are left out, and with SpecForge's loss its need of Triton: the draft model's own module does
without. Written for SpecForge 0.2.0 and speculators 0.9.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eagle3lab.draft import Draft

Steps = list[tuple[Tensor, Tensor]]
"""One (state before the final norm [T-1, H], logits [T-1, Vd]) a step."""


def _weights(draft: Draft, model: torch.nn.Module, table: Tensor | None) -> dict[str, Tensor]:
    first = any(name.startswith("midlayer.") for name in model.state_dict())
    out = {n.replace("layers.0.", "midlayer.") if first else n: draft.weight(n) for n in draft.stored}
    return out | ({} if table is None else {"embed_tokens.weight": table})


def _load(model: torch.nn.Module, draft: Draft, table: Tensor | None) -> None:
    found = model.load_state_dict(_weights(draft, model, table), strict=False)
    missing = [n for n in found.missing_keys if not n.startswith("verifier_") and n not in ("d2t", "t2d")]
    if missing or found.unexpected_keys:
        raise ValueError(f"missing {missing}, unexpected {found.unexpected_keys}")
    model.eval()


class SpecForge:
    """``LlamaForCausalLMEagle3`` in the loop of ``OnlineEagle3Model.forward``, less loss and metrics."""

    def __init__(self, draft: Draft, table: Tensor | None = None):
        from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
        from transformers import LlamaConfig

        config = {k: v for k, v in draft.config.items() if k not in ("architectures", "model_type", "torch_dtype")}
        config = {"pad_token_id": 0} | config
        self.model = LlamaForCausalLMEagle3(LlamaConfig(**config), attention_backend="sdpa")
        _load(self.model, draft, table)

    @torch.inference_mode()
    def run(self, ids: Tensor, aux: Tensor, steps: int, use: Callable[[Tensor, Tensor], Any]) -> None:
        """Calls ``use(state, logits)``, [T-1, …] each, at every step; ids [T], aux [T, 3Ht]."""
        model, rows = self.model, len(ids) - 1
        hidden = model.project_hidden_states(aux[None, :-1])
        mask = model.prepare_decoder_attention_mask(
            attention_mask=torch.ones(1, rows, dtype=torch.bool), hidden_states=hidden, batch_size=1, seq_length=rows,
            past_key_values_length=0,
        )  # fmt: skip
        cache: list[list[Tensor]] = [[], []]
        tokens, places = ids[None, 1:], torch.arange(rows)[None]
        for _ in range(steps):
            hidden = model.backbone(
                input_embeds=model.embed_input_ids(tokens), hidden_states=hidden, cache_hidden=cache,
                attention_mask=mask, position_ids=places, past_key_values=None, use_cache=True,
            )  # fmt: skip
            use(hidden[0], model.compute_logits(hidden)[0])
            tokens = torch.cat((tokens[:, 1:], tokens.new_zeros(1, 1)), 1)


class Speculators:
    """``Eagle3DraftModel.forward`` without a verifier: it then leaves loss and metrics out by itself."""

    def __init__(self, draft: Draft, attention: str = "eager", table: Tensor | None = None):
        from speculators.config import SpeculatorsConfig, VerifierConfig
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from speculators.proposals.greedy import GreedyTokenProposalConfig
        from transformers import LlamaConfig, Qwen3Config

        c = draft.config
        kind = Qwen3Config if any(n.endswith("q_norm.weight") for n in draft.stored) else LlamaConfig
        layer = {k: v for k, v in c.items() if k not in ("architectures", "model_type", "draft_vocab_size", "dtype")}
        layers = kind(**{**layer, "num_hidden_layers": draft.arch.layers})
        layers._attn_implementation = attention
        flags = {k: bool(c.get(k)) for k in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")}
        self.model = Eagle3DraftModel(Eagle3SpeculatorConfig(
            transformer_layer_config=layers, draft_vocab_size=draft.arch.draft_vocab,
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3", proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=5)],
                default_proposal_method="greedy", verifier=VerifierConfig(name_or_path=None, architectures=[])),
            **flags,
        ))  # fmt: skip
        _load(self.model, draft, table)

    @torch.inference_mode()
    def run(self, ids: Tensor, aux: Tensor, steps: int, use: Callable[[Tensor, Tensor], Any] | None = None) -> None:
        """Calls ``use(state before the final norm, logits)`` at every step; ids [T], aux [T, 3Ht]."""
        states: list[Tensor] = []
        hooks = [
            self.model.norm.register_forward_pre_hook(lambda _, args: states.append(args[0][0])),
            self.model.lm_head.register_forward_hook(lambda _, __, out: use(states.pop(), out[0])),
        ] if use else []  # fmt: skip
        rows = len(ids) - 1
        self.model(aux[None, :-1], ids[None, 1:], torch.zeros(1, rows, dtype=torch.long), ttt_steps=steps)
        for hook in hooks:
            hook.remove()
