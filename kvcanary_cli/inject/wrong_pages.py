"""Copies that put one of their pages where it does not belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.inject.clean_run import TREE, sources_of
from kvcanary_cli.inject.edits import Edits
from kvcanary_cli.inject.planting import TRIES, FaultKind, Planted, watch
from kvcanary_cli.inject.transfers import copies_of

if TYPE_CHECKING:
    import random

    from kvcanary_cli.inject.clean_run import CleanRun

_REQUEST, _TREE, _FREE = "another request's", "the prefix cache's", "a free"


def copy_to_wrong_pages(run: CleanRun, rng: random.Random) -> Planted | None:
    """One page of a copy's destination is another request's, the cache's, or free."""
    copies = [*copies_of(run, spec=False), *copies_of(run, spec=True)]
    for _ in range(TRIES if copies else 0):
        at = rng.choice(copies)
        planted = _misdirected(run, rng, at, rng.choice((_REQUEST, _TREE, _FREE)))
        if planted is not None and watch(run, planted):
            return planted
    return None


def _misdirected(run: CleanRun, rng: random.Random, at: int, whose: str) -> Planted | None:
    event = run.events[at]
    page_size = int(run.header["pool"].get("page_size", 1))
    right = rng.choice(event["dst"])
    actor = run.owner(right, at) if event.get("by") is None else event["by"]
    if actor is None:
        return None
    page = right // page_size
    moved = [slot for slot in event["dst"] if slot // page_size == page]
    pages = [p for p in _pages(run, whose) if p != page]
    if not pages:
        return None
    wrong = rng.choice(pages)
    swap = {slot: wrong * page_size + slot % page_size for slot in moved}
    named = {*event["dst"], *(slot for pool, slot, _ in sources_of(event) if pool == "full")}
    if any(
        slot in named or _holder(run, slot, at) != whose or _knows(run, actor, slot)
        for slot in swap.values()
    ):
        return None
    names = "by" in event or "id" in event or isinstance(event["src"], dict)
    edits = Edits(run.events)
    slots = edits.event(at)["dst"]
    slots[:] = [swap.get(slot, slot) for slot in slots]
    planted = Planted(
        edits=edits,
        # What belongs to nobody shows only in what the right page lacks.
        slots=set(swap) if whose == _FREE else {*swap, *swap.values()},
        causes=[at],
        # Whose it is follows from who has the right page; a copy itself may name nobody.
        culprits={actor} if names else {actor, None},
        subtypes={"wrong_pages"},
        note=f"the copy to {sorted(swap)} lands in {whose} slots {sorted(swap.values())}",
    )
    for one, other in swap.items():
        value = _printed(run, one, at)
        if value is not None and at + 1 < len(run.events):
            planted.bytes.append((at + 1, "full", "k", other, value))
    return planted


def _printed(run: CleanRun, slot: int, at: int) -> int | None:
    """The fingerprint of what event ``at`` brought into ``slot``, None = it was never taken."""
    write = run.next_write(slot, at)
    for k in run.by_kind.get("kv_hash", []):
        event = run.events[k]
        if k < at or event.get("pool", "full") != "full" or slot not in event["slots"]:
            continue
        if write is not None and write.at < k:
            break
        return int(event["hash"][event["slots"].index(slot)])
    return None


def _pages(run: CleanRun, whose: str) -> list[int]:
    """Pages that may have that kind of holder; page 0 is for padding."""
    page_size = int(run.header["pool"].get("page_size", 1))
    used = {slot // page_size for slot in run.writes}
    if whose == _FREE:
        # All pages that were never used are alike.
        unused = set(range(1, int(run.header["pool"]["slots"]) // page_size)) - used
        used |= {min(unused)} if unused else set()
    return sorted(used - {0})


def _holder(run: CleanRun, slot: int, at: int) -> str:
    owner = run.owner(slot, at)
    return _FREE if owner is None else _TREE if owner == TREE else _REQUEST


def _knows(run: CleanRun, actor: str, slot: int) -> bool:
    """Whether the slot is, was or becomes the actor's: then the copy came late, or early."""
    return any(term.owner == actor for term in run.tenancies(slot)) or any(
        run.row_of(read.at, read.b).req == actor for read in run.reads_between(slot, -1, None)
    )


KINDS = (
    FaultKind(
        "copy_to_wrong_pages",
        "transfer_mismatch",
        "a page of a copy lands in a page of another request, of the cache, or in a free one",
        frozenset({"forward", "map", "transfer", "alloc"}),
        copy_to_wrong_pages,
    ),
)
