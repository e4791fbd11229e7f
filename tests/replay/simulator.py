"""A tiny serving engine that records what it does as trace events, without any corruption.

Requests share prefixes through an index of whole pages, are prefilled in chunks, decode, verify
drafts (chains or trees), are retracted and finish; slots are evicted, backed up to a host tier and
loaded back. Tests plant faults in the events afterwards.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the engine does.

    Attributes:
        seed: Of every choice.
        page_size: Slots of a page.
        window: Sliding window, 0 = no SWA pool (a SWA pool goes without prefix sharing).
        draft_worker: Run a draft worker behind the target.
        draft_tokens: Tokens of a verification, 0 = plain decoding.
        tree: Verify trees instead of chains.
        padding: ``none``, ``end`` or ``middle`` of decode and verify batches.
        host_tier: Back evicted pages up and load them again.
        kv_hash_every: Record fingerprints in every N-th step; 0 = never.
        salted: Tokens are 63-bit numbers.
        share: Whether prompts share prefixes.
        steps: Forwards of the target.
    """

    seed: int
    page_size: int = 1
    window: int = 0
    draft_worker: bool = False
    draft_tokens: int = 0
    tree: bool = False
    padding: str = "none"
    host_tier: bool = False
    kv_hash_every: int = 0
    salted: bool = False
    share: bool = True
    steps: int = 24
    slots: int = 48
    rows: int = 5
    row_len: int = 40
    chunk: int = 7


@dataclass
class Request:
    """One request; ``slots[p]`` holds position p, ``done`` positions are in the cache."""

    name: str
    tokens: list[int]
    prompt_len: int
    goal: int
    row: int = 0
    done: int = 0
    slots: list[int] = field(default_factory=list)
    shared: int = 0


