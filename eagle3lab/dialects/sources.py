"""Whose line of a log of several servers: what the programs that join logs put before each line.

``docker compose logs`` writes ``name  | ``, ``kubectl logs --prefix`` ``[pod/name/container] ``, stern and journald
names, ``grep`` its file, ``tail`` a line ``==> file <==`` before those of a file, collectors of JSON lines a key. In a
container vLLM's pid is always 1, so nothing else tells two of them apart.
"""

from __future__ import annotations

import re

_TIME = re.compile(
    r"(?:(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\s+)?(?:std(?:out|err) [FP] )?"
)
"""Of ``--timestamps``, journald and the containers' own files; matches nothing where there is none."""
_NAME = r"[\w./@-]{1,253}"
_OWN = (
    r"(?:\([A-Za-z]\w* pid=\d+\)|(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d |\[\d{4}-\d\d-\d\d[ T]|slot +\w|srv +\w|"
    r"\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |"
    r"draft acceptance|\[TRT|\[A?[DL]T?\] AVERAGE)"
)
"""How the engines' own lines begin."""
_HEAD = re.compile(
    rf"({_NAME})\s+\|(?=\s|$)|\[([\w.-]+/[\w./-]+)\](?=\s|$)|({_NAME}?)[:-](?:\d+[:-])?(?={_OWN})|"
    rf"((?:[\w./:@+-]{{1,253}}(?:\[\d+\])?:?\s+){{1,3}})(?={_OWN})"
)
_KEY = re.compile(r'"(?:pod_name|container_name|container_id|pod|container|hostname)"\s*:\s*"([^"]{1,253})"')
_LETTER = re.compile(r"[^\W\d_]")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d")
_MOST = 16
"""Beginnings of lines that are kept in mind."""
_LEVELS = {"INFO", "WARNING", "WARN", "ERROR", "DEBUG", "CRITICAL", "TRACE", "I", "W", "E", "D", "stdout", "stderr"}
"""Words before a line that are nobody's name."""


class Sources:
    """Follows a log line by line: which file of several the lines are of is only said before the first of them."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._file = ""
        self._heads: dict[str, str] = {}  # met before: a million lines have a few

    def of(self, line: str) -> str:
        """The server's name before a line that is stripped of colours and blanks, ``""`` where there is none."""
        if line.startswith(("(", "[2")):
            return self._file
        for head, name in self._heads.items():
            if line.startswith(head):
                return name
        if line.startswith("==> ") and line.endswith(" <=="):
            self._file = line[4:-4]
            return self._file
        if line.startswith("{"):
            return " ".join(dict.fromkeys(_KEY.findall(line))) or self._file
        time = _TIME.match(line)
        found = _HEAD.match(line, time.end() if time else 0)
        name = _name(found) if found else ""
        if found and name and not found.start() and len(self._heads) < _MOST:
            self._heads[found[0]] = name
        return name or self._file


def _name(head: re.Match[str]) -> str:
    one = head[1] or head[2] or head[3] or ""
    words = [one] if one else (head[4] or "").split()
    named = [w.rstrip(":") for w in words if _LETTER.search(w) and not _CLOCK.match(w)]
    return " ".join(w for w in named if w not in _LEVELS)
