"""What a rank did, as far as the other ranks of its run must have done the same.

Each rank keeps, while it is replayed, one line per batch row (step, request, prefix, extend, fed
tokens) and one per allocator, prefix-index and transfer event. Slots stand in them for what they
are to their owners (``rank_slots``), as each rank numbers its own. Nothing else crosses ranks;
``rank_compare`` aligns the lines of two ranks.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.rank_digests import digest, digest_of_ints
from kvcanary_cli.attribution.rank_slots import LogicalSlots
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.header import TraceHeader
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
#: Group of what happens to the prefix index, see ``group_of``.
INDEX = 0
# Their order within a list says something: positions follow from it.
_IN_ORDER = frozenset({"publish", "match"})
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


@dataclass(slots=True)
class RankRecord:
    """What one rank did, as far as other ranks must have done the same.

    Attributes:
        number: Rank number.
        dp: Data-parallel index; only ranks of one index must agree.
        lost: Whether events are missing.
        rows: Flat groups of (step, request digest, prefix, extend, event, digest of the tokens).
        matches: Flat groups of (request digest, hit length, digest of the slots, event).
        stream: Flat groups of (event digest, kind and name digest, event, group, slots): groups
            as ``group_of`` says, slots as their number.
        names: Request digest to name, for the requests of ``rows``.
        world: How many ranks the engine had.
        place: Its index on every axis, and ``sizes`` the axes' lengths, as the header has them.
        engine: Name and version of the engine.
        kept: Whether ``rows``, ``matches`` and ``stream`` are filled.
        starts_mid_run: Whether the server was running already when the trace began.
        raw_tokens: Whether tokens are as they were fed; salted ones have a key of the recording.
        logical: What slots stand for while the rank is replayed; None where nothing is kept.
    """

    number: int
    dp: int
    lost: bool = False
    rows: array[int] = field(default_factory=lambda: array("q"))
    matches: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    names: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    world: int = 1
    place: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    engine: str = ""
    kept: bool = True
    raw_tokens: bool = True
    starts_mid_run: bool = False
    logical: LogicalSlots | None = None

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
            raw_tokens=header.tokens == "raw",
            starts_mid_run=header.starts_mid_run,
            logical=LogicalSlots(header.pool.max_slot + 1) if kept else None,
        )

    def done(self) -> None:
        """The rank was replayed to its end."""
        self.logical = None

    def forward(self, forward: Forward) -> None:
        """Keep lengths and fed tokens of the target's rows."""
        if forward.is_draft:
            return
        ends = np.cumsum(forward.extend)
        for b, req in enumerate(forward.reqs):
            if req is None:
                continue
            code = digest(req)
            self.names[code] = req
            fed = forward.input_ids[int(ends[b] - forward.extend[b]) : int(ends[b])]
            self.rows.extend(
                (
                    forward.step,
                    code,
                    int(forward.prefix[b]),
                    int(forward.extend[b]),
                    forward.event,
                    digest_of_ints(fed),
                )
            )
        if self.logical is not None:
            self.logical.written(forward)

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Keep an event that other ranks must have seen alike."""
        if kind not in COMPARED_KINDS:
            return
        table = segment.tables[kind]
        name_field = _NAME_FIELDS.get(kind, "req")
        name = segment.text(kind, name_field, row) if name_field in table.columns else None
        slots = self._slots(segment, kind, row, name)
        label = digest(kind, name)
        self.kinds[label] = f"{kind} by {name}" if name is not None else kind
        index = int(segment.index[k])
        which = digest_of_ints(slots if kind in _IN_ORDER else np.sort(slots))
        self.stream.extend(
            (digest(kind, name, which), label, index, group_of(kind, name), len(slots))
        )
        if kind == "match" and name is not None:
            req = digest(name)
            self.names[req] = name
            self.matches.extend((req, len(slots), which, index))

    def _slots(self, segment: Segment, kind: str, row: int, name: str | None) -> NDArray[np.int64]:
        """What the slots of an event stand for; of another pool's, and of new ones, their count."""
        table = segment.tables[kind]
        slots = table.get_ints("slots" if kind != "copy" else "dst", row)
        if slots is None:
            return np.empty(0, dtype=np.int64)
        logical = self.logical
        assert logical is not None
        if kind == "alloc":
            logical.alloc(name or "", slots)
            return np.zeros_like(slots)
        if kind != "copy":
            return logical.named(name or "", slots)
        pools = [
            segment.text(kind, field, row) if field in table.columns else None
            for field in ("src_pool", "dst_pool")
        ]
        if pools[1] not in (None, "full"):
            return np.zeros_like(slots)
        named = logical.named(name or "", slots)
        source = segment.json(kind, "src", row)
        if pools[0] in (None, "full") and isinstance(source, list):
            logical.moved(np.array(source, dtype=np.int64), slots)
        return named


def group_of(kind: str, name: str | None) -> int:
    """Events of one group must come in one order on all ranks; ``INDEX`` is the prefix index's."""
    if kind in ("alloc", "free") and name != TREE_OWNER:
        return digest("slots", name)
    if kind == "copy" or kind.startswith("transfer"):
        return digest("transfers", name)
    return INDEX
