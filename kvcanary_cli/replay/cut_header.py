"""What a cut trace's header says: which steps it covers, and whether rows were left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError

if TYPE_CHECKING:
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.trace.header import TraceHeader

    Steps = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class CutInfo:
    """The header's ``cut``.

    Attributes:
        steps: First and last step, both included; None = from the beginning, to the end.
        reqs: Requests that it was made for, None = all.
    """

    steps: Steps
    reqs: tuple[str, ...] | None


def cut_info(header: TraceHeader) -> CutInfo | None:
    """The header's ``cut``, or None if the trace is no cut.

    Raises:
        InputError: It is malformed.
    """
    value: Any = header.raw.get("cut")
    if value is None:
        return None
    steps: Any = value.get("steps") if isinstance(value, dict) else None
    if not (
        isinstance(steps, list)
        and len(steps) == 2
        and all(bound is None or type(bound) is int for bound in steps)
    ):
        raise _malformed("steps", "two steps or nulls")
    reqs: Any = value.get("reqs")
    if reqs is not None and not (
        isinstance(reqs, list) and all(isinstance(req, str) for req in reqs)
    ):
        raise _malformed("reqs", "a list of requests or null")
    return CutInfo((steps[0], steps[1]), None if reqs is None else tuple(reqs))


def _malformed(name: str, expected: str) -> InputError:
    return InputError(
        f"header field 'cut.{name}' must be {expected}",
        hint="make the cut again with `kvcanary trace cut`",
    )


def within_cut(options: ReplayOptions, header: TraceHeader) -> ReplayOptions:
    """Options that check no step outside the cut.

    A cut may hold events of steps beside its range, a late fingerprint for example; they make
    state and are not checked.
    """
    info = cut_info(header)
    if info is None or info.steps == (None, None):
        return options
    return replace(options, steps=both_ranges(options.steps, info.steps))


def both_ranges(one: Steps | None, other: Steps | None) -> Steps:
    """The steps that lie in both ranges; None = no bound."""
    ranges = [steps for steps in (one, other) if steps is not None]
    firsts = [first for first, _last in ranges if first is not None]
    lasts = [last for _first, last in ranges if last is not None]
    return max(firsts, default=None), min(lasts, default=None)
