"""What to do about a convention that differs: which key of which program, another export, or retraining."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eagle3lab.checks import edits
from eagle3lab.checks.evidence import Opened
from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, in_words, resolve
from eagle3lab.reading import Aux, Reading, show
from eagle3lab.trace.causes import turned

RETRAIN = "this is in the trained weights: no config edit helps, retrain"


def judged(case: Opened) -> ServingRun | None:
    """The run that F003, F006 and F008 speak of; None where there is none, or its engine is not known."""
    if case.configured.unknown:
        return None
    runs = [*([case.run] if case.run else []), *case.runs]
    return next((run for run in runs if run.speculative and run.engine in ENGINES), None)


def wiring(case: Opened, reading: Reading) -> str:
    """Which ids to set, in each program's own words: the case's engine first, then its trainer, then the others.

    Where the engines cannot be given the order, or a boundary twice: how to rewrite the file so that they need not.
    """
    slots: dict[int, list[int]] = {}
    for slot, boundary in enumerate(reading.aux):
        if isinstance(boundary, int):
            slots.setdefault(boundary, []).append(slot)
    order = tuple(sorted(slots))
    told = f"set the layer ids in the draft's config.json. {_typed(case, reading.aux, tuple(ENGINES))}"
    if reading.fc != "applied" or reading.aux == order or sum(map(len, slots.values())) < len(reading.aux):
        return told
    said = {name: ENGINES[name].words(reading.aux, case.draft.arch, case.target_type) for name in ENGINES}
    strict = [name for name in ENGINES if "not expressible" in said[name]]
    able = [name for name in _running(case, len(reading.aux)) if name not in strict]
    as_is = "; ".join(f"{name}: {said[name]}" for name in able)
    why = f"{', '.join(strict)} feed boundaries in ascending order, each once: no list of ids gives {show(reading.aux)} there"
    twice = len(order) < len(reading.aux)
    if twice and reading.aux_norm == "input_norm":
        other = f"serve the file with {as_is}; or " if able else ""
        return f"{why}, and no edit of the file either, since input_norm is taken over all states together, one of them " \
               f"twice: {other}retrain with each boundary once"  # fmt: skip
    ids = f"Then set the layer ids in its config.json for boundaries {show(order)}. {_typed(case, order, _running(case, len(order)) or tuple(ENGINES))}"
    rewrite = f"{why}. Rewrite the file: {_blocks(case, reading, slots)}. It then predicts the same. {ids}"
    if case.run is not None and case.run.engine in able:
        return f"{told}. {rewrite}"
    return rewrite + (f". As it stands, the file can be served with {as_is}" if able else "")


def _typed(case: Opened, aux: Aux, engines: Sequence[str]) -> str:
    """What to type for these boundaries, in the words of the engines and of the trainer."""
    run, trainer = case.run, case.trainer
    first = {name: place for place, name in enumerate((run.engine if run else "", trainer))}
    words = [(name, text) for name, text in in_words(aux, case.draft.arch, case.target_type)
             if name in engines or (name == trainer and name not in ENGINES)]  # fmt: skip
    words.sort(key=lambda entry: first.get(entry[0], len(first)))
    return "; ".join(f"{name}: {text}" for name, text in words)


def _running(case: Opened, states: int) -> list[str]:
    """The engines that would run the draft if its ``fc`` took so many states."""
    arch, layers = replace(case.draft.arch, aux=states), case.attempt("layers")
    ids = resolve.usual(arch)
    return [name for name in ENGINES
            if any(way.reading for way in resolve.everyone(arch, layers, case.target_type, [name], ids).values())]  # fmt: skip


def _blocks(case: Opened, reading: Reading, slots: Mapping[int, list[int]]) -> str:
    """Which column block of ``fc`` goes where, and what goes along with it, in words."""
    order, width = sorted(slots), case.draft.arch.target_hidden
    twice = [new for new, b in enumerate(order) if len(slots[b]) > 1]
    moves = ", ".join(
        f"new block {new} = {' + '.join(f'old block {old}' for old in slots[b])} (boundary {b})"
        for new, b in enumerate(order)
    )
    told = [
        f"permute the column blocks of fc.weight ({width} columns each) into ascending order of boundaries: {moves}"
    ]
    normed = reading.aux_norm == "fc_norm"
    if any(name.startswith("fc_norm.") for name in case.draft.arch.tensors):
        along = [f"new fc_norm.{new} = old fc_norm.{slots[b][0]}" for new, b in enumerate(order) if new not in twice]
        told += [f"fc_norm.k along with them: {', '.join(along)}"] if along else []
        joined = ", ".join(f"fc_norm.{new}" for new in twice)
        if twice and normed:
            told.append(
                f"before blocks are added, multiply the columns of each by its own old fc_norm.k; new {joined} = ones"
            )
    if "input_norm.weight" in case.draft.arch.tensors and not twice:
        told.append(f"the entries of input_norm.weight in the same blocks of {width}")
    if twice:
        told.append(
            f'a boundary that was used twice is listed once: {len(order)} states, "num_aux_hidden_states": {len(order)}'
        )
    return "; ".join(told)


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
    alike = len(lags) > 1 and len(set(lags)) == 1 and len(lags) == len(survey.embedding_error)
    if lags and (alike or max(survey.embedding_error.values(), default=1.0) <= 0.1):
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


def refusals(case: Opened) -> tuple[str, ...]:
    """Why the configured program refuses, without what F001 says better: ids are counted by the columns of ``fc``."""
    told = case.configured.refused
    return tuple(r for r in told if not _by_ids(case, r)) if turned(case.draft, "fc.weight") else told


def refusal(case: Opened, reason: str) -> str:
    """What to do about a refusal: what it is about, and who would run the checkpoint as it is.

    Nobody is named for ids: others would take the config's, or their default, and the draft need not fit those.
    """
    run = judged(case)
    given = run is not None and run.aux_ids is not None
    if _by_ids(case, reason):
        where = f"aux_ids of run {run.name!r} in case.toml, if the run had others" if run and given else \
                "the list in config.json, or aux_ids in case.toml if the run had others"  # fmt: skip
        return f"correct the layer ids: {where}; F003 says which ones fit the recording"
    arch, layers = case.draft.arch, case.attempt("layers")
    ways = resolve.everyone(arch, layers, case.target_type, (), resolve.usual(arch)) if given else case.everyone
    able = [name for name, found in ways.items() if found.reading is not None]
    state = "given its ids in their own numbers" if given else "as it stands"
    others = f"; {state} it is run by {', '.join(able)}" if able else ""
    for words, what in _REFUSALS:
        if any(word in reason for word in words):
            return what + others
    return f"change what the sentence names{others}"


def place(case: Opened, reason: str) -> str:
    """The file that holds what a refusal is about."""
    run = judged(case)
    return (
        "case.toml ([[serving]] aux_ids)"
        if run and run.aux_ids is not None and _by_ids(case, reason)
        else "config.json"
    )


def _by_ids(case: Opened, reason: str) -> bool:
    """Whether other layer ids would end this refusal."""
    run = judged(case)
    if run is None:  # a converter's own rules: no ids but the file's
        return any(word in reason for word in ("ids ", "id ", "boundar"))
    return reason in resolve.id_faults(case.draft.arch, case.attempt("layers"), case.target_type, run)


_REFUSALS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("GGUF",), "give the engine the checkpoint that was converted"),
    (("draft_vocab_size",), "write draft_vocab_size into config.json"),
    (("target_hidden_size",), "leave target_hidden_size out of config.json"),
    (("architectures",), "name the draft's class under architectures in config.json"),
    (("without its flag", "draft class"), "set the flag that goes with the tensors in config.json, or leave the tensors out"),
    (("MLA",), "serve it with an engine that runs this form of latent attention"),
    (("hidden_norm", "missing"), "export the draft again with the tensors named"),
)  # fmt: skip
