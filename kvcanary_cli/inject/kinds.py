"""All kinds of faults, by name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from kvcanary_cli.inject import (
    inputs,
    lifetime,
    payload,
    prefix,
    ranks,
    rows,
    transfers,
    translation,
    writes,
    wrong_pages,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.inject.planting import FaultKind

KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {
        kind.name: kind
        for module in (
            lifetime,
            writes,
            transfers,
            wrong_pages,
            prefix,
            rows,
            translation,
            inputs,
            payload,
            ranks,
        )
        for kind in module.KINDS
    }
)
