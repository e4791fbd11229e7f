"""An independent look at a converted trace: plain bookkeeping over its events.

It shares no code with the converter and knows only what the trace format says.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Event = dict[str, Any]

EXTEND_MODES = ("EXTEND", "MIXED")


class Finding(NamedTuple):
    """Something that a healthy run does not do; ``step`` is that of the next or same forward."""

    what: str
    step: int
    slot: int
    by: str


class BatchRow(NamedTuple):
    """One row of a forward: what it reads and what it writes."""

    req: str
    row: int
    prefix: int
    tokens: list[int]
    positions: list[int]
    slots: list[int]


def batch_rows(forward: Event) -> Iterator[BatchRow]:
    mode, start = forward["forward_mode"], 0
    for k, req in enumerate(forward["reqs"]):
        length = forward["seq_lens"][k]
        if mode in EXTEND_MODES:
            prefix, count = forward["extend_prefix_lens"][k], forward["extend_seq_lens"][k]
        elif mode == "TARGET_VERIFY":
            prefix, count = length, forward["draft_token_num"]
        else:
            prefix, count = length - 1, 1
        part = slice(start, start + count)
        yield BatchRow(
            req,
            forward["req_pool_indices"][k],
            prefix,
            forward["input_ids"][part],
            forward["positions"][part],
            forward["out_cache_loc"][part],
        )
        start += count


class Audit:
    """Runs over a trace and keeps what is odd.

    Attributes:
        findings: Breaches of ownership.
        wrong_tokens: (step, request, position) where a forward fed another token than the
            history has there. Proposals of a draft tree are left out.
        changed_hashes: (step, slot) where the fingerprint in front of a forward is not the last
            one that was taken of the slot.
        sweep_differences: (step, slots) where the published slots are not those swept.
        tree_differences: (step, slots) where the tree's slots are not those published at a sweep.
        matched_tokens: How many tokens were held against the history.
        table: Cells by row, as at the end.
        lut: Full-to-SWA entries that are not 0, as at the end.
    """

    def __init__(self, events: Iterable[Event], *, owners: bool) -> None:
        self.findings: list[Finding] = []
        self.wrong_tokens: list[tuple[int, str, int]] = []
        self.changed_hashes: list[tuple[int, int]] = []
        self.sweep_differences: list[tuple[int, set[int]]] = []
        self.tree_differences: list[tuple[int, set[int]]] = []
        self.matched_tokens = 0
        self.table: dict[int, dict[int, int]] = defaultdict(dict)
        self.lut: dict[int, int] = {}
        self._owners = owners
        self._owner: dict[int, str | None] = {}
        self._written: set[int] = set()
        self._history: dict[str, list[int]] = defaultdict(list)
        self._published: dict[str, list[int]] = {}
        self._hashes: dict[tuple[str, int], int] = {}
        self._step = 0
        for event in events:
            handler = getattr(self, f"_on_{event['kind']}", None)
            if handler is not None:
                handler(event)

    def _find(self, what: str, slot: int, by: str) -> None:
        self.findings.append(Finding(what, self._step, slot, by))

    def _on_alloc(self, event: Event) -> None:
        for slot in event["slots"]:
            if self._owner.get(slot) is not None:
                self._find("handed out while owned", slot, event["owner"])
            self._owner[slot] = event["owner"]
            self._written.discard(slot)

    def _on_free(self, event: Event) -> None:
        for slot in event["slots"]:
            if self._owner.get(slot) != event["owner"]:
                self._find("freed by another", slot, event["owner"])
            self._owner[slot] = None

    def _on_own(self, event: Event) -> None:
        for slot in event["slots"]:
            if self._owner.get(slot) != event["from"]:
                self._find("passed on by another", slot, event["from"])
            self._owner[slot] = event["owner"]

    def _on_map(self, event: Event) -> None:
        for k, slot in enumerate(event["slots"]):
            self.table[event["row"]][event["start"] + k] = slot

    def _on_lut(self, event: Event) -> None:
        self.lut.update(zip(event["full"], event["swa"], strict=True))
        self.lut = {full: swa for full, swa in self.lut.items() if swa}

    def _on_history(self, event: Event) -> None:
        known = self._history[event["req"]]
        assert event["start"] == len(known)
        known += event["ids"]

    def _on_publish(self, event: Event) -> None:
        self._published[event["entry"]] = event["slots"]

    def _on_unpublish(self, event: Event) -> None:
        del self._published[event["entry"]]

    def _on_copy(self, event: Event) -> None:
        self._written.update(event["dst"])

    def _on_forward(self, event: Event) -> None:
        self._step = event["step"]
        rows = list(batch_rows(event))
        for row in rows:
            self._read(row)
        for row in rows:
            self._write(row, event["forward_mode"])
        self._step += 1

    def _read(self, row: BatchRow) -> None:
        for position in range(row.prefix):
            slot = self.table[row.row][position]
            if not self._owners:
                continue
            if self._owner.get(slot) not in (row.req, "tree"):
                self._find("read without owning", slot, row.req)
            if slot not in self._written:
                self._find("read before written", slot, row.req)

    def _write(self, row: BatchRow, mode: str) -> None:
        for k, slot in enumerate(row.slots):
            if self._owners and self._owner.get(slot) != row.req:
                self._find("written without owning", slot, row.req)
            if self.table[row.row][row.prefix + k] != slot:
                self._find("written elsewhere than the row says", slot, row.req)
            self._written.add(slot)
            # Of a draft tree, only the root is no proposal.
            if mode == "TARGET_VERIFY" and k > 0:
                continue
            self.matched_tokens += 1
            position = row.positions[k]
            if self._history[row.req][position : position + 1] != [row.tokens[k]]:
                self.wrong_tokens.append((self._step, row.req, position))

    def _on_kv_hash(self, event: Event) -> None:
        pool = event.get("pool", "full")
        for slot, value in zip(event["slots"], event["hash"], strict=True):
            last = self._hashes.get((pool, slot))
            if event["phase"] != "after" and last is not None and last != value:
                self.changed_hashes.append((event["step"], slot))
            self._hashes[pool, slot] = value
        if event["phase"] == "sweep":
            published = {slot for path in self._published.values() for slot in path}
            if published != set(event["slots"]):
                self.sweep_differences.append((event["step"], published ^ set(event["slots"])))
            tree = {slot for slot, owner in self._owner.items() if owner == "tree"}
            if tree != published:
                self.tree_differences.append((event["step"], tree ^ published))
