"""The case's files, in the layouts that the lab and its readers know."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from recipe.draft import Draft
from recipe.target import CHAT_TEMPLATE, END, START, Shape, Target, token_id
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor


def write_json(path: Path, value: Any) -> None:
    """Indented JSON with a newline at its end."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def llama_config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """What target and draft configs have in common."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_base,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": token_id(tokenizer, START),
        "eos_token_id": token_id(tokenizer, END),
        "pad_token_id": token_id(tokenizer, END),
        "torch_dtype": "bfloat16",
    }


def write_draft(
    folder: Path,
    draft: Draft,
    rms: tuple[float, ...],
    d2t: Tensor,
    tokenizer: Tokenizer,
    aux_ids: Iterable[int],
) -> None:
    """The draft in SpecForge's layout, bfloat16, without ``embed_tokens``, its config naming ``aux_ids``."""
    folder.mkdir()
    s, w = draft.shape, {name: p.detach() for name, p in draft.w.items()}
    # Training saw each source divided by its RMS; the engine feeds plain states, so fc divides instead.
    scale = torch.tensor(rms).repeat_interleave(s.hidden)
    k, v = w["kv"].chunk(2)
    gate, up = w["gate_up"].chunk(2)
    layer = {
        "self_attn.q_proj": w["q"],
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": w["o"],
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": w["down"],
        "hidden_norm": w["hidden_norm"],
        "input_layernorm": w["input_norm"],
        "post_attention_layernorm": w["mlp_norm"],
    }
    floats = {"fc": w["fc"] / scale, "norm": w["norm"], "lm_head": draft.head}
    floats |= {f"midlayer.{name}": tensor for name, tensor in layer.items()}
    tensors = {f"{name}.weight": tensor.bfloat16().contiguous() for name, tensor in floats.items()}
    t2d = torch.zeros(s.vocab, dtype=torch.bool)
    t2d[d2t] = True
    tensors |= {"d2t": d2t - torch.arange(len(d2t)), "t2d": t2d}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["LlamaForCausalLMEagle3"], **llama_config(s, tokenizer)}
    config |= {
        "num_hidden_layers": 1,
        "draft_vocab_size": len(d2t),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "target_hidden_size": s.hidden,
        "target_num_hidden_layers": s.blocks,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(aux_ids)},
    }
    write_json(folder / "config.json", config)


def write_target(folder: Path, target: Target, tokenizer: Tokenizer, token_ids: Tensor, origin: str) -> None:
    """The target's slice: the embedding rows ``token_ids`` [N] and the final norm; config and tokenizer."""
    folder.mkdir()
    s = target.shape
    tensors = {
        "token_ids": token_ids,
        "embed_tokens.rows": target.embed[token_ids].bfloat16(),
        "norm.weight": target.norm.bfloat16(),
    }
    about = {
        "format": "eagle3lab-target-slice/1",
        "vocab_size": str(s.vocab),
        "tied": "true",
        "origin": origin,
    }
    save_file(tensors, folder / "slice.safetensors", about)
    config = {"architectures": ["LlamaForCausalLM"], **llama_config(s, tokenizer)}
    config |= {
        "num_hidden_layers": s.blocks,
        "max_position_embeddings": s.positions,
        "tie_word_embeddings": True,
        "mlp_bias": False,
    }
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {k: config[k] for k in config if k.endswith("_token_id")})
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    about_tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "unk_token": "<|endoftext|>",
        "model_max_length": s.positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", about_tokenizer)


def write_sample(path: Path, ids: list[int], mask: list[int], states: dict[int, Tensor], origin: str) -> None:
    """One recorded conversation; the last boundary is before the final norm."""
    tensors = {"input_ids": torch.tensor(ids), "loss_mask": torch.tensor(mask, dtype=torch.uint8)}
    tensors |= {f"h.{k}": state.bfloat16().contiguous() for k, state in states.items()}
    save_file(tensors, path, {"format": "eagle3lab-sample/1", "final_norm": "pre", "origin": origin})


def write_case(path: Path, title: str, accuracy: list[float], aux_ids: tuple[int, ...]) -> None:
    """The case file; no engine has run here, so the serving table names none of its files."""
    path.write_text(f"""title = {json.dumps(title)}

[draft]
path = "draft"

[target]
path = "target"

[samples]
path = "samples"
exclude = ["turns_*"]

[training]
program = "own"
accuracy = {json.dumps([round(a, 3) for a in accuracy])}

[[serving]]
name = "as deployed"
engine = "vllm"
version = "0.32.0"
runner = "v1"
aux_ids = {json.dumps(list(aux_ids))}
steps = {len(accuracy)}
""")
