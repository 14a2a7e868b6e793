"""What to do about a convention that differs: which key of which program, another export, or retraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eagle3lab.checks.evidence import Opened
from eagle3lab.dialects import ENGINES, in_words
from eagle3lab.reading import Reading

RETRAIN = "this is in the trained weights: no config edit helps, retrain"

KEYS: Mapping[str, tuple[str, ...]] = {
    "residual": ("norm_before_residual",),
    "feedback": ("norm_output",),
    "aux_norm": ("norm_before_fc", "fc_norm"),
}
"""Keys of the draft's config.json by field, which only some engines read."""

EVERYBODY: Mapping[str, str] = {
    "rope.base": "rope_theta", "rope.scaling": "rope_scaling", "rope.rule": "rope_scaling",
    "rope.partial": "partial_rotary_factor", "window": "sliding_window and layer_types", "logit_scale": "logit_scale",
}  # fmt: skip
"""Keys that describe any decoder layer: every engine reads them out of the draft's config.json."""


def wiring(case: Opened, reading: Reading) -> str:
    """Which ids to set, in each program's own words: the case's engine first, then its trainer, then the others."""
    run, trainer = case.run, case.trainer
    first = {name: place for place, name in enumerate((run.engine if run else "", trainer))}
    words = [(name, text) for name, text in in_words(reading.aux, case.draft.arch, case.target_type)
             if name in ENGINES or name == trainer]  # fmt: skip
    words.sort(key=lambda entry: first.get(entry[0], len(first)))
    told = "; ".join(f"{name}: {text}" for name, text in words)
    return f"set the layer ids in the draft's config.json. {told}"


def remedy(case: Opened, name: str, fitted: Reading) -> str:
    """What to change for field ``name`` so that the draft is run as it fits."""
    engine = case.run.engine if case.run else ""
    if name in KEYS:
        return _flag(name, engine, fitted)
    if name in EVERYBODY:
        value = "to the value on the right" if name != "rope.scaling" or fitted.rope.scaling else "by removing it"
        return f"config.json of the draft: set {EVERYBODY[name]} {value}; the trainer did not use what stands there"
    words = _WORDS.get(name)
    return words(case, fitted) if words else f"make {engine or 'the engine'} use {name} as it fits"


def _flag(name: str, engine: str, fitted: Reading) -> str:
    keys = KEYS[name]
    if name == "aux_norm":
        key = {"input_norm": "norm_before_fc", "fc_norm": "fc_norm"}.get(fitted.aux_norm)
        change = f"set {key} to true" if key else "set norm_before_fc and fc_norm to false"
    else:
        on = getattr(fitted, name) == "post_norm"
        key, change = keys[0], f"set {keys[0]} to {str(on).lower()}"
    readers = [e for e, module in ENGINES.items() if any(k.split(".")[-1] == (key or keys[0]) for k in module.KEYS)]
    if engine and engine not in readers:
        others = ", ".join(readers) or "no engine the lab knows"
        return f"{engine} does not read {key or keys[0]}: serve the draft with {others} and {change} in its config.json, or retrain"
    return f"config.json of the draft: {change} (read by {', '.join(readers)})"


def _shift(case: Opened, fitted: Reading) -> str:
    if recorded_lag(case) == fitted.shift - 1:
        return "the recording's rows are displaced, not the draft (S003, S005): record again"
    return f"the data were shifted {'twice' if fitted.shift > 1 else 'not at all'} in training, or the dump is displaced by " \
           f"a row: {RETRAIN} with one shift (SpecForge#448), after looking into the dump"  # fmt: skip


def recorded_lag(case: Opened) -> int | None:
    """The lag that boundary 0 or the target's own choices show, None where neither can be looked at."""
    survey = case.attempt("survey")
    if survey is None:
        return None
    lags = list(survey.embedding_lag.values())
    if lags and max(survey.embedding_error.values(), default=1.0) <= 0.1:
        return int(max(set(lags), key=lags.count))
    picks = survey.picks
    told = picks is not None and any(pick.share(picks.lag) > 0.5 for pick in picks.by_sample.values())
    return int(picks.lag) if told else None


