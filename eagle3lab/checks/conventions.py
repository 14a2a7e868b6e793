"""What to do about a convention that differs: which key of which program, another export, or retraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from eagle3lab.checks import edits
from eagle3lab.checks.evidence import Opened
from eagle3lab.dialects import ENGINES, in_words, resolve
from eagle3lab.reading import Reading

RETRAIN = "this is in the trained weights: no config edit helps, retrain"


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
    if name in edits.TRIED:
        return edits.remedy(case, name, fitted)
    words = _WORDS.get(name)
    engine = case.run.engine if case.run else ""
    return words(case, fitted) if words else f"make {engine or 'the engine'} use {name} as it fits"


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
    "rope.rule": lambda case, fitted: f"no key of config.json says by whose rule ({fitted.rope.rule}) the trainer computed this "
        "scaling, and every engine computes it by transformers': retrain with that, or without scaling",
    "fc": lambda case, fitted: "eagle_config.use_aux_hidden_state in config.json decides whether fc is applied "
        f"({fitted.fc} fits)",
}  # fmt: skip


def made_up(case: Opened) -> str:
    """What to do about a head that the engine fills with what it was initialised with."""
    shared = replace(case.draft.arch, config={**case.draft.arch.config, "draft_vocab_size": None})
    able, then = ({name for name, way in ways.items() if way.reading and not resolve.accepts_nothing(way)} for ways in (
        case.everyone, resolve.everyone(shared, case.attempt("layers"), case.target_type)))  # fmt: skip
    engine = f"{case.run.engine} " if case.run else ""
    whole = case.draft.arch.draft_vocab == case.draft.arch.vocab
    told = ["export the draft with its lm_head"]
    if whole and any(name.startswith(engine) for name in then - able):
        told.append("where it was trained on the target's head, set draft_vocab_size to null in its config.json, so that "
                    f"{case.configured.program} takes the target's (by reading)")  # fmt: skip
    if able and whole:
        told.append(f"serve it with {', '.join(sorted(able))}, which take the target's head")
    return "; or ".join(told)


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
