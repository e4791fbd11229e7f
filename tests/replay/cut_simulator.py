"""A small engine with bugs: random but valid traces that read, write, share, copy and corrupt.

Everything is drawn from one ``random.Random``, so that Hypothesis can shrink it. Fingerprints are
kept for every slot, so that a replay without a planted bug finds nothing in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.replay.helpers import header, numbered

if TYPE_CHECKING:
    from random import Random

Event = dict[str, Any]
SLOTS, ROWS, ROW_LEN, SWA_SLOTS, WINDOW = 40, 7, 24, 20, 4
RECORDS = (
    "forward",
    "map",
    "alloc",
    "request",
    "history",
    "prefix",
    "transfer",
    "kv_hash",
    "lut",
    "launch",
    "future",
    "namespace",
)


@dataclass(slots=True)
class _Request:
    name: str
    row: int
    tokens: list[int]
    slots: list[int] = field(default_factory=list)
    shared: int = 0


class Simulator:
    """Draws a trace.

    Args:
        random: Where every choice comes from.
        bugs: Chance of a planted bug at each place where one can be planted.
    """

    def __init__(self, random: Random, bugs: float) -> None:
        self.random, self.bugs = random, bugs
        self.swa, self.draft = random.random() < 0.4, random.random() < 0.4
        self.hashes, self.mid_run = random.random() < 0.7, random.random() < 0.2
        self.free = list(range(1, SLOTS + 1))
        self.running: list[_Request] = []
        self.tree: dict[str, tuple[list[int], list[int]]] = {}
        self.prints: dict[tuple[str, int], int] = {}
        self.lut: dict[int, int] = {}
        self.events: list[Event] = []
        self.host: list[int] = []
        self.step = self.count = 0
        self.names: list[str] = []

    def trace(self, steps: int) -> tuple[Event, list[Event]]:
        for _ in range(steps):
            self._one_step()
        pool = {"slots": SLOTS, "rows": ROWS, "row_len": ROW_LEN}
        if self.swa:
            pool |= {"swa_slots": SWA_SLOTS, "swa_window": WINDOW}
        wanted = [r for r in RECORDS if r != "kv_hash" or self.hashes]
        head = header(pool=pool, records=wanted, starts_mid_run=self.mid_run)
        return head, numbered(self.events, self.random.choice([-40, 0, 1000]))

    # Choices.

    def _often(self, chance: float) -> bool:
        return self.random.random() < chance

    def _bug(self) -> bool:
        return self._often(self.bugs)

    def _say(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def _some(self, values: list[int], most: int) -> list[int]:
        return self.random.sample(values, min(len(values), self.random.randint(0, most)))

    # One step of the engine.

    def _one_step(self) -> None:
        self.step += 1
        fresh = self._admit() if len(self.running) < ROWS - 1 and self._often(0.5) else None
        if self._often(0.3):
            self._move_something()
        if self._often(0.1):
            self._say("adapter", name="lora", version=self.step)
        if self._often(0.1):
            self._say("future_put", ring=self.random.randint(0, 2), req="A", token=self.step)
        if fresh is not None:
            self._forward([fresh], "EXTEND")
        elif self.running:
            rows = [r for r in self.running if len(r.tokens) < ROW_LEN - 4 and self._take(r, 3)]
            if rows:
                self._forward(rows, "TARGET_VERIFY" if self._often(0.25) else "DECODE")
        for request in [r for r in self.running if self._often(0.15)]:
            self._end(request)
        if self.tree and self._often(0.15):
            self._evict()
        if self.hashes and self.tree and self._often(0.2):
            held = sorted({slot for slots, _ in self.tree.values() for slot in slots})
            self._hash("sweep", held, "full")

    def _take(self, request: _Request, most: int) -> bool:
        """Allocate and map slots for what ``request`` writes next, as many as it may need."""
        missing = max(0, len(request.tokens) + most - 1 - len(request.slots))
        if len(self.free) < missing:
            return False
        taken = [self.free.pop(0) for _ in range(missing)]
        if taken and self._bug():
            taken[0] = self.random.randint(1, SLOTS)
        if taken:
            self._say("alloc", owner=request.name, slots=taken)
            self._say("map", row=request.row, start=len(request.slots), slots=taken)
            self._translate(taken)
        request.slots += taken
        return True

    def _translate(self, slots: list[int]) -> None:
        if self.swa:
            swa = [self.random.randint(1, SWA_SLOTS) for _ in slots]
            self.lut.update(zip(slots, swa, strict=True))
            self._say("lut", full=slots, swa=swa)

    def _admit(self) -> _Request | None:
        rows = [row for row in range(1, ROWS) if row not in {r.row for r in self.running}]
        self.count += 1
        request = _Request(f"r{self.count}", self.random.choice(rows), [])
        if self.tree and self._often(0.6):
            slots, tokens = self.tree[self.random.choice(sorted(self.tree))]
            shared = self.random.randint(1, len(slots))
            request.slots, request.tokens = slots[:shared], tokens[:shared]
            request.shared = shared
        new = [self.random.randint(1, 9) for _ in range(self.random.randint(1, 5))]
        request.tokens = [*request.tokens, *new]
        if request.shared:
            self._say("map", row=request.row, start=0, slots=list(request.slots))
        if not self._take(request, 1):
            return None
        if self._often(0.9):
            self._say("history", req=request.name, start=0, ids=list(request.tokens))
        self.running.append(request)
        self.names.append(request.name)
        return request

    def _forward(self, requests: list[_Request], mode: str) -> None:
        rows: list[tuple[_Request, int, int]] = []
        for request in requests:
            prefix = request.shared if mode == "EXTEND" else len(request.tokens) - 1
            extend = len(request.tokens) - prefix if mode == "EXTEND" else 1
            rows.append((request, prefix, 3 if mode == "TARGET_VERIFY" else extend))
        if self._bug() and len(requests[0].slots) > 1:
            self._swap_cells(requests[0])
        event = self._batch(rows, mode)
        if self._often(0.2):
            self._say("launch", step=self.step + self.random.randint(0, 2), req=requests[0].name)
        self._run(event, rows)
        if self.draft and mode != "TARGET_VERIFY":
            batch = self._batch(rows, mode) | {"worker": "draft"}
            if "landed" in batch:
                batch["landed"]["pool"] = "draft"
            self._run(batch, rows)
        for request in requests:
            if mode != "EXTEND" or not self._often(0.2):
                request.tokens.append(self.random.randint(1, 9))
                if self._often(0.9):
                    at = len(request.tokens) - 1
                    self._say("history", req=request.name, start=at, ids=request.tokens[at:])

    def _swap_cells(self, request: _Request) -> None:
        slots = request.slots
        a, b = (self.random.randrange(len(slots)) for _ in range(2))
        slots[a], slots[b] = slots[b], slots[a]
        self._say("map", row=request.row, start=0, slots=list(slots))

    def _batch(self, rows: list[tuple[_Request, int, int]], mode: str) -> Event:
        event: Event = {
            "step": self.step,
            "forward_mode": mode,
            "reqs": [r.name for r, _, _ in rows],
            "req_pool_indices": [r.row for r, _, _ in rows],
            "seq_lens": [p if mode == "TARGET_VERIFY" else p + n for _, p, n in rows],
            "input_ids": [],
            "positions": [],
            "out_cache_loc": [],
        }
        for request, prefix, count in rows:
            ids = [*request.tokens[prefix : prefix + count], 5, 5, 5][:count]
            event["input_ids"] += ids
            event["positions"] += range(prefix, prefix + count)
            event["out_cache_loc"] += request.slots[prefix : prefix + count]
        if mode == "EXTEND":
            event["extend_prefix_lens"] = [p for _, p, _ in rows]
            event["extend_seq_lens"] = [n for _, _, n in rows]
        if mode == "TARGET_VERIFY":
            event["draft_token_num"] = 3
            if self._often(0.6):
                parents = [-1, 0, self.random.choice([-1, 0, 1])]
                event["tree"] = {"parent": parents * len(rows)}
                depth = 2 if parents[2] == 1 else parents[2] + 1
                for at, (_, prefix, _) in enumerate(rows):
                    event["positions"][3 * at + 2] = prefix + depth
        self._damage(event, rows)
        if mode == "DECODE" and self._often(0.3):
            self._pad(event)
        return event

    def _damage(self, event: Event, rows: list[tuple[_Request, int, int]]) -> None:
        tokens = len(event["input_ids"])
        if self._bug():
            event["input_ids"][self.random.randrange(tokens)] += 1
        if self._bug() and event["forward_mode"] != "DECODE":
            event["positions"][self.random.randrange(tokens)] = self.random.randrange(ROW_LEN)
        if self._bug():
            slot = self.random.randint(-1, SLOTS)
            event["out_cache_loc"][self.random.randrange(tokens)] = slot
        if self._bug():
            request, prefix, _ = self.random.choice(rows)
            cells = [self.random.randint(0, SLOTS) for _ in range(prefix)]
            event["row_as_read"] = {str(request.row): cells}
        if self.swa and self._bug():
            slots = [self.random.randint(-1, SWA_SLOTS) for _ in range(tokens)]
            event["landed"] = {"pool": "swa", "slots": slots}

    @staticmethod
    def _pad(event: Event) -> None:
        event["raw_bs"] = len(event["reqs"])
        for name, value in (("reqs", None), ("req_pool_indices", 0), ("seq_lens", 1)):
            event[name].append(value)
        for name in ("input_ids", "positions", "out_cache_loc"):
            event[name].append(0)
        if "landed" in event:
            event["landed"]["slots"].append(-1)

    def _run(self, event: Event, rows: list[tuple[_Request, int, int]]) -> None:
        lane = "draft" if event.get("worker") == "draft" else "full"
        read = [slot for request, prefix, _ in rows for slot in request.slots[:prefix]]
        if self.hashes and self._often(0.8):
            if read and self._bug():
                self.prints[lane, self.random.choice(read)] = self.random.getrandbits(40)
            self._hash("before", read, lane)
        self._say("forward", **event)
        wrote = [slot for slot in event["out_cache_loc"] if slot > 0]
        for slot in wrote:
            self.prints[lane, slot] = self.random.getrandbits(40) + 1
        if self.hashes and self._often(0.8):
            self._hash("after", wrote if self._often(0.8) else wrote[:1], lane)
            if self.swa and lane == "full" and "landed" not in event and self._often(0.7):
                landed = [self.lut.get(slot, 0) for slot in wrote]
                for slot in landed:
                    self.prints["swa", slot] = self.random.getrandbits(40) + 1
                self._hash("after", landed, "swa")

    def _hash(self, phase: str, slots: list[int], pool: str) -> None:
        slots = [slot for slot in dict.fromkeys(slots) if (pool, slot) in self.prints]
        values = [self.prints[pool, slot] for slot in slots]
        named = {} if pool == "full" else {"pool": pool}
        self._say("kv_hash", phase=phase, step=self.step, slots=slots, hash=values, **named)

    # Ends, the tree, other tiers.

    def _end(self, request: _Request) -> None:
        self.running.remove(request)
        written = len(request.tokens) - 1
        self._say(self.random.choice(["finish", "finish", "abort"]), req=request.name)
        owned = list(dict.fromkeys(request.slots[request.shared :]))
        kept = request.slots[:written] if self._often(0.6) else []
        if kept:
            entry = f"e{self.random.randint(0, 4)}"
            moved = [slot for slot in owned if slot in kept]
            owned = [slot for slot in owned if slot not in kept]
            self._say("own", **{"from": request.name}, owner="tree", slots=moved)
            self.tree[entry] = (list(kept), request.tokens[:written])
            named = {"req": request.name} if self._often(0.7) else {}
            self._say("publish", entry=entry, slots=list(kept), namespace="n", **named)
        self._give_back(request.name, owned)
        self._say("row_release", row=request.row, req=request.name)

    def _give_back(self, owner: str, slots: list[int]) -> None:
        if slots:
            self._say("free", owner=owner, slots=slots)
        self.free += [slot for slot in slots if slot not in self.free]
        if self._bug() and self.running:
            # Freed while a running request still reads it.
            victim = self.random.choice(self.running)
            self.free.insert(0, self.random.choice(victim.slots))

    def _evict(self) -> None:
        entry = self.random.choice(sorted(self.tree))
        slots, _ = self.tree[entry]
        others = {s for name, (held, _) in self.tree.items() if name != entry for s in held}
        read = {s for request in self.running for s in request.slots}
        gone = [slot for slot in dict.fromkeys(slots) if slot not in others | read]
        if not self._bug():
            del self.tree[entry]
            if self._often(0.8):
                self._say("unpublish", entry=entry)
        self._give_back("tree", gone)

    def _move_something(self) -> None:
        canary = {} if self._often(0.6) else {"canary": False}
        slots = list(range(1, SLOTS + 1))
        match self.random.randrange(4):
            case 0:
                src, dst = self._some(slots, 3), self._some(self.free, 3)
                n = min(len(src), len(dst))
                self._say("copy", src=src[:n], dst=dst[:n], via="d2d", **canary)
                self._moved("full", src[:n], "full", dst[:n])
            case 1:
                src = self._some(slots, 4)
                dst = [self.random.randint(100, 110) for _ in src]
                dst = list(dict.fromkeys(dst))
                pools = {"dst_pool": "host"}
                if self.draft and self._often(0.3):
                    pools["src_pool"] = "draft"
                self._say("copy", src=src[: len(dst)], dst=dst, via="d2h", **pools, **canary)
                self._moved(pools.get("src_pool", "full"), src, "host", dst)
                self.host += dst
                self._say("transfer_begin", id=self.step, via="d2h", slots=src[: len(dst)])
                if self._often(0.5):
                    self._say("transfer_end", id=self.step)
            case 2:
                dst = self._some(slots, 3)
                src = [self.random.choice([*self.host, 199]) for _ in dst]
                self._say("copy", src=src, dst=dst, via="h2d", src_pool="host", **canary)
                self._moved("host", src, "full", dst)
            case 3 if self.names:
                name = self.random.choice(self.names)
                dst = self._some(slots, 3)
                pos = [self.random.randint(0, 6) for _ in dst]
                self._say("copy", src={"req": name, "pos": pos}, dst=dst, via="rdma", **canary)

    def _moved(self, src_pool: str, src: list[int], dst_pool: str, dst: list[int]) -> None:
        for source, target in zip(src, dst, strict=False):
            value = self.prints.get((src_pool, source))
            if value is not None:
                self.prints[dst_pool, target] = value
