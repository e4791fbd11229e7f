"""Where two ranks' allocator, prefix-index and transfer events part.

Events of different groups (``ranks.group_of``) may come in another order on each rank: one thread
was faster, or one request was looked at first. Within a group their order is part of what was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.rank_digests import digest
from kvcanary_cli.attribution.ranks import INDEX

if TYPE_CHECKING:
    from array import array

    from kvcanary_cli.attribution.ranks import RankRecord

    Rows = np.ndarray[tuple[int, int], np.dtype[np.int64]]
    Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

_DIGEST, _LABEL, _EVENT, _GROUP, _COUNT = range(5)
WIDTH = 5


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a rank's stream: its ``i``, which kind by whom, and how many slots it named."""

    event: int
    label: int
    count: int


@dataclass(frozen=True, slots=True)
class Parting:
    """The first event that two ranks did not see alike; None = that rank has none in its place.

    ``lone_a``, ``lone_b``: whether the other rank has no event of that kind and name from there on.
    """

    a: StreamEvent | None
    b: StreamEvent | None
    lone_a: bool
    lone_b: bool


def table(flat: array[int], width: int) -> Rows:
    """Flat groups of ``width`` numbers as rows."""
    return np.array(flat, dtype=np.int64).reshape(-1, width)


def parting(
    a: RankRecord,
    b: RankRecord,
    *,
    before: tuple[int, int] | None = None,
    req: str | None = None,
) -> Parting | None:
    """The first event that ``a`` and ``b`` did not see alike.

    Args:
        a, b: The ranks.
        before: Only what happened before these events of ``a`` and ``b``.
        req: What happens to this request and to the prefix index is not alike if it comes behind
            ``before`` on the other rank; of everybody else, that may be chance.

    Returns:
        None where nothing differs.
    """
    rows_a, rows_b = table(a.stream, WIDTH), table(b.stream, WIDTH)
    end_a, end_b = before if before is not None else (_end(rows_a), _end(rows_b))
    strict = [INDEX, digest("slots", req), digest("transfers", req)] if req is not None else [INDEX]
    place_a, place_b = _place_in_group(rows_a), _place_in_group(rows_b)
    keys = np.unique(np.concatenate([place_a, place_b]), axis=0, return_inverse=True)[1].ravel()
    at_a, at_b = _index_by(keys[: len(rows_a)], keys), _index_by(keys[len(rows_a) :], keys)
    # By key: the event on each rank, and whether it lies before the end.
    in_a, in_b = _lies(rows_a, at_a, end_a), _lies(rows_b, at_b, end_b)
    alike = (at_a >= 0) & (at_b >= 0)
    alike[alike] = rows_a[at_a[alike], _DIGEST] == rows_b[at_b[alike], _DIGEST]
    group = np.where(at_a >= 0, _of(rows_a, at_a, _GROUP), _of(rows_b, at_b, _GROUP))
    differ = (in_a | in_b) & ~(alike & ((in_a & in_b) | ~np.isin(group, strict)))
    if not differ.any():
        return None
    late = np.iinfo(np.int64).max
    event = np.minimum(
        np.where(in_a, _of(rows_a, at_a, _EVENT), late),
        np.where(in_b, _of(rows_b, at_b, _EVENT), late),
    )
    key = int(np.where(differ, event, late).argmin())
    one = _event(rows_a, at_a, key) if in_a[key] else None
    other = _event(rows_b, at_b, key) if in_b[key] else None
    return Parting(
        one,
        other,
        lone_a=one is not None and not _follows(rows_b, one.label, event[key], end_b),
        lone_b=other is not None and not _follows(rows_a, other.label, event[key], end_a),
    )


def _end(rows: Rows) -> int:
    return int(rows[-1, _EVENT]) + 1 if len(rows) else 0


def _place_in_group(rows: Rows) -> Rows:
    """[n, 2] group of each event, and how many of the group came before it."""
    order = np.argsort(rows[:, _GROUP], kind="stable")
    groups = rows[order, _GROUP]
    first = np.ones(len(groups), dtype=np.bool_)
    first[1:] = groups[1:] != groups[:-1]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(groups)), 0))
    place = np.empty((len(rows), 2), dtype=np.int64)
    place[order, 0], place[order, 1] = groups, np.arange(len(groups)) - starts
    return place


def _index_by(mine: Ints, keys: Ints) -> Ints:
    """[keys] which of ``mine`` has each key, -1 = none."""
    index = np.full(int(keys.max(initial=-1)) + 1, -1, dtype=np.int64)
    index[mine] = np.arange(len(mine))
    return index


def _of(rows: Rows, at: Ints, column: int) -> Ints:
    if not len(rows):
        return np.zeros(len(at), dtype=np.int64)
    values: Ints = rows[at, column]
    return values


def _lies(rows: Rows, at: Ints, end: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    lies: np.ndarray[tuple[int], np.dtype[np.bool_]] = (at >= 0) & (_of(rows, at, _EVENT) < end)
    return lies


def _event(rows: Rows, at: Ints, key: int) -> StreamEvent:
    row = rows[int(at[key])].tolist()
    return StreamEvent(row[_EVENT], row[_LABEL], row[_COUNT])


def _follows(rows: Rows, label: int, since: int, end: int) -> bool:
    """Whether an event of this kind and name comes from ``since`` on, before ``end``."""
    events = rows[rows[:, _LABEL] == label, _EVENT]
    return bool(((events >= since) & (events < end)).any())
