"""What the keys of a draft's ``config.json`` are: read by whom, bookkeeping, or not known.

`COMMON` holds the keys of any decoder layer and transformers' bookkeeping; what one program alone writes or reads is in
its own module's ``KEYS``. Nested keys have dots; those of ``rope_scaling`` and ``rope_parameters`` stand under
``rope.``, those of speculators' ``transformer_layer_config`` under no prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

NESTED = ("transformer_layer_config.", "text_config.")
"""Tables whose keys mean what the same keys mean at the top level."""

ROPE_TABLES = ("rope_scaling.", "rope_parameters.")


@dataclass(frozen=True)
class Key:
    """One key, or a family of keys.

    Attributes:
        words: what it does, or why it does nothing.
        harmless: True where no number depends on it.
        only: values for which ``words`` hold; () for any. Another value is a form the lab does not know.
    """

    words: str
    harmless: bool = False
    only: tuple[Any, ...] = ()


def idle(words: str) -> Key:
    """A harmless key."""
    return Key(words, harmless=True)


_BOOKKEEPING = "transformers' bookkeeping"
_GENERATION = "a default of text generation, which a draft is not asked for"
_EXPERTS = "of the target's mixture of experts, copied; a dense draft has none (a tensor of one would be unknown)"
_TRAINING = "of training only"
_QUANTISED = "how the weights are stored: the scale tensors beside them are applied, W001 names what is not understood"

_QUANT_TABLES = ("quantization_config", "compression_config", "hf_quant_config")
_QUANT_KEYS = (
    "quant_method", "quant_algo", "fmt", "format", "bits", "group_size", "weight_block_size", "activation_scheme",
    "config_groups", "config_groups.*", "ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules",
    "quantization_status", "kv_cache_scheme", "kv_cache_scheme.*", "kv_cache_quant_algo", "producer.*",
    "global_compression_ratio", "sparsity_config*", "transform_config*", "version", "quantization.*",
)  # fmt: skip

COMMON: dict[str, Key] = {
    **dict.fromkeys(("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
                    Key("dimension; compared with the tensors (W002, W004)")),
    **dict.fromkeys(("vocab_size", "draft_vocab_size"), Key("V and Vd; compared with lm_head and the target (W002)")),
    "num_hidden_layers": Key("layers; counted from the tensors' names instead (W004)"),
    "target_hidden_size": Key("Ht, unless the target is given"),
    "target_num_hidden_layers": Key("L, unless the target is given"),
    "rms_norm_eps": Key("epsilon of every RMSNorm"),
    "hidden_act": Key("the MLP's activation"),
    "max_position_embeddings": Key("length of the RoPE table; compared with the recorded texts (W007)"),
    "architectures": Key("the class that engines look up; one of the signs of who wrote the file"),
    "model_type": Key("the kind of layer; one of the signs of who wrote the file"),
    "tie_word_embeddings": Key("SGLang then takes embed_tokens as head (W004)"),
    **dict.fromkeys(("attention_bias", "mlp_bias"), Key("the biases in the file are used; engines differ")),
    "bias": Key("SGLang and TensorRT-LLM give fc a bias by it; the one in the file is used"),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
                    Key("width of latent attention (MLA); compared with the tensors (W002)")),
    "qk_head_dim": Key("MLA: width of a key, the sum of its two parts"),
    "rope_interleave": Key("MLA: whether neighbouring channels rotate"),
    **dict.fromkeys(("rope_theta", "rope.rope_theta"), Key("RoPE base")),
    **dict.fromkeys(("partial_rotary_factor", "rope.partial_rotary_factor"), Key("share of head_dim that RoPE turns")),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), Key("RoPE; empty or null means none")),
    **dict.fromkeys(tuple(f"rope.{k}" for k in (
        "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    )), Key("RoPE scaling, by its writer's rule")),
    **dict.fromkeys(("rope.mrope_section", "rope.mrope_interleaved"),
                    Key("M-RoPE: in text all sections hold one position, so plain RoPE")),
    **dict.fromkeys(("rope.short_factor", "rope.long_factor", "rope.short_mscale", "rope.long_mscale"),
                    Key("longrope, which the lab does not run (W009)")),
    **dict.fromkeys(("sliding_window", "layer_types"), Key("attention window, where layer_types says so")),
    "use_sliding_window": Key("no window; layer_types decides", only=(False, None)),
    "max_window_layers": idle("of no account without use_sliding_window"),
    "pretraining_tp": Key("products taken whole", only=(1, None)),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "initializer_range"),
                    idle(_TRAINING)),
    **dict.fromkeys((
        "transformers_version", "torch_dtype", "dtype", "auto_map", "auto_map.*", "_name_or_path", "name_or_path",
        "use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript", "pruned_heads",
        "pruned_heads.*", "chunk_size_feed_forward", "is_encoder_decoder", "is_decoder",
        "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder",
        "id2label", "id2label.*", "label2id", "label2id.*", "problem_type", "finetuning_task", "task_specific_params",
        "tokenizer_class", "prefix", "use_bfloat16", "tf_legacy_loss", "ignore_keys_at_rope_validation",
        "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_experts_implementation",
    ), idle(_BOOKKEEPING)),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
                    idle("the tokenizer's; a draft only ever sees ids")),
    **dict.fromkeys((
        "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
        "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
        "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    ), idle(_GENERATION)),
    **dict.fromkeys((
        "n_routed_experts", "n_shared_experts", "num_experts", "num_local_experts", "num_experts_per_tok", "n_group",
        "topk_group", "topk_method", "scoring_func", "norm_topk_prob", "routed_scaling_factor", "aux_loss_alpha",
        "router_aux_loss_coef", "output_router_logits", "seq_aux", "ep_size", "moe_intermediate_size", "moe_layer_freq",
        "first_k_dense_replace", "decoder_sparse_step", "mlp_only_layers", "num_nextn_predict_layers",
        "shared_expert_intermediate_size",
    ), idle(_EXPERTS)),
    **{f"{table}{name}": Key(_QUANTISED)
       for table in _QUANT_TABLES for name in ("", *(f".{key}" for key in _QUANT_KEYS))},
}  # fmt: skip
"""Keys of any decoder layer."""


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its dotted path; of a list of objects, the keys of each."""
    for name, value in table.items():
        path = f"{prefix}{name}"
        parts = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
        if parts and all(isinstance(part, Mapping) and part for part in parts):
            for part in parts:
                yield from leaves(part, f"{path}.")
        else:
            yield path, value


def plain(path: str) -> str:
    """A key's path as the tables of keys write it."""
    for prefix in NESTED:
        path = path.removeprefix(prefix)
    for prefix in ROPE_TABLES:
        if path.startswith(prefix):
            return "rope." + path.removeprefix(prefix)
    return path


def find(table: Mapping[str, Key], path: str) -> Key | None:
    """The entry of ``table`` for ``path``, by name or by pattern."""
    exact = table.get(path)
    if exact is not None:
        return exact
    return next((key for pattern, key in table.items() if "*" in pattern and fnmatchcase(path, pattern)), None)