def _map(case: Opened, fitted: Reading) -> str:
    store = "store d2t as offsets, target id = i + d2t[i]: this is how SGLang and vLLM read it"
    how = {"ids": "subtract arange(Vd) from d2t", "identity": "store zeros: row i of lm_head means token i",
           "t2d": "rebuild d2t from t2d: where(t2d) - arange(Vd)", "offsets": "keep d2t, and see that it is loaded"}  # fmt: skip
    return f"{how[fitted.vocab_map]}; {store}"


def _table(case: Opened, fitted: Reading) -> str:
    if fitted.embedding == "target":
        return "take embed_tokens out of the file: the draft was trained on the target's rows, and this table is not theirs"
    return "SGLang overwrites embed_tokens with the target's, vLLM keeps the file's: serve it there, or retrain on the target's rows"


def _head(case: Opened, fitted: Reading) -> str:
    if fitted.head == "target":
        return "the file's lm_head is not the one it was trained with: export it again; the target's rows fit (tie or share them)"
    return "the engine replaces lm_head by the target's: set tie_word_embeddings to false and write draft_vocab_size"


def _layout(case: Opened, fitted: Reading) -> str:
    return "the rows of q_proj and k_proj are stored in the other rotary order (GGUF's interleaved, HF's half): permute them on " \
           "export; no key of config.json says it"  # fmt: skip


def _dropped(case: Opened, fitted: Reading) -> str:
    engine = case.run.engine if case.run else "the engine"
    able = [name for name, found in case.everyone.items() if found.reading and found.reading.dropped == fitted.dropped]
    told = f"; these use them as it fits: {', '.join(able)}" if able else ""
    return f"{engine} does not use these tensors as the trainer did: attention_bias, qk_norm or the architecture's name decide " \
           f"it in config.json{told}"  # fmt: skip


_WORDS: Mapping[str, Callable[[Opened, Reading], str]] = {
    "shift": _shift, "vocab_map": _map, "embedding": _table, "head": _head, "rope.layout": _layout, "dropped": _dropped,
    "head_norm": lambda case, fitted: "lm_head was trained on the state " + (
        "before" if fitted.head_norm == "skipped" else "after") + " the final norm (SpecForge#879); every engine applies the "
        f"norm: {RETRAIN}",
    "second_norm": lambda case, fitted: f"later layers were trained with {fitted.second_norm} before attention; vLLM and SGLang "
        "differ here: serve it with the one that fits",
    "fc": lambda case, fitted: "eagle_config.use_aux_hidden_state in config.json decides whether fc is applied "
        f"({fitted.fc} fits)",
}  # fmt: skip


def refusal(case: Opened, reason: str) -> str:
    """What to do about a refusal: what it is about, and who would run the checkpoint as it is."""
    able = [name for name, found in case.everyone.items() if found.reading is not None]
    others = f"; as it stands it is run by {', '.join(able)}" if able else ""
    for words, what in _REFUSALS:
        if any(word in reason for word in words):
            return what + others
    return f"change what the sentence names{others}"


_REFUSALS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("GGUF",), "give the engine the checkpoint that was converted"),
    (("draft_vocab_size",), "write draft_vocab_size into config.json"),
    (("target_hidden_size",), "leave target_hidden_size out of config.json"),
    (("architectures",), "name the draft's class under architectures in config.json"),
    (("without its flag", "draft class"), "set the flag that goes with the tensors in config.json, or leave the tensors out"),
    (("MLA",), "serve it with an engine that runs this form of latent attention"),
    (("hidden_norm", "missing"), "export the draft again with the tensors named"),
    (("ids ", "id ", "boundar", "states"), "correct the layer ids: aux_ids in case.toml if the run had others, else the list in "
                                            "config.json"),
)  # fmt: skip
