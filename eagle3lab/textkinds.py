"""What kind of text a token is, so that acceptance can be told apart by kind."""

from __future__ import annotations

import re
import unicodedata

KINDS = ("word start", "inside word", "number", "punctuation", "code", "whitespace", "special", "other")
"""All kinds, in the order of tables."""

SPECIAL = re.compile(r"<[^<>\s]*\|?>|\[[A-Z_]+\]|<0x[0-9A-Fa-f]{2}>")
CODE = frozenset("{}[]()<>=+*/\\|&^%$#@_`~;")


def kind_of(text: str, before: str = " ") -> str:
    """The kind of one token.

    Args:
        text: the token as it stands in the text, its leading space included.
        before: the token before it: letters after letters without a space are the inside of a word.
    """
    if SPECIAL.fullmatch(text):
        return "special"
    core = text.strip()
    if not core:
        return "whitespace" if text else "other"
    if any(c.isdigit() for c in core) and not any(c.isalpha() for c in core):
        return "number"
    if any(c.isalpha() for c in core):
        if any(c in CODE for c in core):
            return "code"
        joined = not text[0].isspace() and before[-1:].isalpha() and core[0].isalpha()
        return "inside word" if joined else "word start"
    if any(c in CODE for c in core):
        return "code"
    return "punctuation" if all(unicodedata.category(c)[0] in "PS" for c in core) else "other"
