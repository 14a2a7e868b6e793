"""docs/formats.md lists every kind of file that the code reads, in the code's own words."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.dialects.recorded import READERS
from eagle3lab.tensors import INDEXES, SINGLES, archive, packed, quantised

HEAD = ["| kind | who writes it | files | holds | traps | what the lab does |", "| --- | --- | --- | --- | --- | --- |"]


def rows() -> list[str]:
    kinds = [reader.kind for reader in READERS]
    return [f"| {k.name} | {k.program} | {k.files} | {k.holds} | {k.traps} | {k.does} |" for k in kinds]


def test_one_row_a_kind_of_recording(repo: Path) -> None:
    text = (repo / "docs" / "formats.md").read_text(encoding="utf-8")
    table = "\n".join([*HEAD, *rows()])
    assert table in text, f"docs/formats.md: the table of recordings should be\n\n{table}\n"


def test_kinds_have_names_of_their_own_and_say_everything() -> None:
    kinds = [reader.kind for reader in READERS]
    assert len({k.name for k in kinds}) == len(kinds)
    for kind in kinds:
        assert all((kind.program, kind.files, kind.holds, kind.traps, kind.does)), kind.name
        assert "|" not in f"{kind}".replace("`", ""), f"{kind.name}: a bar would break the table"


def test_every_layout_and_quantised_form_is_named(repo: Path) -> None:
    text = (repo / "docs" / "formats.md").read_text(encoding="utf-8")
    names = [*INDEXES, *SINGLES, *quantised.SCALES, *quantised.ZEROS, *packed.FORMS, "draft_state_dict"]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert "draft_state_dict" in archive.STATES
