"""Ranks that must agree: their traces aligned on step and request.

Each rank keeps, while it is replayed, one line per batch row (step, request, prefix, extend) and
one per allocator, prefix-index and transfer event. Nothing else crosses ranks.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.classes import remedy
from kvcanary_cli.attribution.result import PROBABLE, Culprit, Finding, RuledOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

COMPARED_KINDS = frozenset(
    {
        "alloc",
        "free",
        "own",
        "publish",
        "unpublish",
        "match",
        "copy",
        "transfer_begin",
        "transfer_end",
        "transfer_fail",
    }
)
_NAME_FIELDS = {"alloc": "owner", "free": "owner", "own": "from", "copy": "by"}


def rank_number(rank: Mapping[str, int]) -> int:
    """One number for a rank: dp, then pp, then tp, counted up."""
    by_pp = rank["dp"] * rank["pp_size"] + rank["pp"]
    return by_pp * rank["tp_size"] + rank["tp"]


def world_size(rank: Mapping[str, int]) -> int:
    """How many ranks an engine has, by what one of them says."""
    return rank["dp_size"] * rank["pp_size"] * rank["tp_size"]


def _digest(*parts: object) -> int:
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


@dataclass(slots=True)
class RankRecord:
    """What one rank did, as far as other ranks must have done the same.

    Attributes:
        number: Rank number.
        dp: Data-parallel index; only ranks of one index must agree.
        lost: Whether events are missing.
        rows: Flat groups of (step, request digest, prefix, extend, event).
        stream: Flat groups of (event digest, kind and name digest, event).
        names: Request digest to name, for the requests of ``rows``.
        world: How many ranks the engine had.
    """

    number: int
    dp: int
    lost: bool = False
    rows: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    world: int = 1

    def forward(self, forward: Forward) -> None:
        """Keep the lengths of the target's rows."""
        if forward.is_draft:
            return
        for b, req in enumerate(forward.reqs):
            if req is None:
                continue
            digest = _digest(req)
            self.names[digest] = req
            self.rows.extend(
                (
                    forward.step,
                    digest,
                    int(forward.prefix[b]),
                    int(forward.extend[b]),
                    forward.event,
                )
            )

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Keep an event that other ranks must have seen alike."""
        if kind not in COMPARED_KINDS:
            return
        table = segment.tables[kind]
        slots = table.get_ints("slots" if kind != "copy" else "dst", row)
        name_field = _NAME_FIELDS.get(kind, "req")
        name = segment.text(kind, name_field, row) if name_field in table.columns else None
        which = "" if slots is None else slots.tobytes().hex()
        label = _digest(kind, name)
        self.kinds[label] = f"{kind} by {name}" if name is not None else kind
        self.stream.extend((_digest(kind, name, which), label, int(segment.index[k])))


def _table(flat: array[int], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(flat, dtype=np.int64).reshape(-1, width)


def compare_ranks(records: Sequence[RankRecord]) -> list[Finding]:
    """Findings of ``rank_divergence``: the first one of each pair of ranks that differs."""
    findings: list[Finding] = []
    by_dp: dict[int, list[RankRecord]] = {}
    for record in records:
        by_dp.setdefault(record.dp, []).append(record)
    for group in by_dp.values():
        first = group[0]
        for other in group[1:]:
            finding = _compare(first, other)
            if finding is not None:
                findings.append(finding)
    return findings


def _compare(a: RankRecord, b: RankRecord) -> Finding | None:
    lengths_a = {(s, r): (p, e, i) for s, r, p, e, i in _table(a.rows, 5).tolist()}
    lengths_b = {(s, r): (p, e, i) for s, r, p, e, i in _table(b.rows, 5).tolist()}
    for key in sorted(lengths_a.keys() & lengths_b.keys()):
        pa, ea, ia = lengths_a[key]
        pb, eb, ib = lengths_b[key]
        if (pa, ea) != (pb, eb):
            return _divergence(a, b, key, (pa, ea, ia), (pb, eb, ib))
    return None


def _divergence(
    a: RankRecord,
    b: RankRecord,
    key: tuple[int, int],
    of_a: tuple[int, int, int],
    of_b: tuple[int, int, int],
) -> Finding:
    step, request = key
    req = a.names[request]
    subtype = "prefix_len" if of_a[0] != of_b[0] else "extend_len"
    cause = _first_difference(a, b, of_a[2], of_b[2])
    rank, event, told = cause if cause is not None else (None, None, None)
    evidence = [
        f"step {step}, request {req}: prefix {of_a[0]} and extend {of_a[1]} on rank {a.number}, "
        f"prefix {of_b[0]} and extend {of_b[1]} on rank {b.number}",
    ]
    if told is not None:
        evidence.append(f"before that, only rank {rank} saw {told} (event {event})")
    lost = a.lost or b.lost
    if lost:
        evidence.append("events were lost in recording: the difference may lie in a gap")
    details: dict[str, int | str] = {} if rank is None else {"rank": rank}
    return Finding(
        id="F1",
        cls="rank_divergence",
        subtype=subtype,
        first_bad_step=step,
        cause_event=event,
        corrupting_event=None,
        victim=req,
        positions=None,
        culprit=Culprit(req=None, step=None, event=event, details=details),
        ruled_out=[RuledOut("stale_mapping", "each rank is consistent in itself")],
        confidence=PROBABLE if lost or event is None else "certain",
        evidence=evidence,
        remedy=remedy("rank_divergence", subtype),
        blast_radius={req: None},
        cause_rank=rank,
    )


def _first_difference(
    a: RankRecord, b: RankRecord, until_a: int, until_b: int
) -> tuple[int, int, str] | None:
    """The event that one rank saw and the other did not: (rank, event, what)."""
    stream_a = [row for row in _table(a.stream, 3).tolist() if row[2] < until_a]
    stream_b = [row for row in _table(b.stream, 3).tolist() if row[2] < until_b]
    at = next(
        (k for k, (x, y) in enumerate(zip(stream_a, stream_b, strict=False)) if x[0] != y[0]),
        min(len(stream_a), len(stream_b)),
    )
    rest_a, rest_b = stream_a[at:], stream_b[at:]
    if not rest_a and not rest_b:
        return None
    if not rest_a or not rest_b:
        record, row = (a, rest_a[0]) if rest_a else (b, rest_b[0])
        return record.number, row[2], record.kinds[row[1]]
    # The rank whose event has no counterpart of its kind and name is the odd one.
    b_lacks = rest_a[0][1] not in {row[1] for row in rest_b}
    a_lacks = rest_b[0][1] not in {row[1] for row in rest_a}
    record, row = (a, rest_a[0]) if b_lacks and not a_lacks else (b, rest_b[0])
    return record.number, row[2], record.kinds[row[1]]
