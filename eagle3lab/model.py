"""A draft's weights, loaded once, and what the target lends it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.norms import rms_norm
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Sample
from eagle3lab.target import Target
from eagle3lab.vocab import VocabMap

NEAR = 64 * 2**20
"""Bytes of embedding rows that are kept: a search asks for those of the same few texts hundreds of times."""

READ_ROWS = 256 * 2**20
"""A larger embedding table is read row by row: mapped, each row would bring megabytes of its neighbours into memory."""


class Model:
    """A draft's weights, loaded once in one dtype on one device, for any Reading.

    Args:
        draft: the checkpoint.
        target: needed where the reading takes the target's embedding, head or final norm.
        device: torch device; the CPU result is deterministic.
    """

    def __init__(self, draft: Draft, target: Target | None = None, device: str = "cpu"):
        self.draft, self.target = draft, target
        self.device = torch.device(device)
        self._weights: dict[tuple[str, torch.dtype], Tensor] = {}
        self._near: dict[tuple[str, torch.dtype, bytes], Tensor] = {}
        self._maps: dict[str, VocabMap] = {}

    def weight(self, name: str, dtype: torch.dtype) -> Tensor:
        """The canonical tensor in ``dtype`` on the device, cached."""
        key = (name, dtype)
        if key not in self._weights:
            stored = self.draft.weight(name)
            if not stored.is_floating_point():
                raise Blocked(
                    f"{self.draft.name}: {self.draft.stored[name]} is {str(stored.dtype).removeprefix('torch.')}: "
                    "quantised weights cannot be run by this version of the lab; give the draft as trained"
                )
            self._weights[key] = stored.to(self.device, dtype)
        return self._weights[key]

    def optional(self, name: str, reading: Reading, dtype: torch.dtype) -> Tensor | None:
        """The tensor, or None when the file lacks it or the reading drops it."""
        return self.weight(name, dtype) if name in self.draft and name not in reading.dropped else None

    def linear(self, x: Tensor, name: str, reading: Reading) -> Tensor:
        """X [R, w] times the matrix ``name`` (less its ``.weight``) → [R, rows], plus its bias where there is one."""
        return F.linear(x, self.weight(f"{name}.weight", x.dtype), self.optional(f"{name}.bias", reading, x.dtype))

    def embedding(self, tokens: Tensor, reading: Reading, dtype: torch.dtype) -> Tensor:
        """Embedding rows of target ids ``tokens`` [R] → [R, H]; not to be written to."""
        key = (reading.embedding, dtype, tokens.long().cpu().numpy().tobytes())
        rows = self._near.get(key)
        if rows is None:
            rows = self._embedding(tokens, reading, dtype)
            if rows.nbytes <= NEAR < rows.nbytes + sum(kept.nbytes for kept in self._near.values()):
                self._near.clear()
            if rows.nbytes <= NEAR:
                self._near[key] = rows
        return rows

    def _embedding(self, tokens: Tensor, reading: Reading, dtype: torch.dtype) -> Tensor:
        if reading.embedding == "own":
            rows = self._own_rows(tokens.cpu())
        else:
            rows = self._need_target("its embedding rows").embedding(tokens.cpu())
        if rows.shape[-1] != self.draft.arch.hidden:
            raise BadShape(
                "embedding",
                f"the target's rows are {rows.shape[-1]} wide",
                f"the draft takes H = {self.draft.arch.hidden}",
                ["draft and target differ in width, so the draft must carry its own embed_tokens: export it with them"],
            )
        return rows.to(self.device, dtype)

    def _own_rows(self, tokens: Tensor) -> Tensor:
        name = "embed_tokens.weight"
        count = (self.draft.shape(name) or (0,))[0]
        if count and int(tokens.max()) >= count:
            raise BadFile(self.draft.path, f"{name} has {count} rows, token {int(tokens.max())} is asked")
        stored = self.draft.stored.get(name)
        if stored and self.draft.tensors[stored].nbytes > READ_ROWS:
            return self.draft.weight_rows(name, tokens)
        return self.draft.weight(name)[tokens]

    def head(self, reading: Reading, dtype: torch.dtype) -> Tensor:
        """``lm_head`` [Vd, H]: the draft's own, or the target's rows of the draft vocab."""
        if reading.head == "own":
            return self.weight("lm_head.weight", dtype)
        key = (f"target lm_head read as {reading.vocab_map}", dtype)
        if key not in self._weights:
            hot = self.vocab_map(reading).hot_token_id
            self._weights[key] = self._need_target("its lm_head rows").head(hot).to(self.device, dtype)
        return self._weights[key]

    def vocab_map(self, reading: Reading) -> VocabMap:
        """The draft's map as the reading reads it."""
        return self.map_of(reading.vocab_map)

    def map_of(self, kind: str) -> VocabMap:
        """The map read as ``kind`` says, read once."""
        if kind not in self._maps:
            self._maps[kind] = self._read_map(kind)
        return self._maps[kind]

    def _read_map(self, kind: str) -> VocabMap:
        return self.draft.vocab_map(kind)

    def aux_states(self, sample: Sample, aux: Aux) -> list[Tensor]:
        """The recorded states ``aux`` names, each [T, Ht], as stored.

        Raises:
            Blocked: one is not recorded; the text lists those that are.
        """
        missing = [k for k in aux if k != FINAL and k not in sample.states]
        if missing:
            raise Blocked(
                f"{sample.path}: boundaries {missing} are not recorded; found {list(sample.boundaries)}. "
                "Record them, or choose others"
            )
        return [self.final_state(sample) if k == FINAL else sample.states[int(k)] for k in aux]

    def final_state(self, sample: Sample) -> Tensor:
        """The target's post-norm final state [T, Ht], from the form that is recorded."""
        if sample.final is not None and sample.final_norm == "post":
            return sample.final
        last = sample.final if sample.final is not None else sample.states.get(sample.last or -1)
        if last is None:
            raise Blocked(f"{sample.path}: no final state is recorded; record the last residual or the final state")
        target = self._need_target("its final norm")
        return rms_norm(last, target.norm_weight.to(last.dtype), target.eps)

    def _need_target(self, what: str) -> Target:
        if self.target is None:
            raise Blocked(
                f"the draft at {self.draft.name} needs the target for {what}; give a sound one under [target]"
            )
        return self.target

    def fuse(self, states: list[Tensor], reading: Reading, dtype: torch.dtype) -> Tensor:
        """Aux states, each [R, Ht], → the draft's first hidden state [R, H]."""
        parts = [s.to(self.device, dtype) for s in states]
        eps = self.draft.arch.eps
        if reading.aux_norm == "fc_norm":
            parts = [rms_norm(p, self.weight(f"fc_norm.{i}.weight", dtype), eps) for i, p in enumerate(parts)]
        g = torch.cat(parts, -1)  # [R, A*Ht]
        if reading.aux_norm == "input_norm":
            g = rms_norm(g, self.weight("input_norm.weight", dtype), eps)
        return g if reading.fc == "skipped" else self.linear(g, "fc", reading)  # [R, H]
