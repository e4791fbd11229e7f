"""A vLLM capture (schema ``vllm-step-capture/1``) as a kvcanary trace.

A slot is block * block_size + offset; block 0 is never handed out. A request gets the lowest free
table row, from its first step to its end. The block pool's events become ownership by these rules:

- ``alloc``: the owner is the request whose block table of the next step holds the block.
- ``touch``: another request is served from the block, so it is cached: it passes to "tree".
- ``free_ref`` that drops the last reference: a cached block passes to "tree", any other is freed.
  Cached is what is touched or evicted before it is handed out again; of blocks that the capture
  does not show again, those that the request had filled.
- ``evict_cached``: freed by "tree".

Not expressed: cache hits, since the capture does not name the cached prefix that was hit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.schema import FORMAT, TREE_OWNER
from tests.tools.capture_header import CREATED_AT
from tests.tools.capture_rows import HistoryShadow, TableShadow, ints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.tools.capture_rows import Event

RECORDS = ["forward", "map", "alloc", "request", "history"]
SUFFIX_LENGTH = len("-01234567")


def convert(capture: dict[str, Any]) -> tuple[Event, list[Event]]:
    """Header and events of ``capture``, without ``i`` in the events.

    Raises:
        InputError: The capture contradicts itself, or holds speculative steps.
    """
    return _header(capture), _Conversion(capture).run()


def _header(capture: dict[str, Any]) -> Event:
    meta = json.loads(capture["meta"])
    block_size, blocks = meta["block_size"], meta["num_blocks"]
    return {
        "kind": "header",
        "format": FORMAT,
        "version": 1,
        "engine": {"name": capture["engine"], "version": capture["engine_version"]},
        "rank": {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
        "pool": {
            "slots": (blocks - 1) * block_size,
            "max_slot": blocks * block_size - 1,
            "reserved": list(range(block_size)),
            "page_size": block_size,
            "rows": meta["max_num_seqs"] + 1,
            "row_len": blocks * block_size,
            "swa_slots": 0,
            "swa_window": 0,
        },
        "chain": "splitmix64-mix3",
        "tokens": "raw",
        "records": RECORDS,
        "serving_args": {
            "block_size": block_size,
            "num_gpu_blocks_override": blocks,
            "max_num_seqs": meta["max_num_seqs"],
            "max_num_batched_tokens": meta["max_num_batched_tokens"],
            "enable_prefix_caching": meta["prefix_caching"],
            "enable_chunked_prefill": meta["chunked_prefill"],
        },
        "created_at": CREATED_AT,
        "capture": {"name": capture["name"], "seed": meta["seed"], "model": meta["model"]},
    }


class BlockOwners:
    """Owners of blocks over the course of a capture, and the events that say so."""

    def __init__(self, events: Iterable[Event], block_size: int) -> None:
        """Prepare for ``events`` (all of the capture, in order)."""
        self._size = block_size
        self._owner: dict[int, str] = {}
        self._later: dict[int, list[tuple[int, str]]] = {}
        for event in events:
            for block in ints(event["block_ids"]):
                self._later.setdefault(block, []).append((event["seq"], event["kind"]))

    def alloc(self, blocks: list[int], owners: dict[int, str]) -> list[Event]:
        """``alloc`` events; ``owners`` gives the request by block.

        Raises:
            InputError: A block is in nobody's block table.
        """
        by_owner: dict[str, list[int]] = {}
        for block in blocks:
            if block not in owners:
                raise InputError(f"block {block} is handed out, but no block table holds it")
            by_owner.setdefault(owners[block], []).append(block)
            self._owner[block] = owners[block]
        return [
            {"kind": "alloc", "owner": owner, "slots": self._slots(given)}
            for owner, given in by_owner.items()
        ]

    def to_tree(self, blocks: Iterable[int]) -> list[Event]:
        by_owner: dict[str, list[int]] = {}
        for block in blocks:
            if self._owner[block] != TREE_OWNER:
                by_owner.setdefault(self._owner[block], []).append(block)
                self._owner[block] = TREE_OWNER
        return [
            {"kind": "own", "from": owner, "owner": TREE_OWNER, "slots": self._slots(given)}
            for owner, given in by_owner.items()
        ]

    def drop(
        self, seq: int, blocks: list[int], references: list[int], full: set[int]
    ) -> list[Event]:
        """One reference less: events of a ``free_ref``.

        Args:
            seq: The event's number.
            blocks, references: Parallel; reference counts before.
            full: Blocks that a request had filled.
        """
        last = [b for b, count in zip(blocks, references, strict=True) if count == 1]
        cached = [b for b in last if self._is_cached(b, seq, b in full)]
        events = self.to_tree(cached)
        return events + self.free([b for b in last if b not in cached])

    def free(self, blocks: list[int], reason: str | None = None) -> list[Event]:
        by_owner: dict[str, list[int]] = {}
        for block in blocks:
            by_owner.setdefault(self._owner.pop(block), []).append(block)
        return [
            {"kind": "free", "owner": owner, "slots": self._slots(given)}
            | ({"reason": reason} if reason else {})
            for owner, given in by_owner.items()
        ]

    def _is_cached(self, block: int, seq: int, full: bool) -> bool:
        if self._owner[block] == TREE_OWNER:
            return True
        after = next((kind for s, kind in self._later[block] if s > seq), None)
        return full if after is None else after in ("touch", "evict_cached")

    def _slots(self, blocks: Iterable[int]) -> list[int]:
        return [b * self._size + k for b in blocks for k in range(self._size)]


class _Conversion:
    def __init__(self, capture: dict[str, Any]) -> None:
        meta = json.loads(capture["meta"])
        self._size: int = meta["block_size"]
        self._steps = capture["steps"]
        self._groups: list[list[Event]] = [[] for _ in range(len(self._steps) + 1)]
        ordered = sorted(capture["events"], key=lambda e: e["seq"])
        for event in ordered:
            self._groups[event["step"]].append(event)
        self._owners = BlockOwners(ordered, self._size)
        self._prompt_len = {req: len(r["prompt"]) for req, r in capture["requests"].items()}
        self._history = HistoryShadow(
            {req: ints(r["prompt"]) + ints(r["output"]) for req, r in capture["requests"].items()}
        )
        self._table = TableShadow()
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(1, meta["max_num_seqs"] + 1))
        self._full: set[int] = set()
        self._out: list[Event] = []

    def run(self) -> list[Event]:
        for n, step in enumerate(self._steps):
            if step["spec_decode_tokens"]:
                raise InputError(
                    f"step {step['step']} verifies draft tokens of "
                    f"{', '.join(step['spec_decode_tokens'])}",
                    hint="record without speculative decoding",
                )
            self._scheduler(n, [_name(req) for req in step["finished_req_ids"]])
            self._forward(step)
        self._scheduler(len(self._steps), list(self._row_of))
        return self._out

    def _scheduler(self, n: int, finished: list[str]) -> None:
        """What the engine did between forward n - 1 and forward n: first the end of requests."""
        group = self._groups[n]
        for event in group:
            if event["kind"] == "free_ref":
                self._out += self._owners.drop(
                    event["seq"], ints(event["block_ids"]), event["ref_cnt_before"], self._full
                )
        for req in finished:
            self._out += self._history.tell(req)
            self._out.append({"kind": "finish", "req": req})
            self._free_rows.append(self._row_of[req])
            self._out.append({"kind": "row_release", "row": self._row_of.pop(req), "req": req})
        owners = _block_owners(self._steps[n]) if n < len(self._steps) else {}
        for event in group:
            blocks = ints(event["block_ids"])
            match event["kind"]:
                case "alloc":
                    self._full.difference_update(blocks)
                    self._out += self._owners.alloc(blocks, owners)
                case "touch":
                    self._out += self._owners.to_tree(blocks)
                case "evict_cached":
                    self._out += self._owners.free(blocks, "evict")

    def _forward(self, step: dict[str, Any]) -> None:
        reqs = [_name(req) for req in step["req_ids"]]
        computed = ints(step["num_computed_tokens"])
        scheduled = ints(step["num_scheduled_tokens"])
        lengths = [a + b for a, b in zip(computed, scheduled, strict=True)]
        for k, (req, length) in enumerate(zip(reqs, lengths, strict=True)):
            if req not in self._row_of:
                self._row_of[req] = self._free_rows.pop(self._free_rows.index(min(self._free_rows)))
            self._out += self._history.tell(req, max(length, self._prompt_len[req]))
            blocks = _blocks(step, k)
            cells = [b * self._size + offset for b in blocks for offset in range(self._size)]
            self._out += self._table.show(self._row_of[req], cells)
            self._full.update(blocks[: length // self._size])
        event: Event = {
            "kind": "forward",
            "step": step["step"],
            "forward_mode": _mode(computed, scheduled, [self._prompt_len[req] for req in reqs]),
            "reqs": reqs,
            "req_pool_indices": [self._row_of[req] for req in reqs],
            "seq_lens": lengths,
            "input_ids": ints(step["input_ids"]),
            "positions": ints(step["positions"]),
            "out_cache_loc": ints(step["slot_mapping"]),
        }
        if event["forward_mode"] != "DECODE":
            event |= {"extend_prefix_lens": computed, "extend_seq_lens": scheduled}
        self._out.append(event)


def _name(req: str) -> str:
    """The caller's request id; the engine's ends in a dash and 8 random hex digits."""
    return req[:-SUFFIX_LENGTH]


def _blocks(step: dict[str, Any], k: int) -> list[int]:
    return ints(step["block_table"][k])[: ints(step["num_blocks_per_row"])[k]]


def _block_owners(step: dict[str, Any]) -> dict[int, str]:
    """Request by block; of a block in several tables, the first."""
    owners: dict[int, str] = {}
    for k, req in enumerate(step["req_ids"]):
        for block in _blocks(step, k):
            owners.setdefault(block, _name(req))
    return owners


def _mode(computed: list[int], scheduled: list[int], prompts: list[int]) -> str:
    """DECODE where all rows go on one token past their prompt, EXTEND where none does."""
    decoding = [
        before >= prompt and count == 1
        for before, count, prompt in zip(computed, scheduled, prompts, strict=True)
    ]
    if all(decoding):
        return "DECODE"
    return "MIXED" if any(decoding) else "EXTEND"
