"""Each token's own text, from tokenizer.json or from a GGUF's token list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.errors import BadFile

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LITERAL = (3, 4)
"""``tokenizer.ggml.token_type`` of control and user-defined tokens: their text is not encoded."""


def from_file(file: Path) -> Callable[[int], str]:
    """Token → text by a tokenizer.json.

    Raises:
        BadFile: it is none.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise BadFile(file, f"not a tokenizer ({error}); copy it from the target again") from error
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


def from_gguf(fields: Mapping[str, Any]) -> Callable[[int], str]:
    """Token → text by a GGUF's header: byte-level (``gpt2``) and SentencePiece (``llama``, ``t5``) forms decoded."""
    tokens = fields.get("tokenizer.ggml.tokens") or ()
    kinds = fields.get("tokenizer.ggml.token_type") or ()
    decode = _from_bytes if fields.get("tokenizer.ggml.model") == "gpt2" else _from_pieces

    def text(token: int) -> str:
        if token >= len(tokens):
            return ""
        literal = token < len(kinds) and kinds[token] in _LITERAL
        return str(tokens[token]) if literal else decode(str(tokens[token]))

    return text


def _from_pieces(piece: str) -> str:
    """SentencePiece: ``▁`` is a space, ``<0x0A>`` a byte."""
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]).decode("utf-8", "replace") if byte else piece.replace("\u2581", " ")


def _from_bytes(piece: str) -> str:
    """Byte-level BPE: every character stands for one byte (GPT-2's table); foreign ones mean it is plain text."""
    table = _gpt2_bytes()
    if any(letter not in table for letter in piece):
        return piece
    return bytes(table[letter] for letter in piece).decode("utf-8", "replace")


@cache
def _gpt2_bytes() -> dict[str, int]:
    """GPT-2's character → byte: printable bytes are themselves, the others follow from U+0100 on."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in kept}
    rest = [byte for byte in range(256) if byte not in set(kept)]
    return table | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
