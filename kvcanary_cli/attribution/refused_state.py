"""A recording that ended because the engine named what its pool does not have.

No reader accepts such an event, so that it is not in the trace; the recorder's last word stands in
its place and says what it was (docs/trace-format.md). It is no canary violation and breaks no
ownership rule, for nothing of the pool is behind it, but a sound engine names nothing of the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.classes import remedy
from kvcanary_cli.attribution.result import POSSIBLE, PROBABLE, Culprit, Finding, RuledOut
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.notes import ENGINE_STATE

if TYPE_CHECKING:
    from typing import Any

    from kvcanary_cli.trace.notes import RecordingEnd

#: Of whichever class.
OUTSIDE_POOL = "outside_pool"

_POSITIONS = frozenset({"positions", "start", "pos"})
_CLASS_OF = {
    "lut": "bad_translation",
    "publish": "prefix_index",
    "unpublish": "prefix_index",
    "match": "prefix_index",
    "copy": "transfer_mismatch",
    "transfer_begin": "transfer_mismatch",
    "transfer_end": "transfer_mismatch",
    "transfer_fail": "transfer_mismatch",
}
_MAX_CHARS = 200


def refused_state(ended: RecordingEnd | None, last_step: int | None) -> Finding | None:
    """The finding that the end of a recording is, None if it ended for another reason.

    Args:
        ended: The recorder's last word, if there is one.
        last_step: The last step in the trace, None = there is none.
    """
    if ended is None or (ended.refused is None and not ended.reason.startswith(ENGINE_STATE)):
        return None
    said = ended.refused or {}
    kind, field = _text(said, "event") or "an event", _text(said, "field")
    value, step, row = (_number(said, name) for name in ("value", "step", "row"))
    req = said["req"] if isinstance(said.get("req"), str) else None
    is_number = field is not None and value is not None
    cls = _CLASS_OF.get(kind, "stale_mapping")
    if field in _POSITIONS and kind != "map":
        cls = "position_misalign"
    where = [f"request {req}"] if req is not None else []
    where += [f"{name} {n}" for name, n in (("step", step), ("row", row)) if n is not None]
    if step is None and last_step is not None:
        where.append(f"behind step {last_step}")
    if is_number:
        expected = _text(said, "expected") or "a number of the pool"
        told = f"'{kind}' named {value} in its field '{field}', expected {expected}"
    else:
        told = printable(ended.reason, _MAX_CHARS)
    return Finding(
        id="F1",
        cls=cls,
        subtype=OUTSIDE_POOL,
        first_bad_step=step,
        cause_event=ended.event,
        corrupting_event=ended.event,
        victim=req,
        positions=None,
        culprit=Culprit(
            req=req,
            step=step,
            event=ended.event,
            details={} if row is None else {"req_table_row": row},
        ),
        ruled_out=[
            RuledOut("unwritten_read", "what was named is no slot, row or position of the pool")
        ]
        if is_number
        else [],
        confidence=PROBABLE if is_number else POSSIBLE,
        evidence=[
            f"{told} ({', '.join(where)})" if where else told,
            f"the recording ends there: event {ended.event} stands for it, and what followed is "
            "not known",
            "a pool that is larger than the recorder took it to be would look alike",
        ],
        remedy=remedy(cls, OUTSIDE_POOL),
    )


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    return printable(value, _MAX_CHARS) if isinstance(value, str) else None


def _number(said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if type(value) is int else None
