"""Ranks that must agree: two ranks' records aligned on step and request.

Compared are, in this order of a step: which requests ran, the lengths of their prefixes and of what
they wrote, the tokens that were fed, and what their prefix matches hit. Tokens count only where the
two traces hash them alike, and hits only where no other event parts the two ranks before. Slots are
compared by what they stand for (``rank_slots``), never by their numbers.

That two ranks differ is a fact of their traces. Which of them is right is none, nor that the first
event they did not see alike is why: no finding here is ``certain``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.classes import remedy
from kvcanary_cli.attribution.rank_streams import parting, table
from kvcanary_cli.attribution.result import POSSIBLE, PROBABLE, Culprit, Finding, RuledOut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.ranks import RankRecord

    Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_STEP, _REQ, _PREFIX, _EXTEND, _EVENT, _TOKENS = range(6)


@dataclass(frozen=True, slots=True)
class _Difference:
    """Where two ranks part first.

    Attributes:
        step: The step.
        req: Digest of the request.
        subtype: Of ``rank_divergence``.
        until_a, until_b: Events before which the cause lies, in each rank.
        told: What differs, one sentence.
        missed: Which rank has the step, where the other one has not, and the event of it there:
            what this rank did from then on cannot be the cause.
    """

    step: int
    req: int
    subtype: str
    until_a: int
    until_b: int
    told: str
    missed: tuple[int, int] | None = None


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
    differences = [
        _requests(a, b, rows_a, rows_b),
        _rows(a, b, rows_a, rows_b),
        _hits(a, b, rows_a, rows_b),
    ]
    first = min((d for d in differences if d is not None), key=lambda d: d.step, default=None)
    return None if first is None else _divergence(a, b, first)


def _last_of_each(record: RankRecord) -> Rows:
    """The rows in order of step and request; of several for one request, the last."""
    rows = table(record.rows, 6)
    rows = rows[np.lexsort((rows[:, _REQ], rows[:, _STEP]))]
    last = np.ones(len(rows), dtype=np.bool_)
    last[:-1] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    return rows[last]


def _keys(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    pair = np.dtype([("step", np.int64), ("request", np.int64)])
    return np.ascontiguousarray(rows[:, :2]).view(pair).reshape(-1)


def _requests(a: RankRecord, b: RankRecord, rows_a: Rows, rows_b: Rows) -> _Difference | None:
    """The first step in which one rank ran a request that the other did not.

    The first and last step of a record may be a part only, and a gap hides rows. Between them a
    rank has no row of a step only if it ran none in it.
    """
    if a.lost or b.lost or not len(rows_a) or not len(rows_b):
        return None
    begin = max(int(rows_a[0, _STEP]), int(rows_b[0, _STEP]))
    end = min(int(rows_a[-1, _STEP]), int(rows_b[-1, _STEP]))
    starts_alike = rows_a[0, _STEP] == rows_b[0, _STEP]
    ends_alike = rows_a[-1, _STEP] == rows_b[-1, _STEP]

    def both(rows: Rows) -> Rows:
        low = rows[:, _STEP] >= begin if starts_alike else rows[:, _STEP] > begin
        high = rows[:, _STEP] <= end if ends_alike else rows[:, _STEP] < end
        kept: Rows = rows[low & high]
        return kept

    mine, theirs = both(rows_a), both(rows_b)
    keys_a, keys_b = _keys(mine), _keys(theirs)
    lone = [
        (int(row[_STEP]), int(row[_REQ]), record, other)
        for record, other, rows, keys, against in (
            (a, b, mine, keys_a, keys_b),
            (b, a, theirs, keys_b, keys_a),
        )
        for row in rows[~np.isin(keys, against)][:1]
    ]
    if not lone:
        return None
    step, req, record, other = min(lone, key=lambda each: each[0])
    known = [bool((rows[:, _STEP] == step).any()) for rows in (rows_a, rows_b)]
    missed = None
    if not all(known):
        # One of them was still before the step when it had gone on behind it.
        had = (a, rows_a) if known[0] else (b, rows_b)
        missed = had[0].number, _event_from(had[1], step)
    until = step if missed is None else step + 1
    told = f"step {step}: request {record.names[req]} ran on rank {record.number} and not on rank "
    return _Difference(
        step,
        req,
        "request_set",
        _event_from(rows_a, until),
        _event_from(rows_b, until),
        f"{told}{other.number}" + ("" if missed is None else ", which ran nothing in that step"),
        missed,
    )


def _event_from(rows: Rows, step: int) -> int:
    """Event of the first row of ``step``, or of the next step that there is."""
    return int(rows[rows[:, _STEP] >= step][0, _EVENT])


def _rows(a: RankRecord, b: RankRecord, rows_a: Rows, rows_b: Rows) -> _Difference | None:
    """The first row of both whose lengths or tokens differ."""
    _common, at_a, at_b = np.intersect1d(
        _keys(rows_a), _keys(rows_b), assume_unique=True, return_indices=True
    )
    rows_a, rows_b = rows_a[at_a], rows_b[at_b]
    lengths = (rows_a[:, _PREFIX:_EVENT] != rows_b[:, _PREFIX:_EVENT]).any(axis=1)
    tokens = rows_a[:, _TOKENS] != rows_b[:, _TOKENS]
    fed = rows_a[:, _EXTEND] > 0
    # Salted with keys of their own, two traces have no token in common.
    if not (fed & ~lengths & ~tokens).any() and not (a.raw_tokens and b.raw_tokens):
        tokens[:] = False
    differ = np.flatnonzero(lengths | tokens)
    if not len(differ):
        return None
    at = int(differ[0])
    of_a, of_b = rows_a[at].tolist(), rows_b[at].tolist()
    step, req = of_a[:2]
    if lengths[at]:
        subtype = "prefix_len" if of_a[_PREFIX] != of_b[_PREFIX] else "extend_len"
        told = (
            f"step {step}, request {a.names[req]}: prefix {of_a[_PREFIX]} and extend "
            f"{of_a[_EXTEND]} on rank {a.number}, prefix {of_b[_PREFIX]} and extend "
            f"{of_b[_EXTEND]} on rank {b.number}"
        )
    else:
        subtype = "fed_tokens"
        told = (
            f"step {step}, request {a.names[req]}: what was fed from position {of_a[_PREFIX]} on "
            f"({_tokens(of_a[_EXTEND])}) is something else on rank {b.number} than on rank "
            f"{a.number}"
        )
    return _Difference(step, req, subtype, of_a[_EVENT], of_b[_EVENT], told)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _hits(a: RankRecord, b: RankRecord, rows_a: Rows, rows_b: Rows) -> _Difference | None:
    """The first match of a request that hit something else on the other rank.

    What follows from another difference is none of its own: the match must be where their streams
    of events part.
    """
    if a.lost or b.lost:
        return None
    parted = parting(a, b)
    if parted is None or parted.a is None or parted.b is None:
        return None
    event_a, event_b = parted.a.event, parted.b.event
    match_a, match_b = table(a.matches, 4), table(b.matches, 4)
    mine, theirs = match_a[match_a[:, 3] == event_a], match_b[match_b[:, 3] == event_b]
    if not len(mine) or not len(theirs) or mine[0, 0] != theirs[0, 0]:
        return None
    req = int(mine[0, 0])
    behind = rows_a[(rows_a[:, _REQ] == req) & (rows_a[:, _EVENT] > event_a)]
    if not len(behind):
        return None
    hits = f"{int(mine[0, 1])} positions on rank {a.number}, {int(theirs[0, 1])} on rank {b.number}"
    if mine[0, 1] == theirs[0, 1]:
        hits = f"{int(mine[0, 1])} positions on both ranks, of different entries"
    return _Difference(
        int(behind[:, _STEP].min()),
        req,
        "matched_entry",
        event_a + 1,
        event_b + 1,
        f"the match of request {a.names[req]} hit {hits}",
    )


def _divergence(a: RankRecord, b: RankRecord, first: _Difference) -> Finding:
    req = a.names.get(first.req) or b.names[first.req]
    cause = _first_difference(a, b, first)
    rank, event, told = cause if cause is not None else (None, None, None)
    evidence = [
        first.told,
        "nothing that was recorded before it differs" if told is None else told,
        "which of the two ranks is right, their traces do not show",
    ]
    doubts = _doubts(a, b, first.subtype)
    details: dict[str, int | str] = {} if rank is None else {"rank": rank}
    return Finding(
        id="F1",
        cls="rank_divergence",
        subtype=first.subtype,
        first_bad_step=first.step,
        cause_event=event,
        corrupting_event=None,
        victim=req,
        positions=None,
        culprit=Culprit(req=None, step=None, event=event, details=details),
        ruled_out=[RuledOut("stale_mapping", "each rank is consistent in itself")],
        confidence=POSSIBLE if doubts or event is None else PROBABLE,
        evidence=[*evidence, *doubts],
        remedy=remedy("rank_divergence", first.subtype),
        blast_radius={req: None},
        cause_rank=rank,
    )


def _doubts(a: RankRecord, b: RankRecord, subtype: str) -> list[str]:
    """Why the two ranks may differ and both be right."""
    doubts = []
    if a.lost or b.lost:
        doubts.append("events were lost in recording: the difference may lie in a gap")
    there = dict(b.place)
    axes = {name for name, n in a.place if there.get(name, n) != n}
    if "pp" in axes and subtype == "fed_tokens":
        doubts.append(
            "they are stages of one pipeline: a stage behind the first takes hidden states, and "
            "what stands for its tokens may not be them"
        )
    for name in sorted(axes - {"tp", "pp"}):
        doubts.append(f"they differ on the axis {name}, on which ranks may share out the work")
    return doubts


def _first_difference(
    a: RankRecord, b: RankRecord, first: _Difference
) -> tuple[int, int, str] | None:
    """The first event that the two ranks did not see alike: (rank, event, what)."""
    req = a.names.get(first.req) or b.names[first.req]
    parted = parting(a, b, before=(first.until_a, first.until_b), req=req)
    if parted is None:
        return None
    mine, theirs = parted.a, parted.b
    if first.missed is not None:
        rank, event = first.missed
        on_it = mine if rank == a.number else theirs
        if on_it is not None and on_it.event >= event:
            # What followed from the step that the other one missed.
            return None
    if mine is not None and theirs is not None and mine.label == theirs.label:
        # Both did it, each in its way; the later number is the one that is looked at.
        what = b.kinds[theirs.label]
        if mine.count == theirs.count:
            named = "slots that stand for other content"
            than = f"than on rank {a.number} (event {mine.event})"
        else:
            named = "1 slot" if theirs.count == 1 else f"{theirs.count} slots"
            than = f"and {mine.count} on rank {a.number} (event {mine.event})"
        told = f"before that, {what} named {named} on rank {b.number} (event {theirs.event}) {than}"
        return b.number, theirs.event, told
    # The rank whose event has no counterpart of its kind and name is the odd one.
    of_a = theirs is None or (mine is not None and parted.lone_a and not parted.lone_b)
    record, odd = (a, mine) if of_a else (b, theirs)
    assert odd is not None
    alone = parted.lone_a if of_a else parted.lone_b
    saw = "only rank {} saw {}" if alone else "rank {} alone saw {} at that point"
    return (
        record.number,
        odd.event,
        f"before that, {saw.format(record.number, record.kinds[odd.label])} (event {odd.event})",
    )
