"""Refuses traces that are not clean: the truth about an injected fault would not be the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.trial import Trial
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.header import parse_header

if TYPE_CHECKING:
    from collections.abc import Sized

    from kvcanary_cli.inject.clean_run import CleanRun


def require_clean(name: str, findings: Sized, ownership: Sized, *, hint: str) -> None:
    """Refuse a trace in which a replay found something before anything was planted.

    Args:
        name: How messages call the trace.
        findings: Findings of its replay.
        ownership: Broken ownership rules of its replay.
        hint: What to do about it.

    Raises:
        NothingCheckedError: There are any.
    """
    if len(findings) + len(ownership):
        raise NothingCheckedError(
            f"{name}: the trace is not clean before anything was planted: findings "
            f"{len(findings)}, broken ownership rules {len(ownership)}",
            hint=hint,
        )


def check_clean(run: CleanRun, name: str) -> None:
    """Replay a run and refuse it if it is not clean.

    Raises:
        TraceError: Its events make no valid trace.
        NothingCheckedError: It is not clean.
    """
    trial = Trial(parse_header(dict(run.header), name), ReplayOptions())
    trial.feed(run.events)
    findings, ownership, _rank = trial.end()
    require_clean(
        name,
        findings,
        ownership,
        hint="`kvcanary replay` shows them; --unchecked plants all the same, for example a second "
        "kind of fault into an injected trace",
    )
