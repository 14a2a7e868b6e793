"""Options that people type, checked: boundaries, devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3lab.errors import BadOption
from eagle3lab.reading import Aux


def boundaries(aux: str | Sequence[int]) -> Aux | None:
    """Boundaries such as ``"0,15,27"``, None for ``""``.

    Raises:
        BadOption: not whole numbers, or below the embedding output.
    """
    if not isinstance(aux, str):
        return tuple(aux) or None
    try:
        found = tuple(int(part) for part in aux.split(",")) if aux.strip() else None
    except ValueError as error:
        raise BadOption(f"AUX: found {aux!r}, expected boundaries such as '0,15,27'") from error
    if found and min(found) < 0:
        raise BadOption(f"AUX: found {aux!r}; boundary 0 is the embedding output, none is below it")
    return found


def usable_device(name: str) -> str:
    """The device's name, tried out.

    Raises:
        BadOption: it cannot compute on this machine.
    """
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise BadOption(f"device: {name!r} cannot compute on this machine; there are: {here}") from error
    return name
