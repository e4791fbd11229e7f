"""Who owns which slot in a SGLang capture.

The capture's allocator events name slots and call chains, not requests. These rules give owners;
each rests on something that the capture shows, and a slot for which none applies gets none.

- ``alloc``: the owner is the request in whose part of ``out_cache_loc`` the slot first stands
  afterwards. Speculation allocates ahead, so that may be some forwards later; a slot given back
  unused at a request's end belongs to that request (``free_deferred`` in front of its
  ``row_free``).
- After a prefill the engine inserts the row's prefix into its radix tree
  (``checkpoint_into_tree``): the request's slots of that row pass to the tree, except duplicates,
  which the insert frees before the next forward. A decode row, alone or in a MIXED batch, is not
  inserted.
- At the end of a request the whole row is inserted: what it still owns passes to the tree, except
  what is freed before the next forward.
- ``free``: the tree gives back what it evicts (``_drain_device_frees``); a planted free is given
  back by the request that the ground truth names; every other free by the slot's owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.schema import TREE_OWNER
from tests.tools.capture_rows import ints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.tools.capture_rows import Event

EVICTION_CALLER = "_drain_device_frees"
PLANTED_CALLER = "bug"


def is_eviction(event: Event) -> bool:
    return EVICTION_CALLER in event["caller"].split("<")


def is_planted(event: Event) -> bool:
    return bool(event["caller"].split("<")[0] == PLANTED_CALLER)


def tokens_per_row(step: dict[str, Any]) -> list[int]:
    """How many tokens each batch row of a capture step writes."""
    if step["forward_mode_name"] == "TARGET_VERIFY":
        return [step["draft_token_num"]] * step["batch_size"]
    if step["extend_seq_lens"] is not None:
        return ints(step["extend_seq_lens"])
    return [1] * step["batch_size"]


def written_slots(step: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Each batch row's request and part of ``out_cache_loc``."""
    slots, start = ints(step["out_cache_loc"]), 0
    for req, count in zip(step["rids"], tokens_per_row(step), strict=True):
        yield req, slots[start : start + count]
        start += count


def events_by_step(capture: dict[str, Any]) -> list[list[Event]]:
    """The full pool's events in front of each forward; the last list stands behind them all."""
    groups: list[list[Event]] = [[] for _ in range(len(capture["steps"]) + 1)]
    for event in sorted(capture["events"], key=lambda e: e["seq"]):
        if event.get("pool", "full") == "full":
            groups[event["step"]].append({**event, "slots": ints(event["slots"])})
    return groups


def alloc_owners(steps: list[dict[str, Any]], groups: list[list[Event]]) -> dict[int, list[str]]:
    """Owner of each slot of each ``alloc``, by the event's ``seq``; "" where none is shown."""
    owners: dict[int, list[str]] = {}
    waiting: dict[int, tuple[int, int]] = {}

    def settle(slot: int, req: str) -> None:
        if slot in waiting:
            seq, k = waiting.pop(slot)
            owners[seq][k] = req

    for n, group in enumerate(groups):
        unused: list[int] = []
        for event in group:
            match event["kind"]:
                case "alloc":
                    owners[event["seq"]] = [""] * len(event["slots"])
                    waiting.update((s, (event["seq"], k)) for k, s in enumerate(event["slots"]))
                case "free_deferred":
                    unused += event["slots"]
                case "row_free":
                    for slot in unused:
                        settle(slot, event["rid"])
                    unused = []
                case "free":
                    for slot in event["slots"]:
                        waiting.pop(slot, None)
        if n < len(steps):
            for req, slots in written_slots(steps[n]):
                for slot in slots:
                    settle(slot, req)
    return owners


class Ownership:
    """The slots' owners over the course of a capture, and the events that say so."""

    def __init__(self, capture: dict[str, Any], planted_by: str | None = None) -> None:
        """Prepare the owners of ``capture``.

        Args:
            capture: The capture.
            planted_by: Request that a planted free acts for, from the ground truth.
        """
        self.groups = events_by_step(capture)
        self._alloc_owners = alloc_owners(capture["steps"], self.groups)
        self._planted_by = planted_by
        self._owner: dict[int, str] = {}

    def owner(self, slot: int) -> str | None:
        return self._owner.get(slot)

    def alloc(self, event: Event) -> list[Event]:
        out = []
        for req, slots in _grouped(event["slots"], self._alloc_owners[event["seq"]]):
            if req:
                self._owner.update(dict.fromkeys(slots, req))
                out.append({"kind": "alloc", "owner": req, "slots": slots})
        return out

    def free(self, event: Event) -> list[Event]:
        """The ``free`` events of one free.

        Raises:
            InputError: A slot is given back that nobody is known to own.
        """
        slots = event["slots"]
        if is_eviction(event):
            givers, reason = [TREE_OWNER] * len(slots), "evict"
        elif is_planted(event) and self._planted_by is not None:
            givers, reason = [self._planted_by] * len(slots), None
        else:
            givers, reason = [self._owner.get(slot, "") for slot in slots], None
            if "" in givers:
                raise InputError(
                    f"event {event['seq']}: slot {slots[givers.index('')]} is given back, "
                    f"but nobody is known to own it"
                )
        for slot in slots:
            self._owner.pop(slot, None)
        return [
            {"kind": "free", "owner": giver, "slots": given}
            | ({"reason": reason} if reason else {})
            for giver, given in _grouped(slots, givers)
        ]

    def insert(self, req: str, cells: Iterable[int], step: int) -> list[Event]:
        """Pass those of ``cells`` that ``req`` keeps to the tree; the insert frees in front of
        forward ``step`` what it does not keep."""
        freed = self._freed_by_insert(step)
        kept = [s for s in cells if self._owner.get(s) == req and s not in freed]
        return self._to_tree(req, kept)

    def release(self, req: str, step: int) -> list[Event]:
        """Pass what ``req`` keeps at its end, in front of forward ``step``, to the tree."""
        freed = self._freed_by_insert(step)
        return self._to_tree(
            req, [s for s, owner in self._owner.items() if owner == req and s not in freed]
        )

    def _to_tree(self, req: str, slots: list[int]) -> list[Event]:
        if not slots:
            return []
        self._owner.update(dict.fromkeys(slots, TREE_OWNER))
        return [{"kind": "own", "from": req, "owner": TREE_OWNER, "slots": slots}]

    def _freed_by_insert(self, step: int) -> set[int]:
        return {
            slot
            for event in self.groups[step]
            if event["kind"] == "free" and not is_eviction(event) and not is_planted(event)
            for slot in event["slots"]
        }


def _grouped(slots: list[int], owners: list[str]) -> list[tuple[str, list[int]]]:
    """``slots`` by owner, owners and slots in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for slot, owner in zip(slots, owners, strict=True):
        groups.setdefault(owner, []).append(slot)
    return list(groups.items())
