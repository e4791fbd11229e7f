"""Which of many traces are ranks of one run: only those are compared with one another.

Traces that were named side by side belong together, as far as their ranks differ. Of those that
were found in a folder, only those of one subfolder and one deployment do. Where a rank occurs
twice there are several runs: they are told apart by folder, then by file name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from kvcanary_cli.attribution.ranks import RankRecord

_RANK_IN_NAME = re.compile(r"(?<![a-z])(rank|tp|pp|dp)([-_]?)\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trace that may be one rank of a run.

    Attributes:
        path: Its path as reports name it.
        record: Its rank and what other ranks must have done alike.
        found_in: The subfolder that it was found in, None if it was named itself.
    """

    path: str
    record: RankRecord
    found_in: str | None = None


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs among some traces, as numbers of candidates in order.

    Attributes:
        runs: Traces that belong together, at least two each.
        unclear: Traces that claim one rank and that nothing tells apart.
    """

    runs: tuple[tuple[int, ...], ...]
    unclear: tuple[tuple[int, ...], ...]


def find_runs(candidates: Sequence[Candidate]) -> Runs:
    """Sort traces into runs; one whose ranks were not recorded belongs to none."""
    members = [k for k, one in enumerate(candidates) if one.record.kept]
    runs: list[tuple[int, ...]] = []
    unclear: list[tuple[int, ...]] = []

    def sort_out(group: list[int], keys: list[Callable[[Candidate], Hashable]]) -> None:
        places = {candidates[k].record.place for k in group}
        if len(places) == len(group):
            if len(group) > 1:
                runs.append(tuple(group))
        elif not keys:
            unclear.append(tuple(group))
        else:
            parts: dict[Hashable, list[int]] = {}
            for k in group:
                parts.setdefault(keys[0](candidates[k]), []).append(k)
            for part in parts.values():
                sort_out(part, keys[1:])

    first: dict[Hashable, list[int]] = {}
    for k in members:
        first.setdefault(_origin(candidates[k]), []).append(k)
    for group in first.values():
        sort_out(group, [_place, _family])
    return Runs(tuple(sorted(runs)), tuple(sorted(unclear)))


def _origin(one: Candidate) -> Hashable:
    engine = one.record.engine
    return engine if one.found_in is None else (engine, one.found_in, one.record.sizes)


def _place(one: Candidate) -> Hashable:
    return one.path.rstrip("/").rpartition("/")[0], one.record.sizes


def _family(one: Candidate) -> Hashable:
    """The name with its rank struck out: what the traces of one run have in common."""
    return _RANK_IN_NAME.sub(r"\1\2#", one.path.rstrip("/").rpartition("/")[2])
