"""A small engine that serves requests over one prefix cache; what it does follows from a seed."""

from __future__ import annotations

import random
from typing import Any

from tests.attribution.events import decode, extend

Event = dict[str, Any]

SLOTS = 30


class SmallEngine:
    """Runs requests ``r0`` to ``r7``, of which at most three run at a time, in a row each.

    Args:
        seed: Of what the requests do.
        numbers: Seed of the order in which slots are handed out, None = ascending.
        shorter: Which of the hits is a position shorter, None = none.

    Attributes:
        events: What a recorder would tell, without ``i``.
        hits: Which of them are matches.
    """

    def __init__(self, seed: int, numbers: int | None = None, shorter: int | None = None) -> None:
        self._do = random.Random(seed)
        self._allocator = None if numbers is None else random.Random(numbers)
        self._shorter = shorter
        self._free = list(range(1, SLOTS))
        self._cached: dict[str, tuple[list[int], list[int]]] = {}
        self._live: dict[str, tuple[int, list[int], list[int]]] = {}
        self._mine: dict[str, list[int]] = {}
        self.hits: list[int] = []
        self.events: list[Event] = []
        self._step = 0
        for number in range(8):
            self._begin(f"r{number}", 1 + number)
            for _ in range(self._do.randrange(3)):
                self._decode(self._do.choice(list(self._live)))
            if len(self._live) > 2:
                self._end(next(iter(self._live)))
            if len(self._cached) > 2:
                self._evict()

    def _alloc(self, owner: str, count: int) -> list[int]:
        if self._allocator is not None:
            self._allocator.shuffle(self._free)
        slots, self._free = self._free[:count], self._free[count:]
        self.events.append({"kind": "alloc", "owner": owner, "slots": slots})
        return slots

    def _begin(self, req: str, row: int) -> None:
        cached = self._do.choice([None, *self._cached])
        known, hit = self._cached[cached] if cached else ([], [])
        tokens = [*known, *(100 + self._do.randrange(900) for _ in range(2))]
        self.events.append({"kind": "history", "req": req, "start": 0, "ids": tokens})
        if hit:
            self.hits.append(len(self.events))
            hit = hit[:-1] if len(self.hits) - 1 == self._shorter else hit
            self.events.append({"kind": "match", "req": req, "entry": cached, "slots": hit})
        new = self._alloc(req, len(tokens) - len(hit))
        self.events.append({"kind": "map", "row": row, "start": 0, "slots": [*hit, *new]})
        self._step += 1
        self.events.append(extend(self._step, req, row, len(hit), tokens[len(hit) :], new))
        self._live[req] = row, list(tokens), [*hit, *new]
        self._mine[req] = list(new)

    def _decode(self, req: str) -> None:
        row, tokens, slots = self._live[req]
        self._step += 1
        token = 1000 + self._step
        (slot,) = self._alloc(req, 1)
        self.events.pop()
        self.events += decode(req, token, slot, row, len(tokens), self._step)
        tokens.append(token)
        slots.append(slot)
        self._mine[req].append(slot)

    def _end(self, req: str) -> None:
        row, tokens, slots = self._live.pop(req)
        mine = self._mine.pop(req)
        if slots == mine:
            entry = f"P-{req}"
            self.events.append(
                {"kind": "own", "from": req, "owner": "tree", "slots": slots[:3], "entry": entry}
            )
            self._cached[entry] = tokens[:3], slots[:3]
            mine = mine[3:]
        if mine:
            self.events.append({"kind": "free", "owner": req, "slots": sorted(mine)})
            self._free += mine
        self.events.append({"kind": "finish", "req": req})
        self.events.append({"kind": "row_release", "row": row, "req": req})

    def _evict(self) -> None:
        used = {slot for _row, _tokens, slots in self._live.values() for slot in slots}
        for entry, (_tokens, slots) in list(self._cached.items()):
            if not used & set(slots):
                del self._cached[entry]
                self.events.append({"kind": "free", "owner": "tree", "slots": sorted(slots)})
                self._free += slots
                return
