"""``--steps A:B``, the same for every command."""

from __future__ import annotations

import re

from kvcanary_cli.errors import UsageError

_STEP = re.compile(r"-?[0-9]{1,19}")


def parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    """First and last step of ``--steps A:B``; None = no bound.

    Raises:
        UsageError: It is no range.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    bounds = [_bound(part.strip(), text) for part in (first, last if colon else first)]
    start, stop = bounds
    if start is not None and stop is not None and start > stop:
        raise UsageError(f"--steps: {text} ends before it begins")
    return start, stop


def _bound(part: str, text: str) -> int | None:
    if not part:
        return None
    if not _STEP.fullmatch(part):
        raise UsageError(
            f"--steps: expected A:B with whole numbers, found {text!r}",
            hint="for example --steps 40:50 (both included), --steps 40: or --steps 40",
        )
    return int(part)
