"""The rollout against the bare matrix products of its shapes, the trainers' own forwards, and one token at a time.

One thread, float32, K = 5. Everything is a ratio of times of one run; peak memory is what a process needs beyond the
weights it has read. SpecForge and speculators take part where they are installed (`tests/peers.py`).

What limits it: nine tenths of the time are the products themselves, two thirds of those ``lm_head``. What was tried:
``logsumexp``, ``topk`` and a sum of booleans over whole chunks cost 22 % of ``lm_head``'s product; ``log_softmax`` over
pieces that stay in the cache, maxima by pieces of the vocabulary and a count in float32 cost 4 %. Chunks of fewer
than 256 rows slow ``lm_head`` down (128 rows: 1.2 times, 32 rows: 1.9 times), as the library repacks it for each.
Repeating keys for grouped queries and masking all scores instead of those near the diagonal cost more than the
softmax. In bfloat16 an odd number of rows slows a product by a third, and every new width of scores has oneDNN compile
and keep another kernel. On the demo (H 576) what is left are many small operations. Following accepted rows only is
bounded by the step-0 pass over all rows, which a walk cannot do without: which rows it visits is known at its end.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from common import DEMO, best_of
from synthetic import READING, Size, bare, sample, write

import eagle3lab as lab
from eagle3lab.acceptance import accept
from eagle3lab.draft import Draft
from eagle3lab.forward import Rollout
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

STEPS = 5
SIZE = Size(1024, 4096, 16, 4, 64, 32000, 64000, 1024)
NAIVE_TOKENS = 40
FIRST, LATER = 0.62, 0.54
"""Planted acceptance of the first draft, and of each later one when all before it were right."""


def main() -> None:
    """Prints the ratios."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draft = write(folder, SIZE)
        text = sample(SIZE)
        faster = full(draft, text)
        only_accepted(folder, text, faster)
        one_at_a_time(draft, text)
    demo()


def full(draft: Draft, text: Sample) -> tuple[str, Callable[[], object]] | None:
    """All rows, all logits reduced to the best token, its log-probability, the recorded token's and its rank."""
    model = lab.Model(draft)
    weights = {name: draft.tensors.read(f"{name}.weight") for name in SIZE.shapes}
    runs: dict[str, Callable[[], object]] = {
        "rollout": lambda: lab.rollout(model, text, READING, STEPS),
        "best tokens only": lambda: lab.rollout(model, text, READING, STEPS, probabilities=False),
        "bare products": lambda: bare(weights, SIZE, STEPS),
        **peers(draft, text),
    }
    found = best_of(runs)
    base = found["bare products"]
    print(f"H {SIZE.hidden}, I {SIZE.intermediate}, Vd {SIZE.draft_vocab}, T {SIZE.tokens}, K {STEPS}, all rows:")
    print(f"  rollout: {found['rollout'] / base:.2f} × the bare matrix products")
    print(f"  rollout, best tokens only: {found['best tokens only'] / base:.2f} ×")
    others = {name: runs[name] for name in found if name.startswith(("specforge", "speculators"))}
    if not others:
        print("  (SpecForge and speculators are not installed)")
        return None
    own = peak(runs["rollout"])
    for name in others:
        print(f"  rollout: {found['rollout'] / found[name]:.2f} × the time of {name}, "
              f"{own / peak(runs[name]):.2f} × its peak memory")  # fmt: skip
    name = min(others, key=lambda n: found[n])
    return name, runs[name]


def peers(draft: Draft, text: Sample) -> dict[str, Callable[[], object]]:
    """The trainers' forwards on the same weights, as far as they are installed."""
    from peers import SpecForge, Speculators

    aux = torch.cat([text.states[k] for k in range(3)], -1)
    out: dict[str, Callable[[], object]] = {}
    if importlib.util.find_spec("specforge"):
        specforge = SpecForge(draft)
        out["specforge"] = lambda: specforge.run(text.input_ids, aux, STEPS, lambda _, logits: logits.argmax(-1))
    if importlib.util.find_spec("speculators"):
        for attention in ("eager", "sdpa"):
            model = Speculators(draft, attention)
            out[f"speculators ({attention})"] = lambda m=model: m.run(text.input_ids, aux, STEPS)  # type: ignore[misc]
    return out


