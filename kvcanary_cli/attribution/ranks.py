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
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

    Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]

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


def may_have_peers(header: TraceHeader) -> bool:
    """Whether other ranks of the same run can exist, by what the header says."""
    stated = header.raw.get("rank")
    if not isinstance(stated, dict) or not stated:
        return False
    sizes = [stated.get(f"{axis}_size") for axis in ("tp", "pp", "dp")]
    return None in sizes or world_size(header.rank) > 1


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
        place: Its index on every axis, and ``sizes`` the axes' lengths, as the header has them.
        engine: Name and version of the engine.
        kept: Whether ``rows`` and ``stream`` are filled.
    """

    number: int
    dp: int
    lost: bool = False
    rows: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    world: int = 1
    place: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    engine: str = ""
    kept: bool = True

    @classmethod
    def of(cls, header: TraceHeader, *, kept: bool) -> RankRecord:
        """An empty record of the rank that ``header`` names."""
        axes = sorted(header.rank.items())
        return cls(
            rank_number(header.rank),
            header.rank["dp"],
            world=world_size(header.rank),
            place=tuple((name, n) for name, n in axes if not name.endswith("_size")),
            sizes=tuple((name, n) for name, n in axes if name.endswith("_size")),
            engine=f"{header.engine_name} {header.engine_version}",
            kept=kept,
        )

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


def _table(flat: array[int], width: int) -> Rows:
    return np.array(flat, dtype=np.int64).reshape(-1, width)


def compare_ranks(records: Sequence[RankRecord]) -> list[Finding]:
    """Findings of ``rank_divergence``: the first one of each pair of ranks that differs."""
    return [finding for _pair, finding in diverging_pairs(records)]


def diverging_pairs(records: Sequence[RankRecord]) -> list[tuple[tuple[int, int], Finding]]:
    """The same, each with the two numbers of ``records`` that differ."""
    found: list[tuple[tuple[int, int], Finding]] = []
    by_dp: dict[int, list[int]] = {}
    for k, record in enumerate(records):
        by_dp.setdefault(record.dp, []).append(k)
    for first, *others in by_dp.values():
        for other in others:
            finding = _compare(records[first], records[other])
            if finding is not None:
                found.append(((first, other), finding))
    return found


def _compare(a: RankRecord, b: RankRecord) -> Finding | None:
    rows_a, rows_b = _last_of_each(a), _last_of_each(b)
    _common, at_a, at_b = np.intersect1d(
        _keys(rows_a), _keys(rows_b), assume_unique=True, return_indices=True
    )
    rows_a, rows_b = rows_a[at_a], rows_b[at_b]
    differ = np.flatnonzero((rows_a[:, 2:4] != rows_b[:, 2:4]).any(axis=1))
    if not len(differ):
        return None
    step, request, *of_a = map(int, rows_a[differ[0]])
    _, _, *of_b = map(int, rows_b[differ[0]])
    return _divergence(a, b, (step, request), (*of_a,), (*of_b,))


def _last_of_each(record: RankRecord) -> Rows:
    """The rows in order of step and request; of several for one request, the last."""
    rows = _table(record.rows, 5)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    last = np.ones(len(rows), dtype=np.bool_)
    last[:-1] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    return rows[last]


def _keys(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    pair = np.dtype([("step", np.int64), ("request", np.int64)])
    return np.ascontiguousarray(rows[:, :2]).view(pair).reshape(-1)


def _divergence(
    a: RankRecord,
    b: RankRecord,
    key: tuple[int, int],
    of_a: tuple[int, ...],
    of_b: tuple[int, ...],
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
