"""What a replay must report, worked out from the event dictionaries in plain Python.

Chain values are not hashed here: equal histories share a number, so this model cannot share a
mistake in the arithmetic with the code under test. The recording is taken as complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Event = dict[str, Any]
_PLAIN_EXTEND = ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND")


class Found(NamedTuple):
    """The part of a violation that the model predicts."""

    step: int
    worker: str
    pool_kind: str
    check: str
    req: str | None
    slot: int
    position: int
    expected_position: int
    fail_reasons: tuple[str, ...]


class Cell(NamedTuple):
    """A canary row; ``chain`` is the number of the chain before the token.

    ``kv`` None: written without a recorded fingerprint, the first one seen is the right one.
    """

    token: int = 0
    position: int = 0
    chain: int = 0
    kv: int | None = 0


@dataclass
class LaneModel:
    cells: dict[int, Cell] = field(default_factory=dict)
    loose: set[int] = field(default_factory=set)
    proposed: set[int] = field(default_factory=set)
    bytes: dict[int, int] = field(default_factory=dict)


class Oracle:
    """Feed it a whole trace with ``run``."""

    def __init__(self, head: Event, *, check_kv: bool) -> None:
        self.pool = head["pool"]
        self.check_kv = check_kv and "kv_hash" in head["records"]
        self.lanes = {("target", "FULL"): LaneModel(), ("draft", "FULL"): LaneModel()}
        if self.pool.get("swa_slots"):
            self.lanes["target", "SWA"] = LaneModel()
        self.tiers: dict[tuple[str, int], tuple[Cell, bool, int | None]] = {}
        self.table: dict[int, dict[int, int]] = {}
        self.history: dict[str, dict[int, int]] = {}
        self.lut: dict[int, int] = {}
        self.chains: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self.found: list[Found] = []

    HEAD = -1

    def chain(self, cell: Cell) -> int:
        key = (cell.chain, cell.token, cell.position)
        return self.chains.setdefault(key, len(self.chains))

    def run(self, events: list[Event]) -> list[Found]:
        for at, event in enumerate(events):
            handler = getattr(self, f"on_{event['kind']}", None)
            if event["kind"] == "forward":
                self.on_forward(event, self._after(events, at))
            elif handler is not None:
                handler(event)
        return self.found

    @staticmethod
    def _after(events: list[Event], at: int) -> dict[int, int]:
        """Fingerprints recorded after the forward at ``at``, by slot."""
        out: dict[int, int] = {}
        for event in events[at + 1 :]:
            if event["kind"] == "forward":
                break
            if event["kind"] == "kv_hash" and event["phase"] == "after":
                out.update(zip(event["slots"], event["hash"], strict=True))
        return out

    def on_map(self, event: Event) -> None:
        row = self.table.setdefault(event["row"], {})
        row.update(enumerate(event["slots"], start=event["start"]))

    def on_lut(self, event: Event) -> None:
        self.lut.update(zip(event["full"], event["swa"], strict=True))

    def on_history(self, event: Event) -> None:
        known = self.history.setdefault(event["req"], {})
        known.update(enumerate(event["ids"], start=event["start"]))

    def on_kv_hash(self, event: Event) -> None:
        if event["phase"] != "after":
            lane = self.lanes["target", "FULL"]
            self._adopt(lane, dict(zip(event["slots"], event["hash"], strict=True)))

    @staticmethod
    def _adopt(lane: LaneModel, hashes: dict[int, int]) -> None:
        for slot, value in hashes.items():
            lane.bytes[slot] = value
            cell = lane.cells.get(slot, Cell())
            if cell.kv is None:
                lane.cells[slot] = cell._replace(kv=value)

    def on_copy(self, event: Event) -> None:
        places = {"full": ("target", "FULL"), "swa": ("target", "SWA"), "draft": ("draft", "FULL")}
        src_pool, dst_pool = event.get("src_pool", "full"), event.get("dst_pool", "full")
        moved: list[tuple[Cell, bool, int | None]] = []
        for slot in event["src"]:
            if src_pool in places:
                lane = self.lanes[places[src_pool]]
                cell = lane.cells.get(slot, Cell())
                moved.append((cell, slot in lane.loose, lane.bytes.get(slot)))
            else:
                moved.append(self.tiers[src_pool, slot])
        for slot, (cell, loose, content) in zip(event["dst"], moved, strict=True):
            if dst_pool not in places:
                self.tiers[dst_pool, slot] = (cell, loose, content)
                continue
            lane = self.lanes[places[dst_pool]]
            lane.cells[slot] = cell
            lane.loose.discard(slot)
            if loose:
                lane.loose.add(slot)
            lane.bytes[slot] = content or 0

    def on_forward(self, event: Event, after: dict[int, int]) -> None:
        worker = event.get("worker", "target")
        rows = self._rows(event)
        for (of_worker, kind), lane in self.lanes.items():
            if of_worker != worker:
                continue
            kv_lane = self.check_kv and (worker, kind) == ("target", "FULL")
            if kv_lane:
                # TAIL runs behind the model: what the forward wrote is seen as it is then.
                written = set(event["out_cache_loc"])
                lane.bytes.update((s, h) for s, h in after.items() if s in written)
            for row in rows:
                self._verify(event, worker, kind, lane, row, kv_lane)
            for row in rows:
                self._write(event, worker, kind, lane, row, after if kv_lane else None)
            if kv_lane:
                self._adopt(lane, {s: h for s, h in after.items() if s not in written})

    def _rows(self, event: Event) -> list[Event]:
        mode, out, at = event["forward_mode"], [], 0
        draft = event.get("worker") == "draft"
        for b, req in enumerate(event["reqs"]):
            seq_len = event["seq_lens"][b]
            count = 1
            if mode == "TARGET_VERIFY":
                count = event["draft_token_num"]
            elif "extend_seq_lens" in event:
                count = event["extend_seq_lens"][b]
            where = slice(at, at + count)
            at += count
            if req is None:
                continue
            positions = event["positions"][where]
            if mode == "TARGET_VERIFY":
                prefix = seq_len
            elif mode == "DRAFT_EXTEND_V2":
                prefix = seq_len - count
            elif mode in _PLAIN_EXTEND:
                prefix = event["extend_prefix_lens"][b]
            else:
                prefix = positions[0]
            true = list(range(prefix, prefix + count))
            if mode == "DECODE":
                true = [seq_len + event.get("draft_step", 0) if draft else seq_len - 1]
            parents = event["tree"]["parent"][where] if "tree" in event else None
            if parents is not None:
                depth: list[int] = []
                for parent in parents:
                    depth.append(0 if parent < 0 else depth[parent] + 1)
                true = [prefix + d for d in depth]
            as_read = event.get("row_as_read", {}).get(str(event["req_pool_indices"][b]), [])
            table = self.table.get(event["req_pool_indices"][b], {})
            out.append(
                {
                    "req": req,
                    "prefix": prefix,
                    "committed": seq_len if draft and mode == "DECODE" else None,
                    "cells": table | dict(enumerate(as_read)),
                    "tokens": event["input_ids"][where],
                    "positions": positions,
                    "slots": event["out_cache_loc"][where],
                    "true": true,
                    "parents": parents,
                }
            )
        return out

    def _translate(self, kind: str, slot: int) -> int:
        return self.lut.get(slot, 0) if kind == "SWA" and slot >= 0 else slot

    def _report(
        self, event: Event, place: tuple[str, str], check: str, row: Event, *cells: Any
    ) -> None:
        self.found.append(Found(event["step"], *place, check, row["req"], *cells))

    def _verify(
        self, event: Event, worker: str, kind: str, lane: LaneModel, row: Event, kv: bool
    ) -> None:
        window = self.pool.get("swa_window", 0) if kind == "SWA" else 0
        first = max(0, row["prefix"] - window) if window else 0
        known = self.history.get(row["req"], {})
        for position in range(first, row["prefix"]):
            slot = self._translate(kind, row["cells"].get(position, 0))
            if slot == 0:
                continue
            cell = lane.cells.get(slot, Cell())
            prev = -1
            if position:
                prev = self._translate(kind, row["cells"].get(position - 1, 0))
            link = self.HEAD if prev < 0 else self.chain(lane.cells.get(prev, Cell()))
            token = known.get(position + (worker == "draft"))
            if row["committed"] is not None and position >= row["committed"]:
                # Past the committed length stand proposals, unless nobody proposed there yet.
                token = None if slot in lane.proposed else token
            reasons = []
            if prev != 0 and slot not in lane.loose and cell.chain != link:
                reasons.append("verify_chain_hash")
            if cell.position != position:
                reasons.append("verify_position")
            if kv and cell.kv is not None and cell.kv != lane.bytes.get(slot, 0):
                reasons.append("verify_real_kv_hash")
            if token is not None and cell.token != token:
                reasons.append("verify_token")
            if reasons:
                cells = (slot, cell.position, position, tuple(reasons))
                self._report(event, (worker, kind), "verify", row, *cells)

    def _write(
        self,
        event: Event,
        worker: str,
        kind: str,
        lane: LaneModel,
        row: Event,
        after: dict[int, int] | None,
    ) -> None:
        place = (worker, kind)
        seed = -1
        if row["prefix"]:
            seed = self._translate(kind, row["cells"].get(row["prefix"] - 1, 0))
        last = lane.cells.get(seed, Cell())
        chain = self.HEAD if seed < 0 else self.chain(last)
        checks_link, last_position = seed >= 0 and row["parents"] is None, last.position
        checks_input = event["forward_mode"] != "TARGET_VERIFY" and not (
            worker == "draft" and event["forward_mode"] == "DECODE"
        )
        known = self.history.get(row["req"], {})
        for k, slot in enumerate(row["slots"]):
            slot = self._translate(kind, slot)
            if slot < 0:
                continue
            token, position, true = row["tokens"][k], row["positions"][k], row["true"][k]
            expected = known.get(true + (worker == "draft"))
            if checks_input and expected is not None and token != expected:
                cells = (slot, position, position, ("write_token",))
                self._report(event, place, "input_assert", row, *cells)
            wanted = last_position + 1 if row["parents"] is None else true
            if (checks_link or row["parents"] is not None) and position != wanted:
                cells = (slot, position, wanted, ("write_position",))
                self._report(event, place, "chain_position", row, *cells)
            last_position = position
            lane.cells[slot] = Cell(token, position, chain, 0 if after is None else after.get(slot))
            lane.loose.discard(slot)
            lane.proposed.discard(slot)
            if row["committed"] is not None:
                lane.proposed.add(slot)
            if row["parents"] is not None and row["parents"][k] != k - 1:
                lane.loose.add(slot)
            chain = self.chain(lane.cells[slot])


def predict(head: Event, events: list[Event], *, check_kv: bool) -> list[Found]:
    """All violations of the trace, sorted."""
    return sorted(Oracle(head, check_kv=check_kv).run(events), key=repr)


def seen(violations: Any) -> list[Found]:
    """The predicted part of what a replay reported, sorted the same way."""
    return sorted(
        (Found(*(getattr(v, name) for name in Found._fields)) for v in violations), key=repr
    )
