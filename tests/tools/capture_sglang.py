"""A SGLang capture (schema ``sglang-forward-capture/1``) as a kvcanary trace.

Order around forward n: the allocator's events in front of it, tokens, table and lookup changes,
``before`` hashes, the forward, ``after`` hashes, the sweep due there, then what the engine did
with the result. The sweep stands before the prefill's insert because the engine walks the tree
inside the forward.

Not expressed, since the format has no place for it: the SWA allocator's own events (the lookup
table shows what they lead to), the rows that were handed out (``map`` does), and in captures with
pages the allocator's events, of which only the allocations were recorded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.tools.capture_header import sglang_header
from tests.tools.capture_index import PrefixIndex
from tests.tools.capture_ownership import Ownership, is_eviction, tokens_per_row
from tests.tools.capture_rows import HistoryShadow, LutShadow, TableShadow, ints
from tests.tools.capture_speculation import Speculation

if TYPE_CHECKING:
    from tests.tools.capture_rows import Event

EXTEND_MODES = ("EXTEND", "MIXED")


def convert(capture: dict[str, Any]) -> tuple[Event, list[Event]]:
    """Header and events of ``capture``, without ``i`` in the events.

    Raises:
        InputError: The capture contradicts itself.
    """
    conversion = _Conversion(capture)
    events = conversion.run()
    return sglang_header(capture, conversion.records), events


class _Conversion:
    def __init__(self, capture: dict[str, Any]) -> None:
        meta = json.loads(capture["meta"])
        truth = json.loads(capture["ground_truth"])
        self._steps = capture["steps"]
        self._tokens = {
            req: ints(r["prompt"]) + ints(r["output"]) for req, r in capture["requests"].items()
        }
        self._prompt_len = {req: len(r["prompt"]) for req, r in capture["requests"].items()}
        self._retracted = {(r["step"], req) for r in capture["retractions"] for req in r["rids"]}
        self._ownership = Ownership(capture, truth.get("rid"))
        self._table = TableShadow()
        self._history = HistoryShadow(self._tokens)
        self._index = PrefixIndex()
        self._sweeps: dict[int, dict[str, Any]] = {
            s["after_step"]: s for s in capture.get("canary", {}).get("sweeps", [])
        }
        has_lut = any("full_to_swa_lut" in step for step in self._steps)
        self._lut = LutShadow(meta["max_total_num_tokens"]) if has_lut else None
        self._lut_final = capture.get("canary_swa", {}).get("lut_final")
        self._speculation = Speculation(self._steps, self._tokens)
        self._records_alloc = meta["page_size"] == 1
        self._prefill_target: dict[str, int] = {}
        self._decoding: set[str] = set()
        self._out: list[Event] = []
        families = {
            "forward": True,
            "map": True,
            "alloc": self._records_alloc,
            "request": True,
            "history": True,
            "prefix": bool(self._sweeps),
            "lut": has_lut,
            "spec": self._speculation.used,
            "transfer": self._speculation.used,
            "kv_hash": any("kv_hash_before" in step for step in self._steps),
        }
        self.records = [family for family, recorded in families.items() if recorded]

    def run(self) -> list[Event]:
        for n, step in enumerate(self._steps):
            self._scheduler(n)
            self._before(step)
            self._out.append(forward_event(step, self._speculation.parents(n)))
            self._hashes(step, "after")
            self._out += self._speculation.outcome(n)
            self._sweep(n)
            self._insert_prefills(n)
        self._scheduler(len(self._steps))
        if self._lut is not None and self._lut_final is not None:
            self._out += self._lut.show(ints(self._lut_final))
        return self._out

    def _scheduler(self, n: int) -> None:
        """What the engine did between forward n - 1 and forward n."""
        for event in self._ownership.groups[n]:
            match event["kind"]:
                case "alloc" if self._records_alloc:
                    self._out += self._ownership.alloc(event)
                case "free" if self._records_alloc:
                    if is_eviction(event):
                        self._out += self._index.evict(event["slots"])
                    self._out += self._ownership.free(event)
                case "row_free":
                    self._leave(event["rid"], event["slots"], n)

    def _leave(self, req: str, rows: list[int], n: int) -> None:
        if self._records_alloc:
            self._out += self._ownership.release(req, n)
        retracted = (n, req) in self._retracted
        if not retracted:
            self._out += self._history.tell(req)
        self._out.append({"kind": "retract" if retracted else "finish", "req": req})
        self._out += [{"kind": "row_release", "row": row, "req": req} for row in rows]
        self._prefill_target.pop(req, None)
        self._decoding.discard(req)

    def _before(self, step: dict[str, Any]) -> None:
        drafts = step["draft_token_num"] or 0
        for req, length in zip(step["rids"], ints(step["seq_lens"]), strict=True):
            known = length + 1 if drafts else length
            self._out += self._history.tell(req, max(known, self._prompt_len[req]))
            self._prefill_target.setdefault(req, self._history.told(req))
        if self._lut is not None:
            self._out += self._lut.show(ints(step["full_to_swa_lut"]))
        for row, length, cells in zip(
            ints(step["req_pool_indices"]),
            ints(step["seq_lens"]),
            step["req_to_token_rows"],
            strict=True,
        ):
            self._out += self._table.show(row, ints(cells)[: length + drafts])
        self._hashes(step, "before")

    def _hashes(self, step: dict[str, Any], phase: str) -> None:
        for suffix, pool in (("", {}), ("_swa", {"pool": "swa"})):
            hashes = step.get(f"kv_hash_{phase}{suffix}")
            if hashes is not None and len(hashes["slots"]):
                self._out.append(
                    {
                        "kind": "kv_hash",
                        "phase": phase,
                        "step": step["step"],
                        "slots": ints(hashes["slots"]),
                        "hash": ints(hashes["hash"]),
                        **pool,
                    }
                )

    def _sweep(self, n: int) -> None:
        sweep = self._sweeps.get(n)
        if sweep is None:
            return
        slots = ints(sweep["slot_indices"])
        self._out += self._index.sweep(
            slots, ints(sweep["positions"]), ints(sweep["prev_slot_indices"])
        )
        self._out.append(
            {
                "kind": "kv_hash",
                "phase": "sweep",
                "step": n,
                "slots": slots,
                "hash": ints(sweep["kv_hash"]),
            }
        )

    def _insert_prefills(self, n: int) -> None:
        step = self._steps[n]
        if step["forward_mode_name"] not in EXTEND_MODES:
            return
        for req, length, cells in zip(
            step["rids"], ints(step["seq_lens"]), step["req_to_token_rows"], strict=True
        ):
            if req in self._decoding:
                continue
            if self._records_alloc:
                self._out += self._ownership.insert(req, ints(cells)[:length], n + 1)
            if length >= self._prefill_target[req]:
                self._decoding.add(req)


def forward_event(step: dict[str, Any], parents: list[int] | None) -> Event:
    """The ``forward`` of a capture step; ``parents`` of a draft tree, flat, or None."""
    event: Event = {
        "kind": "forward",
        "step": step["step"],
        "forward_mode": step["forward_mode_name"],
        "reqs": list(step["rids"]),
        "req_pool_indices": ints(step["req_pool_indices"]),
        "seq_lens": ints(step["seq_lens"]),
        "input_ids": ints(step["input_ids"]),
        "positions": ints(step["positions"]),
        "out_cache_loc": ints(step["out_cache_loc"]),
    }
    if step["extend_seq_lens"] is not None:
        event["extend_prefix_lens"] = ints(step["extend_prefix_lens"])
        event["extend_seq_lens"] = tokens_per_row(step)
    if step["draft_token_num"] is not None:
        event["draft_token_num"] = step["draft_token_num"]
    if parents is not None:
        event["tree"] = {"parent": parents}
    return event
