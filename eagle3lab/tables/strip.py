"""The token strip: a conversation as the engine's walk sees it, one coloured span a token."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab.tables.html import INK, MONO, SANS, SOFT, Html, esc

LOOKS = {
    "prompt": ("prompt", "#f1f2f4", "#5f6774", "none"),
    "reply": ("reply", "#ffffff", INK, "none"),
    "plain": ("token", "#ffffff", INK, "none"),
    "accepted": ("draft accepted", "#d7ebdc", "#124d28", "solid"),
    "bonus": ("target's own token after accepted drafts", "#dbe8f7", "#123f6b", "double"),
    "rejected": ("draft rejected, target's token", "#fbe0d6", "#8a2b0a", "wavy"),
    "oov": ("not in the draft vocabulary", "#e8def5", "#4a2a80", "dotted"),
}
"""Kind of token → its words, background, ink and underline: the underline says without colour what the colour says."""

HOVER = (
    "<style>.lab-strip{position:relative}.lab-strip span[data-about]:hover::after{content:attr(data-about);"
    "position:absolute;left:.6em;max-width:calc(100% - 1.2em);margin-top:1.9em;z-index:9;box-sizing:border-box;"
    f"padding:.5em .8em;border-radius:5px;background:{INK};color:#fff;font:12px/1.5 {SANS};white-space:pre-wrap;"
    "text-align:left;pointer-events:none}</style>"
)
"""What a pointer on a token shows, without a script: a box under its line, as wide as the strip allows."""

VISIBLE = {" ": "·", "\t": "→", "\r": "␍"}
MOST = 4000


def token_strip(
    tokens: Sequence[str], kinds: Sequence[str], titles: Sequence[str] | None = None, *, caption: str = ""
) -> Html:
    """Tokens as inline spans, coloured and underlined by kind; nothing in it runs.

    Args:
        tokens: text of each token; spaces show as ``·``, line ends as ``⏎`` with a break.
        kinds: ``prompt``, ``reply``, ``plain``, ``accepted``, ``bonus``, ``rejected`` or ``oov``; an unknown word
            is drawn plain.
        titles: what a pointer resting on the token shows.
        caption: one line above.

    Raises:
        ValueError: tokens, kinds and titles are not equally many.
    """
    if len(kinds) != len(tokens) or (titles is not None and len(titles) != len(tokens)):
        raise ValueError(
            f"{len(tokens)} tokens, {len(kinds)} kinds and {len(titles or tokens)} titles: expected one of each"
        )
    shown = min(len(tokens), MOST)
    spans = [_span(tokens[i], kinds[i], titles[i] if titles else "") for i in range(shown)]
    more = f"the first {MOST:,} of {len(tokens):,} tokens" if len(tokens) > MOST else ""
    head = "; ".join(filter(None, [caption, more]))
    body = "".join(spans) or f'<span style="color:{SOFT};font-style:italic">no tokens</span>'
    present = [kind for kind in LOOKS if kind in kinds]
    legend = " &nbsp; ".join(
        f'{_mark(LOOKS[kind][0], kind)} <span style="color:{SOFT}">{sum(k == kind for k in kinds):,}</span>'
        for kind in present
    )
    paper = f"background:#ffffff;color:{INK};border:1px solid #d8dce2;border-radius:6px;padding:.7em .9em;margin:.3em 0"
    top = f'<div style="font:600 13px/1.5 {SANS};margin-bottom:.4em">{esc(head)}</div>' if head else ""
    return Html(
        f'{HOVER}<div class="lab-strip" style="{paper}">{top}'
        f'<div style="font:13px/2.05 {MONO};overflow-wrap:anywhere">{body}</div>'
        f'<div style="font:12px/2 {SANS};margin-top:.6em;border-top:1px solid #eceef2;padding-top:.3em">'
        f"{legend}</div></div>",
        "".join(tokens),
    )


def _style(kind: str) -> str:
    _, paper, ink, line = LOOKS.get(kind, LOOKS["plain"])
    under = f";text-decoration:underline {line} {ink} 1.5px;text-underline-offset:3px" if line != "none" else ""
    return f"background:{paper};color:{ink};padding:.12em 0;border-radius:2px;box-shadow:inset 1px 0 0 #fff{under}"


def _mark(text: str, kind: str) -> str:
    return f'<span style="{_style(kind)};padding:.12em .4em;white-space:nowrap">{esc(text)}</span>'


def _span(token: str, kind: str, title: str) -> str:
    text = "".join(VISIBLE.get(c, c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}") for c in str(token)) or "∅"
    breaks = len(text) - len(text.rstrip("\n")) if text.strip("\n") else text.count("\n")
    safe = esc(text).replace("\n", "⏎")
    about = f' data-about="{esc(title)}"' if title else ""
    return f'<span style="{_style(kind)}"{about}>{safe}</span>' + ("<br>" if breaks else "")
