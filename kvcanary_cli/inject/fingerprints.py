"""KV fingerprints of a run with a fault: what differs from the clean run is carried on.

A token's bytes are what the clean run wrote for it, wherever the fault makes it land. Slots whose
bytes differ from the clean run's are tracked; every later fingerprint of them is rewritten.
"""

from __future__ import annotations

from typing import Any

from kvcanary_cli.inject.clean_run import CleanRun, is_target_forward

Event = dict[str, Any]


class Bytes:
    """Bytes of slots, per pool and half, where they differ from the clean run.

    Args:
        run: The clean run.
        start: Clean place of the first edited event.
    """

    def __init__(self, run: CleanRun, start: int) -> None:
        self._run = run
        self._start = start
        # (pool, half) -> slot -> fingerprint.
        self._dirty: dict[tuple[str, str], dict[int, int]] = {}
        self._lut: dict[int, int] = {}

    def set(self, pool: str, half: str, slot: int, value: int) -> None:
        """``slot`` holds other bytes from here on."""
        self._dirty.setdefault((pool, half), {})[slot] = value

    def rewrite(
        self, tail: list[Event], places: list[int | None], changes: dict[int, list[Any]]
    ) -> list[Event]:
        """The tail with consistent fingerprints.

        Args:
            tail: Edited events.
            places: Clean place of each, None = inserted.
            changes: Place in ``tail`` to (pool, half, slot, bytes) that change in front of it.
        """
        out: list[Event] = []
        for k, (event, place) in enumerate(zip(tail, places, strict=True)):
            for change in changes.get(k, ()):
                self.set(*change)
            kind = event["kind"]
            if kind == "lut":
                self._lut.update(zip(event["full"], event["swa"], strict=True))
            elif kind == "copy":
                self._copy(event)
            elif kind == "kv_hash":
                event = self._patched(event)
            elif is_target_forward(event):
                self._written(event, place)
            out.append(event)
        return out

    def _patched(self, event: Event) -> Event:
        dirty = self._dirty.get((event.get("pool", "full"), event.get("half", "k")))
        if not dirty or not dirty.keys() & set(event["slots"]):
            return event
        hashes = [dirty.get(s, h) for s, h in zip(event["slots"], event["hash"], strict=True)]
        return event | {"hash": hashes}

    def _copy(self, event: Event) -> None:
        if isinstance(event["src"], dict) or event.get("src_pool") or event.get("dst_pool"):
            return
        for (pool, _half), dirty in self._dirty.items():
            if pool != "full":
                continue
            held = [dirty.get(slot) for slot in event["src"]]
            for slot, value in zip(event["dst"], held, strict=True):
                if value is not None:
                    dirty[slot] = value
                else:
                    # What the clean run printed there since is what the copy brought.
                    dirty.pop(slot, None)

    def _written(self, event: Event, place: int | None) -> None:
        """A forward wrote: its slots hold what the clean run wrote for these tokens."""
        if "kv_hash" not in self._run.records:
            return
        slots = event["out_cache_loc"]
        clean = slots if place is None else self._run.events[place]["out_cache_loc"]
        if len(slots) != len(clean):
            # A row more at the end, or tokens more in a rank that prints nothing new.
            clean = [*clean, *slots[len(clean) :]] if slots[: len(clean)] == clean else slots
        for (pool, half), prints in self._after(place).items():
            dirty = self._dirty.setdefault((pool, half), {})
            moved = []
            for slot, old in zip(slots, clean, strict=True):
                if pool == "swa":
                    old, slot = self._run.swa_slot(old, place or 0), self._swa(slot)
                if slot <= 0:
                    continue
                if slot == old:
                    dirty.pop(slot, None)
                elif old in prints:
                    moved.append((slot, prints[old]))
            dirty.update(moved)

    def _swa(self, full: int) -> int:
        return self._lut.get(full, self._run.swa_slot(full, self._start))

    def _after(self, place: int | None) -> dict[tuple[str, str], dict[int, int]]:
        """Pool and half to the fingerprints that the clean run took after a forward."""
        out: dict[tuple[str, str], dict[int, int]] = {}
        if place is None:
            return out
        events = self._run.events
        for at in range(place + 1, self._run.behind_forward(place)):
            event = events[at]
            if event["kind"] == "kv_hash":
                key = (event.get("pool", "full"), event.get("half", "k"))
                out.setdefault(key, {}).update(zip(event["slots"], event["hash"], strict=True))
        return out
