"""Launch capacities as a replay takes them: by hand, or as others worked them out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
from kvcanary_cli.errors import UsageError
from kvcanary_cli.replay.result import Capacities

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_CHECKED = Capacities(verify=None, write_req=None, write_entry=None, source="none")
# Stands for "no limit known" where a manager wants a number.
_NO_LIMIT = 1 << 62
_OVERRIDES = {"verify": "verify", "write_req": "write_req", "write_entry": "write_entry"}


def parse_capacity_option(text: str) -> dict[str, int]:
    """Parse ``write_req=8,write_entry=64,verify=1024``, any of them.

    Raises:
        UsageError: Unknown name, or a value that is no positive integer.
    """
    out: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        name = name.strip().replace("-", "_")
        if name not in _OVERRIDES:
            raise UsageError(
                f"--capacity: unknown name {name!r}, expected {', '.join(_OVERRIDES)}",
                hint="for example --capacity write_req=8,write_entry=8192",
            )
        if not re.fullmatch(r"[0-9]+", value.strip()) or int(value) <= 0:
            raise UsageError(f"--capacity: {name} must be a positive integer, found {value!r}")
        out[name] = int(value)
    return out


def with_overrides(base: Capacities, overrides: Mapping[str, int]) -> Capacities:
    """``base`` with the numbers of ``--capacity`` instead where given."""
    if not overrides:
        return base
    return Capacities(
        verify=overrides.get("verify", base.verify),
        write_req=overrides.get("write_req", base.write_req),
        write_entry=overrides.get("write_entry", base.write_entry),
        source="--capacity" if base.source == "none" else f"--capacity, {base.source}",
        notes=base.notes,
    )


def for_manager(capacities: Capacities) -> CanaryLaunchCapacities | None:
    """The numbers for a manager: None if none is known, unknown ones without limit."""
    if not capacities.known:
        return None
    return CanaryLaunchCapacities(
        per_forward_verify_capacity=capacities.verify or _NO_LIMIT,
        per_forward_write_req_capacity=capacities.write_req or _NO_LIMIT,
        per_forward_write_entry_capacity=capacities.write_entry or _NO_LIMIT,
    )