def peak(run: Callable[[], object]) -> int:
    """Bytes a process needs at most during ``run``, beyond what it held after running it once before."""
    read, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        run()  # weights are read, libraries warm
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        before = status("VmRSS")
        run()
        os.write(write_end, str(status("VmHWM") - before).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return int(said)


def status(key: str) -> int:
    """A size out of /proc/self/status in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024


def only_accepted(folder: Path, text: Sample, faster: tuple[str, Callable[[], object]] | None) -> None:
    """The accept length alone: at step k the rows whose drafts were all right so far."""
    model, planted = plant(folder, text)
    runs: dict[str, Callable[[], object]] = {
        "full": lambda: lab.rollout(model, planted, READING, STEPS),
        "accepted": lambda: lab.rollout(model, planted, READING, STEPS, probabilities=False, accepted_only=True),
    }
    found = best_of(runs | ({faster[0]: faster[1]} if faster else {}))
    rolled = lab.rollout(model, planted, READING, STEPS)
    counts = accept(rolled, planted).counts
    thin = lab.rollout(model, planted, READING, STEPS, probabilities=False, accepted_only=True)
    same = walk(thin, planted) == (counts.rounds, counts.accepted, counts.per_position)
    rates = ", ".join(f"{b / a:.2f}" for a, b in pairs(counts.joint, counts.scored[0]))
    print(f"accept length only, planted acceptance {rates}: {found['full'] / found['accepted']:.2f} × faster than all "
          f"rows, counts {'equal' if same else 'NOT EQUAL'}")  # fmt: skip
    if faster:
        print(f"  {found[faster[0]] / found['accepted']:.2f} × faster than {faster[0]}")


def pairs(joint: tuple[int, ...], scored: int) -> Iterator[tuple[int, int]]:
    """(Rows right so far before, after) each step."""
    yield from zip((scored, *joint[:-1]), joint, strict=True)


def plant(folder: Path, text: Sample) -> tuple[lab.Model, Sample]:
    """A draft of the same size that says, at every step of row t, the token that its state of row t is made of.

    ``fc`` takes the first state alone, attention and MLP are multiplied by zero; the recorded text repeats its last
    token with probability ``LATER``, and the state of row t is made of x[t+2] with probability ``FIRST``.
    """
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    eye = torch.eye(SIZE.hidden)
    tensors["fc.weight"] = torch.cat((eye, 0 * eye, 0 * eye), 1)
    for name in ("midlayer.self_attn.o_proj.weight", "midlayer.mlp.down_proj.weight"):
        tensors[name].zero_()
    other = folder / "planted"
    other.mkdir()
    save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_bytes((folder / "config.json").read_bytes())
    generator = torch.Generator().manual_seed(2)
    stay = torch.rand(SIZE.tokens, generator=generator) < LATER
    drafts = torch.randint(SIZE.draft_vocab, (SIZE.tokens + 2,), generator=generator)  # draft ids
    for t in range(1, SIZE.tokens):
        drafts[t] = drafts[t - 1] if stay[t] else drafts[t]
    said = torch.where(torch.rand(SIZE.tokens, generator=generator) < FIRST, drafts[2:], (drafts[2:] + 1) % 32000)
    hot = torch.arange(SIZE.draft_vocab) + tensors["d2t"]
    states = text.states | {0: tensors["lm_head.weight"][said] * SIZE.hidden**0.5}
    return lab.Model(Draft(other, SIZE.hidden, SIZE.vocab)), replace(
        text, input_ids=hot[drafts[: SIZE.tokens]], states=states)  # fmt: skip


def walk(rolled: Rollout, text: Sample) -> tuple[int, int, tuple[int, ...]]:
    """The engine's walk (design section 6) over a rollout that holds the accepted rows only."""
    right = [set(step.rows[step.correct].tolist()) for step in rolled.steps]
    rounds, accepted, per_position = 0, 0, [0] * len(right)
    for a, b in text.spans:
        row = max(a - 1, 0)
        while row <= b - 3:
            offered = min(len(right), b - 2 - row)
            kept = next((k for k in range(offered) if row not in right[k]), offered)
            rounds, accepted, row = rounds + 1, accepted + kept, row + kept + 1
            per_position = [n + (k < kept) for k, n in enumerate(per_position)]
    return rounds, accepted, tuple(per_position)


def one_at_a_time(draft: Draft, text: Sample) -> None:
    """The tests' reference: one token at a time over a KV cache, in float64."""
    from naive import Naive

    weights = {name: draft.weight(name).numpy() for name in draft.stored}
    naive = Naive(weights, READING, SIZE.heads, SIZE.head_dim, draft.arch.eps)
    states = {k: v[:NAIVE_TOKENS] for k, v in text.states.items()}
    short = replace(text, input_ids=text.input_ids[:NAIVE_TOKENS], loss_mask=text.loss_mask[:NAIVE_TOKENS],
                    states=states)  # fmt: skip
    arrays = {k: v.numpy() for k, v in states.items()}
    model = lab.Model(draft)
    found = best_of({
        "rollout": lambda: lab.rollout(model, short, READING, STEPS),
        "naive": lambda: naive.chains(short.input_ids.tolist(), arrays, STEPS),
    }, rounds=1)  # fmt: skip
    print(f"one token at a time over a KV cache (float64), T {NAIVE_TOKENS}: {found['naive'] / found['rollout']:.0f} × "
          "the rollout's time")  # fmt: skip


def demo() -> None:
    """The demo's reply rows, where single operations on small matrices count for more."""
    case = lab.open_case(DEMO)
    reading = case.configured.reading.replace(aux=(0, 15, 27))
    texts = [case.samples[name] for name in case.samples.headline]
    arch = case.draft.arch
    matrices = [n for n in case.draft.stored if len(case.draft.shape(n) or ()) == 2 and not n.startswith("embed")]
    weights = {n.removesuffix(".weight"): case.model.weight(n, torch.float32) for n in matrices}

    def rollouts(**how: bool) -> list[Rollout]:
        return [lab.rollout(case.model, text, reading, STEPS, rows=reply_rows(text), **how) for text in texts]  # type: ignore[arg-type]

    def products() -> None:
        for text in texts:
            size = Size(arch.hidden, arch.intermediate, arch.heads, arch.kv_heads, arch.head_dim, arch.draft_vocab,
                        arch.vocab, text.length)  # fmt: skip
            bare(weights, size, STEPS, rows=len(reply_rows(text)))

    found = best_of({
        "rollout": rollouts, "bare products": products,
        "accepted": lambda: rollouts(probabilities=False, accepted_only=True),
        **demo_peers(case, reading, texts),
    })  # fmt: skip
    rows = sum(len(reply_rows(t)) for t in texts)
    print(f"demo, {rows} reply rows: {found['rollout'] / found['bare products']:.2f} × the bare matrix products")
    full_counts = [accept(rolled, text).counts for rolled, text in zip(rollouts(), texts, strict=True)]
    few = rollouts(probabilities=False, accepted_only=True)
    thin = [walk(rolled, text) for rolled, text in zip(few, texts, strict=True)]
    same = thin == [(c.rounds, c.accepted, c.per_position) for c in full_counts]
    print(f"  accept length only: {found['rollout'] / found['accepted']:.2f} × faster, counts "
          f"{'equal' if same else 'NOT EQUAL'}")  # fmt: skip
    for name in found:
        if name.startswith(("specforge", "speculators")):
            print(f"  rollout: {found['rollout'] / found[name]:.2f} × the time of {name}; accept length only: "
                  f"{found[name] / found['accepted']:.2f} × faster than it")  # fmt: skip


def demo_peers(case: lab.Case, reading: lab.Reading, texts: list[Sample]) -> dict[str, Callable[[], object]]:
    """The trainers' forwards over whole texts: they have no way to follow some rows only."""
    from peers import SpecForge, Speculators

    table = torch.zeros(case.draft.arch.vocab, case.draft.arch.hidden)
    for text in texts:
        table[text.input_ids] = case.model.embedding(text.input_ids, reading, torch.float32)
    inputs = [(text.input_ids, torch.cat(case.model.aux_states(text, reading.aux), -1).float()) for text in texts]

    def each(peer: SpecForge | Speculators) -> Callable[[], object]:
        return lambda: [peer.run(ids, aux, STEPS, lambda _, logits: logits.argmax(-1)) for ids, aux in inputs]

    out = {"specforge": each(SpecForge(case.draft, table))} if importlib.util.find_spec("specforge") else {}
    if importlib.util.find_spec("speculators"):
        out["speculators (sdpa)"] = each(Speculators(case.draft, "sdpa", table))
    return out


if __name__ == "__main__":
    main()
