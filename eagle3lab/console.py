"""Text on its way to a terminal or a pipe: what a file holds must neither steer the one nor break the other."""

from __future__ import annotations

import json
import re
from typing import Any, TextIO

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters and those that turn the writing direction, but for tabs and the ends of lines."""


def plain(text: str) -> str:
    r"""``text`` with control characters as escapes: a title with ESC in it colours nothing, it reads ``\x1b``."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str, stream: TextIO) -> None:
    """Writes ``text`` and ends the line; what the stream's encoding lacks is escaped, lone surrogates as well."""
    code = getattr(stream, "encoding", None) or "utf-8"
    stream.write(plain(text).encode(code, "backslashreplace").decode(code) + "\n")
    stream.flush()


def say_json(value: Any, stream: TextIO) -> None:
    """Writes ``value`` as JSON; strings that UTF-8 cannot hold, or the stream's encoding, are in ASCII escapes."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=1, default=str)
    stream.write(text + "\n")
    stream.flush()
