"""Copies that are skipped, go to the wrong places, or land too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, watch
from kvcanary_cli.inject.writes import frees_between, rewritten

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

_NEEDS = frozenset({"forward", "map", "transfer"})


def copies_of(run: CleanRun, *, spec: bool) -> list[int]:
    """Copies within the full pool: those that compact an accepted path, or the others."""
    return [
        at
        for at in run.by_kind.get("copy", [])
        if run.events[at].get("dst_pool", "full") == "full"
        and run.events[at].get("canary") is not False
        and run.events[at]["dst"]
        and _compacts(run, at) == spec
    ]


def _compacts(run: CleanRun, at: int) -> bool:
    event = run.events[at]
    same_pool = isinstance(event["src"], list) and event.get("src_pool", "full") == "full"
    return "spec" in run.records and same_pool and event.get("via") == "d2d"


def _skipped(run: CleanRun, rng: random.Random, *, spec: bool) -> Planted | None:
    copies = copies_of(run, spec=spec)
    for _ in range(TRIES if copies else 0):
        at = rng.choice(copies)
        edits = Edits(run.events, dropped={at})
        planted = Planted(
            edits=edits,
            slots=set(run.events[at]["dst"]),
            causes=[],
            note=f"the copy to {run.events[at]['dst']} does not happen",
        )
        if watch(run, planted):
            return planted
    return None


def missing_copy(run: CleanRun, rng: random.Random) -> Planted | None:
    planted = _skipped(run, rng, spec=False)
    if planted is None:
        return None
    (at,) = planted.edits.dropped
    event = run.events[at]
    ends = [k for k in run.by_kind.get("transfer_end", []) if k > at]
    windows = [k for k in ends if "id" in event and run.events[k]["id"] == event["id"]]
    others = [k for k in run.by_kind["copy"] if run.events[k].get("id") == event.get("id")]
    if windows and len(others) > 1:
        # The transfer brought the rest: it is not complete.
        planted.cls, planted.subtypes = "transfer_mismatch", {"incomplete_transfer"}
        planted.causes, planted.culprits = [windows[0]], {None}
        return planted
    starts = [t.start for s in event["dst"] for t in run.tenancies(s) if t.start < at]
    forks = [k for k in run.by_kind.get("fork", []) if k < at]
    planted.causes = [*starts, *forks]
    planted.subtypes = {"copy_on_write_skipped", "never_written_since_alloc"}
    writers = [w for s in event["dst"] if (w := run.last_write(s, at)) is not None]
    planted.culprits.add(None)
    planted.culprits.update(write.req for write in writers)
    return planted


def path_not_compacted(run: CleanRun, rng: random.Random) -> Planted | None:
    planted = _skipped(run, rng, spec=True)
    if planted is None:
        return None
    (at,) = planted.edits.dropped
    accepts = [k for k in run.by_kind.get("accept", []) if abs(k - at) < 64]
    own = [k for k in accepts if run.events[k]["req"] in planted.victims]
    planted.causes = list(own)
    planted.culprits.update(planted.victims)
    planted.subtypes = {"accepted_path_not_compacted"}
    return planted


def misaligned_copy(run: CleanRun, rng: random.Random) -> Planted | None:
    """Blocks of a copy are paired one place off."""
    copies = [at for at in copies_of(run, spec=False) if len(run.events[at]["dst"]) > 1]
    for _ in range(TRIES if copies else 0):
        at = rng.choice(copies)
        edits = Edits(run.events)
        source = edits.event(at)["src"]
        places = source["pos"] if isinstance(source, dict) else source
        places[:] = [*places[1:], places[0]]
        planted = Planted(
            edits=edits,
            slots=set(run.events[at]["dst"]),
            causes=[at],
            subtypes={"misaligned_blocks", "wrong_content"},
            note="each block of the copy gets its neighbour's content",
        )
        if watch(run, planted):
            planted.culprits.update(planted.victims)
            planted.culprits.add(run.events[at].get("by"))
            return planted
    return None


def transfer_after_free(run: CleanRun, rng: random.Random) -> Planted | None:
    """A load for a request that gave its slot back lands in it."""
    for _ in range(TRIES):
        drawn = rewritten(run, rng)
        if drawn is None:
            continue
        slot, old, new = drawn
        frees = frees_between(run, slot, old.at, new.at)
        if not frees or old.req not in run.history:
            continue
        at = run.behind_forward(new.at)
        edits = Edits(run.events)
        number = f"late-{run.events[old.at]['i']}"
        window = {"id": number, "req": old.req, "slots": [slot], "via": "rdma", "direction": "in"}
        edits.insert(frees[-1], {"kind": "transfer_begin", **window})
        edits.insert(
            at,
            {
                "kind": "copy",
                "src": {"req": old.req, "pos": [old.position]},
                "dst": [slot],
                "id": number,
                "via": "rdma",
                "by": old.req,
                "canary": True,
            },
        )
        edits.insert(at, {"kind": "transfer_end", **window})
        planted = Planted(
            edits=edits,
            slots={slot},
            causes=[frees[-1]],
            culprits={old.req},
            subtypes={"rdma_write_after_free"},
            note=f"a transfer for {old.req} lands in slot {slot} after it changed hands",
        )
        if watch(run, planted):
            return planted
    return None


KINDS = (
    FaultKind(
        "missing_copy",
        "unwritten_read",
        "a copy on write or a load from another tier does not happen",
        _NEEDS,
        missing_copy,
    ),
    FaultKind(
        "misaligned_copy",
        "transfer_mismatch",
        "the blocks of a copy are paired one place off",
        _NEEDS,
        misaligned_copy,
    ),
    FaultKind(
        "transfer_after_free",
        "transfer_race",
        "a transfer lands after its slot was freed and given to another",
        _NEEDS | {"alloc", "history"},
        transfer_after_free,
    ),
    FaultKind(
        "path_not_compacted",
        "spec_commit",
        "accepted draft tokens are not moved together",
        _NEEDS | {"spec"},
        path_not_compacted,
    ),
)
