"""JSON of the ``trace`` commands' results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.trace.info import TraceInfo, Validation

SCHEMA_VERSION = 1
#: Gaps that are told one by one.
_MAX_GAPS = 100


def _envelope(command: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": command,
    }


def info_object(info: TraceInfo) -> dict[str, Any]:
    """``trace info --format json``."""
    return {**_envelope("trace info"), **_facts(info)}


def infos_object(infos: Sequence[TraceInfo]) -> dict[str, Any]:
    """The same of a folder of traces."""
    return {**_envelope("trace info"), "traces": [_facts(info) for info in infos]}


def _facts(info: TraceInfo) -> dict[str, Any]:
    header, notes, use = info.header, info.notes, info.pool_use
    return {
        "trace": {"path": info.path, "sha256": info.sha256, "size_bytes": info.size_bytes},
        "header": dict(header.raw),
        "engine": {"name": header.engine_name, "version": header.engine_version},
        "rank": dict(header.rank),
        "tokens": header.tokens,
        "records": sorted(header.records),
        "not_recorded": list(header.not_recorded),
        "starts_mid_run": header.starts_mid_run,
        "events": sum(info.events.values()),
        "events_by_kind": info.events,
        "families": {
            name: {"events": size.events, "values": size.values, "bytes": size.size_bytes}
            for name, size in info.families.items()
        },
        "steps": {"first": info.first_step, "last": info.last_step, "count": info.steps},
        "forwards": [
            {"worker": worker, "forward_mode": mode, "count": count}
            for (worker, mode), count in info.forwards.items()
        ],
        "tokens_forwarded": info.tokens,
        "requests": {
            "count": info.requests,
            "finished": info.finished,
            "retracted": info.retracted,
            "aborted": info.aborted,
        },
        "pool_use": None
        if use is None
        else {
            "slots": header.pool.slots,
            "min": use.minimum,
            "median": use.median,
            "max": use.maximum,
            "series": list(use.series),
        },
        "time_ns": {"first": info.first_t, "last": info.last_t},
        "lost_events": notes.lost_events,
        "gaps": [{"after_i": g.after_i, "before_i": g.before_i} for g in notes.gaps[:_MAX_GAPS]],
        "torn_segments": [
            {"file": torn.name, "events": torn.events, "why": torn.why} for torn in notes.torn
        ],
        "still_recording": notes.still_recording,
        "recording_ended": None
        if notes.ended is None
        else {"event": notes.ended.event, "reason": notes.ended.reason},
        "unknown_kinds": dict(notes.unknown_kinds),
        "unknown_fields": dict(notes.unknown_fields),
        "notes": notes.messages(),
    }


def validation_object(validations: Sequence[Validation]) -> dict[str, Any]:
    """``trace validate --format json``."""
    return {
        **_envelope("trace validate"),
        "traces": [
            {
                "path": v.path,
                "sha256": v.sha256,
                "events": v.events,
                "forwards": v.forwards,
                "tokens": v.tokens,
                "notes": list(v.notes),
            }
            for v in validations
        ],
    }