class Engine:
    """Runs and records; ``events`` have no ``i`` yet."""

    def __init__(self, settings: Settings) -> None:
        self.s = settings
        self.random = random.Random(settings.seed)
        page = settings.page_size
        self.free_pages = [list(range(p, p + page)) for p in self._page_starts()]
        self.random.shuffle(self.free_pages)
        self.free_rows = list(range(1, settings.rows))
        self.free_swa = list(range(1, settings.slots + 1))
        self.lut: dict[int, int] = {}
        self.index: dict[tuple[int, ...], list[int]] = {}
        self.host: dict[tuple[int, ...], list[int]] = {}
        self.locks: dict[tuple[int, ...], int] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.events: list[Event] = []
        self.kv: dict[int, int] = {}
        self.step = self.made = self.entries = self.host_slots = 0
        vocabulary = 12
        self.vocabulary = [
            self.random.getrandbits(63) if settings.salted else 100 + t for t in range(vocabulary)
        ]
        self.stems = [self._words(self.random.randint(4, 12)) for _ in range(2)]

    def _page_starts(self) -> range:
        page = self.s.page_size
        first = 1 if page == 1 else page
        return range(first, first + self.s.slots // page * page, page)

    def header(self) -> Event:
        s = self.s
        records = ["forward", "map", "alloc", "request", "history", "prefix", "transfer", "graph"]
        records += ["lut"] if s.window else []
        records += ["spec"] if s.draft_tokens else []
        records += ["kv_hash"] if s.kv_hash_every else []
        starts = self._page_starts()
        pool = {
            "slots": s.slots,
            "page_size": s.page_size,
            "rows": s.rows,
            "row_len": s.row_len,
            "max_slot": starts[-1] + s.page_size - 1,
            "reserved": list(range(starts[0])),
            "swa_slots": s.slots if s.window else 0,
            "swa_window": s.window,
        }
        return {
            "kind": "header",
            "format": "kvcanary-trace",
            "version": 1,
            "engine": {"name": "synthetic"},
            "pool": pool | {"max_slot": max(pool["max_slot"], s.slots)},
            "tokens": "salted" if s.salted else "raw",
            "records": records,
        }

    def run(self) -> list[Event]:
        while self.step < self.s.steps:
            if len(self.waiting) + len(self.running) < 5:
                self._arrive()
            self._admit()
            if self.running and self.random.random() < 0.06:
                self._retract(self.random.choice(self.running))
            self._one_step()
        return [
            {"kind": event["kind"], "i": i} | {k: v for k, v in event.items() if k != "kind"}
            for i, event in enumerate(self.events)
        ]

    # Requests.

    def _words(self, count: int) -> list[int]:
        return [self.random.choice(self.vocabulary) for _ in range(count)]

    def _arrive(self) -> None:
        self.made += 1
        stem = self.random.choice(self.stems) if self.s.share else []
        prompt = stem[: self.random.randint(0, len(stem))] + self._words(self.random.randint(1, 6))
        goal = len(prompt) + self.random.randint(1, 9)
        self.waiting.append(Request(f"r{self.made}", prompt, len(prompt), goal))
        self._history(self.waiting[-1], 0)

    def _history(self, req: Request, start: int) -> None:
        if start < len(req.tokens):
            ids = req.tokens[start:]
            self.emit("history", req=req.name, start=start, ids=ids)

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def _admit(self) -> None:
        while self.waiting and self.free_rows:
            req = self.waiting.pop(0)
            req.row, req.done, req.slots, req.shared = self.free_rows.pop(), 0, [], 0
            self._match(req)
            if req.slots:
                self.emit("map", row=req.row, start=0, slots=list(req.slots))
            self.running.append(req)

    def _key(self, req: Request, end: int) -> tuple[int, ...]:
        """What a page that ends at ``end`` is found by.

        A draft worker keeps token p + 1 at position p, so the token behind the page belongs to it.
        """
        return tuple(req.tokens[: end + self.s.draft_worker])

    def _match(self, req: Request) -> None:
        page = self.s.page_size
        for end in range(page, len(req.tokens), page):
            key = self._key(req, end)
            if key not in self.index and (key not in self.host or not self._load(key)):
                break
            req.slots += self.index[key]
            self.locks[key] = self.locks.get(key, 0) + 1
            req.shared = req.done = end
        if req.shared:
            self.emit("match", req=req.name, entry="any", slots=list(req.slots))

    def _copied_pools(self) -> list[tuple[str, str]]:
        pools = [("full", "host")]
        return [*pools, ("draft", "host_draft")] if self.s.draft_worker else pools

    def _load(self, key: tuple[int, ...]) -> bool:
        page = self._take_page(TREE)
        if page is None:
            return False
        for pool, tier in self._copied_pools():
            fields = {"src_pool": tier, "dst_pool": pool, "via": "h2d"}
            self.emit("copy", src=self.host[key], dst=page, **fields)
        for slot, source in zip(page, self.host[key], strict=True):
            self.kv[slot] = self.kv[-source]
        self.index[key] = page
        return True

    def _take_page(self, owner: str) -> list[int] | None:
        while not self.free_pages:
            if not self._evict():
                return None
        page = self.free_pages.pop()
        self.emit("alloc", owner=owner, slots=list(page))
        if self.s.window:
            swa = [self.free_swa.pop() for _ in page]
            self.lut.update(zip(page, swa, strict=True))
            self.emit("lut", full=list(page), swa=swa)
        return page

    def _evict(self) -> bool:
        page = self.s.page_size
        inner = {key[:-page] for key in self.index}
        leaves = [k for k in self.index if k not in inner and not self.locks.get(k)]
        if not leaves:
            return False
        key = self.random.choice(leaves)
        slots = self.index.pop(key)
        if self.s.host_tier and key not in self.host and self.random.random() < 0.7:
            places = list(range(10_000 + self.host_slots, 10_000 + self.host_slots + page))
            self.host_slots += page
            for pool, tier in self._copied_pools():
                fields = {"src_pool": pool, "dst_pool": tier, "via": "d2h"}
                self.emit("copy", src=slots, dst=places, **fields)
            self.host[key] = places
            for slot, place in zip(slots, places, strict=True):
                self.kv[-place] = self.kv.get(slot, 0)
        self._give_back(TREE, slots)
        return True

    def _give_back(self, owner: str, slots: list[int]) -> None:
        if not slots:
            return
        self.emit("free", owner=owner, slots=list(slots))
        page = self.s.page_size
        self.free_pages += [slots[k : k + page] for k in range(0, len(slots), page)]
        if self.s.window:
            self._drop_swa([slot for slot in slots if self.lut.get(slot)])
        self.random.shuffle(self.free_pages)

    def _drop_swa(self, slots: list[int]) -> None:
        if slots:
            self.free_swa += [self.lut.pop(slot) for slot in slots]
            self.emit("lut", full=slots, swa=[0] * len(slots))

    def _grow(self, req: Request, length: int) -> bool:
        """Give ``req`` slots for ``length`` positions."""
        while len(req.slots) < length:
            page = self._take_page(req.name)
            if page is None:
                return False
            start = len(req.slots)
            req.slots += page
            fits = page[: max(0, self.s.row_len - start)]
            self.emit("map", row=req.row, start=start, slots=fits)
        return True

    def _insert(self, req: Request, *, keep: bool) -> None:
        """Put the whole pages of ``req`` into the index; duplicates give way to its slots."""
        page = self.s.page_size
        if self.s.window:
            return
        new: list[int] = []
        for end in range(page, req.done + 1, page):
            key, place = self._key(req, end), slice(end - page, end)
            if end <= req.shared:
                continue
            if key in self.index:
                duplicates = req.slots[place]
                req.slots[place] = self.index[key]
                self.emit("map", row=req.row, start=end - page, slots=list(self.index[key]))
                self._give_back(req.name, duplicates)
            else:
                self.index[key] = req.slots[place]
                new += req.slots[place]
            if keep:
                self.locks[key] = self.locks.get(key, 0) + 1
                req.shared = end
            else:
                req.shared = end
                self.locks[key] = self.locks.get(key, 0) + 1
        if new:
            self.entries += 1
            entry = {"entry": f"e{self.entries}"}
            self.emit("own", **{"from": req.name}, owner=TREE, slots=new)
            path = req.slots[: req.shared]
            self.emit("publish", **entry, req=req.name, slots=path)

    def _leave(self, req: Request) -> None:
        """Give back what is not the index's, and the row."""
        for end in range(self.s.page_size, req.shared + 1, self.s.page_size):
            self.locks[self._key(req, end)] -= 1
        self._give_back(req.name, req.slots[req.shared :])
        self.emit("row_release", row=req.row, req=req.name)
        self.free_rows.insert(0, req.row)
        self.running.remove(req)

    def _retract(self, req: Request) -> None:
        self.emit("retract", req=req.name)
        self._leave(req)
        req.prompt_len = len(req.tokens)
        self.waiting.append(req)

    def _finish(self, req: Request) -> None:
        self._insert(req, keep=False)
        self.emit("finish", req=req.name)
        self._leave(req)

    # Forwards.

    def _one_step(self) -> None:
        prefill = [r for r in self.running if r.done < r.prompt_len]
        decode = [r for r in self.running if r.done >= r.prompt_len]
        if prefill and (not decode or self.random.random() < 0.6):
            mixed = bool(decode) and not self.s.draft_tokens and self.random.random() < 0.4
            self._prefill(prefill, decode if mixed else [])
        elif decode and self.s.draft_tokens:
            self._verify(decode)
        elif decode:
            self._decode(decode)
        else:
            self.step += 1

    def _prefill(self, prefill: list[Request], decode: list[Request]) -> None:
        budget = self.s.chunk
        rows = []
        for req in prefill:
            count = min(budget, req.prompt_len - req.done)
            if count and self._grow(req, req.done + count):
                rows.append((req, req.done, count))
                budget -= count
        for req in decode:
            if self._grow(req, req.done + 1):
                rows.append((req, req.done, 1))
        if not rows:
            self._retract(prefill[-1])
            return
        mode = "MIXED" if decode else "EXTEND"
        self._forward(mode, rows, self._tokens(rows))
        for req, prefix, count in rows:
            req.done = prefix + count
            self._sample(req)
        if self.s.draft_worker:
            self._draft_extend(rows)
        for req, _, _ in rows:
            if req.done < req.goal:
                self._insert(req, keep=True)
        self._finish_done()

    def _sample(self, req: Request) -> None:
        """The next token, once everything known is in the cache."""
        if req.done == len(req.tokens):
            req.tokens += self._words(1)
            self._history(req, req.done)

    def _finish_done(self) -> None:
        for req in list(self.running):
            if req.done >= req.goal:
                self._finish(req)

    def _decode(self, decode: list[Request]) -> None:
        rows = [(r, r.done, 1) for r in decode if self._grow(r, r.done + 1)]
        if not rows:
            self._retract(decode[-1])
            return
        self._forward("DECODE", rows, self._tokens(rows), padding=True)
        for req, _, _ in rows:
            req.done += 1
            self._sample(req)
        if self.s.draft_worker:
            self._draft_extend(rows)
        if self.s.window:
            for req, _, _ in rows:
                self._slide(req)
        self._finish_done()

    def _slide(self, req: Request) -> None:
        out = req.slots[: max(0, req.done - self.s.window)]
        self._drop_swa([slot for slot in out if self.lut.get(slot)])

    def _verify(self, decode: list[Request]) -> None:
        count = self.s.draft_tokens
        rows = [
            (r, r.done, count)
            for r in decode
            if r.done + count <= self.s.row_len and self._grow(r, r.done + count)
        ]
        if not rows:
            self._retract(decode[-1])
            return
        if self.s.draft_worker:
            self._draft_decode(rows)
        plans = [self._proposal(req) for req, _, _ in rows]
        tokens = [plan[0] for plan in plans]
        depths = [plan[1] for plan in plans]
        extra: Event = {"draft_token_num": count}
        if self.s.tree:
            extra["parents"] = [plan[2] for plan in plans]
        self._forward("TARGET_VERIFY", rows, tokens, padding=True, depths=depths, **extra)
        accepted = []
        for (req, prefix, _), (proposed, _, _, path) in zip(rows, plans, strict=True):
            known = len(req.tokens)
            req.tokens += [proposed[node] for node in path][known - prefix :]
            req.done = prefix + len(path)
            self._history(req, known)
            fields = {"req": req.name, "nodes": path, "tokens": [proposed[n] for n in path]}
            self.emit("accept", **fields, committed_len=req.done)
            moves = [(req.slots[prefix + n], req.slots[prefix + k]) for k, n in enumerate(path)]
            moves = [(src, dst) for src, dst in moves if src != dst]
            if moves:
                src, dst = [m[0] for m in moves], [m[1] for m in moves]
                self.emit("copy", src=src, dst=dst, via="d2d")
                if self.s.window:
                    pools = {"src_pool": "swa", "dst_pool": "swa", "via": "d2d"}
                    swa = {k: [self.lut[s] for s in v] for k, v in (("src", src), ("dst", dst))}
                    self.emit("copy", **swa, **pools)
                bytes_moved = [self.kv[slot] for slot in src]
                self.kv.update(zip(dst, bytes_moved, strict=True))
            self._sample(req)
            accepted.append((req, prefix, len(path)))
        if self.s.draft_worker:
            self._draft_extend(accepted)
        self._finish_done()

    def _proposal(self, req: Request) -> tuple[list[int], list[int], list[int], list[int]]:
        """Node tokens, depths, parents, and the accepted path (root first)."""
        count = self.s.draft_tokens
        parents = [-1] + [
            self.random.randint(0, k - 1) if self.s.tree else k - 1 for k in range(1, count)
        ]
        depths = [0] * count
        for node in range(1, count):
            depths[node] = depths[parents[node]] + 1
        tokens = [req.tokens[req.done], *self._words(count - 1)]
        path = [0]
        while self.random.random() < 0.7:
            children = [n for n in range(count) if parents[n] == path[-1]]
            if not children:
                break
            path.append(self.random.choice(children))
        known = req.tokens[req.done :]
        for depth, node in enumerate(path):
            if depth < len(known):
                tokens[node] = known[depth]
        return tokens, depths, parents, path

    def _draft_extend(self, rows: list[tuple[Request, int, int]]) -> None:
        """The draft worker writes what the target wrote; position p holds token p + 1."""
        tokens = [req.tokens[prefix + 1 : prefix + count + 1] for req, prefix, count in rows]
        self._forward("DRAFT_EXTEND_V2", rows, tokens, worker="draft")

    def _draft_decode(self, rows: list[tuple[Request, int, int]]) -> None:
        for inner in range(self.s.draft_tokens - 1):
            moved = [(req, prefix + inner, 1) for req, prefix, _ in rows]
            tokens = [self._words(1) for _ in rows]
            self._forward("DECODE", moved, tokens, worker="draft", draft_step=inner)

    @staticmethod
    def _tokens(rows: list[tuple[Request, int, int]]) -> list[list[int]]:
        return [req.tokens[prefix : prefix + count] for req, prefix, count in rows]

    def _forward(
        self,
        mode: str,
        rows: list[tuple[Request, int, int]],
        tokens: list[list[int]],
        *,
        padding: bool = False,
        depths: list[list[int]] | None = None,
        parents: list[list[int]] | None = None,
        worker: str = "target",
        draft_step: int | None = None,
        **extra: Any,
    ) -> None:
        if worker == "target":
            self.step += 1
        batch: list[Event] = []
        for k, (req, prefix, count) in enumerate(rows):
            within = list(range(count)) if depths is None else depths[k]
            bumped = mode == "TARGET_VERIFY" or (worker == "draft" and mode == "DECODE")
            unbumped = prefix - (draft_step or 0)
            batch.append(
                {
                    "req": req.name,
                    "row": req.row,
                    "seq_len": unbumped if bumped else prefix + count,
                    "prefix": prefix,
                    "tokens": tokens[k],
                    "positions": [prefix + d for d in within],
                    "slots": req.slots[prefix : prefix + count],
                    "parents": None if parents is None else parents[k],
                }
            )
        raw = len(batch)
        if padding and self.s.padding != "none":
            count = rows[0][2]
            empty = {"req": None, "row": 0, "seq_len": 1, "prefix": 0, "tokens": [0] * count}
            empty |= {"positions": [0] * count, "slots": [0] * count, "parents": [-1] * count}
            for _ in range(self.random.randint(1, 2)):
                at = len(batch)
                if self.s.padding == "middle":
                    at = self.random.randint(0, len(batch))
                batch.insert(at, empty)
        event: Event = {
            "step": self.step,
            "forward_mode": mode,
            "reqs": [b["req"] for b in batch],
            "req_pool_indices": [b["row"] for b in batch],
            "seq_lens": [b["seq_len"] for b in batch],
            "input_ids": [t for b in batch for t in b["tokens"]],
            "positions": [p for b in batch for p in b["positions"]],
            "out_cache_loc": [s for b in batch for s in b["slots"]],
        }
        if mode in ("EXTEND", "MIXED"):
            event["extend_prefix_lens"] = [b["prefix"] for b in batch]
        if mode in ("EXTEND", "MIXED", "DRAFT_EXTEND_V2"):
            event["extend_seq_lens"] = [len(b["tokens"]) for b in batch]
        if worker != "target":
            event["worker"] = worker
        if draft_step is not None:
            event["draft_step"] = draft_step
        if raw != len(batch):
            event["raw_bs"] = raw
        if parents is not None:
            event["tree"] = {"parent": [p for b in batch for p in b["parents"]]}
        self._record(event | extra, rows, worker)

    def _record(self, event: Event, rows: list[tuple[Request, int, int]], worker: str) -> None:
        every = self.s.kv_hash_every
        hashed = worker == "target" and every and self.step % every == 0
        read = sorted({slot for req, prefix, _ in rows for slot in req.slots[:prefix]})
        if hashed and read:
            self._kv_hash("before", read)
        self.emit("forward", **event)
        if worker == "target":
            written = list(dict.fromkeys(event["out_cache_loc"]))
            self.kv.update((slot, self.random.getrandbits(63)) for slot in written)
            if hashed:
                self._kv_hash("after", written)

    def _kv_hash(self, phase: str, slots: list[int]) -> None:
        hashes = [self.kv[slot] for slot in slots]
        self.emit("kv_hash", phase=phase, step=self.step, slots=slots, hash=hashes)


def simulate(settings: Settings) -> tuple[Event, list[Event]]:
    """Header and events of a clean run."""
    engine = Engine(settings)
    events = engine.run()
    return engine.header(), events
