"""Hypothesis strategies for traces that a reader must accept.

``traces()`` gives ``(header, events)``: the header's dictionary and the event dictionaries of the
JSONL lines, in canonical field order. Every kind, optional field and forward mode occurs, slots,
rows and positions stay in range, ``i`` and ``step`` grow, arrays fit each other. Nothing more is
promised: owners, tables and tokens are random, so a replay finds plenty in them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvcanary_cli.trace.schema import COMMON_FIELDS, FAMILIES, KINDS, FieldType

Event = dict[str, Any]

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
#: Request ids may be any string: markup, nulls, emoji and half surrogate pairs included.
NAMES = st.one_of(
    st.sampled_from(["A", "B", "C", "tree", "[/x]", "\x00", "é", "🐤"]),
    st.text(max_size=4),
    st.just("\ud800"),
)
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=4),
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
_BY_TYPE: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.INT: INT64,
    FieldType.STR: NAMES,
    FieldType.BOOL: st.booleans(),
    FieldType.JSON: JSON_VALUES,
}
_TOP_MODES = ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND")
_ALL_MODES = (*_TOP_MODES, "DECODE", "IDLE", "TARGET_VERIFY", "DRAFT_EXTEND_V2", "PREBUILT")


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """A header over a small pool."""
    swa = draw(st.booleans())
    pool: dict[str, Any] = {
        "slots": draw(st.integers(4, 40)),
        "page_size": draw(st.sampled_from([1, 4])),
        "rows": draw(st.integers(2, 6)),
        "row_len": draw(st.integers(8, 24)),
        "swa_slots": 10 if swa else 0,
        "swa_window": 4 if swa else 0,
    }
    if draw(st.booleans()):
        pool["max_slot"] = pool["slots"] + draw(st.integers(0, 3))
    header: dict[str, Any] = {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": "synthetic"},
        "rank": {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
        "pool": pool,
        "tokens": draw(st.sampled_from(["raw", "salted", "absent"])),
        "records": draw(st.lists(st.sampled_from(FAMILIES), unique=True)),
    }
    if draw(st.booleans()):
        header["starts_mid_run"] = draw(st.booleans())
    if draw(st.booleans()):
        header["x_new"] = draw(JSON_VALUES)
    return header


class _Maker:
    """Draws the fields of events that fit one header."""

    def __init__(self, draw: st.DrawFn, header: dict[str, Any]) -> None:
        pool = header["pool"]
        self.draw = draw
        self.rows = pool["rows"]
        self.row_len = pool["row_len"]
        self.max_slot = pool.get("max_slot", pool["slots"])
        extra = self.max_slot - pool["slots"] if pool["swa_slots"] else 0
        self.has_swa = pool["swa_slots"] > 0
        self.swa_max = pool["swa_slots"] + extra
        self.tokens_absent = header["tokens"] == "absent"
        self.steps: dict[tuple[str, int], int] = {}

    def ints(self, low: int, high: int, count: int) -> list[int]:
        return self.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    def slots(self, count: int | None = None, high: int | None = None) -> list[int]:
        count = self.draw(st.integers(0, 5)) if count is None else count
        return self.ints(0, self.max_slot if high is None else high, count)

    def words(self, count: int) -> list[int]:
        return self.draw(st.lists(INT64, min_size=count, max_size=count))

    def maybe(self) -> bool:
        return self.draw(st.booleans())

    def event(self, kind: str) -> Event:
        """Fields of an event in canonical order, optional ones present or not."""
        special = getattr(self, kind, None)
        fields: Event = special() if special is not None else self._plain(kind)
        for common in COMMON_FIELDS:
            if self.draw(st.integers(0, 5)) == 0:
                value = self.draw(INT64 if common.name == "t" else JSON_VALUES)
                fields[common.name] = value
        names = [f.name for f in (*COMMON_FIELDS, *KINDS[kind].fields)]
        ordered = {name: fields[name] for name in names if name in fields}
        if self.draw(st.integers(0, 7)) == 0:
            ordered["x_new"] = self.draw(JSON_VALUES)
        return ordered

    def _plain(self, kind: str) -> Event:
        out: Event = {}
        for f in KINDS[kind].fields:
            if not f.required and self.maybe():
                continue
            match f.name:
                case "kv_pos" | "kv":
                    continue
                case "slots" | "shared" | "gone":
                    out[f.name] = self.slots()
                case "at":
                    out[f.name] = self.words(len(out["slots"]))
                case "row":
                    out[f.name] = self.draw(st.integers(0, self.rows - 1))
                case "pos":
                    out[f.name] = self.ints(0, self.row_len - 1, self.draw(st.integers(0, 3)))
                case "ids":
                    out[f.name] = self.words(self.draw(st.integers(0, 4)))
                case "start":
                    out[f.name] = self.draw(st.integers(0, self.row_len - 1))
                case "copy_on_write":
                    out[f.name] = [self.slots(2) for _ in range(self.draw(st.integers(0, 2)))]
                case "prev_slot":
                    out[f.name] = self.draw(st.integers(-1, self.max_slot))
                case _:
                    out[f.name] = self.draw(_BY_TYPE[f.type])
        return out

    def map(self) -> Event:
        start = self.draw(st.integers(0, self.row_len - 1))
        count = self.draw(st.integers(0, min(5, self.row_len - start)))
        row = self.draw(st.integers(0, self.rows - 1))
        return {"row": row, "start": start, "slots": self.slots(count)}

    def lut(self) -> Event:
        count = self.draw(st.integers(0, 4))
        return {"full": self.slots(count), "swa": self.slots(count, self.swa_max)}

    def accept(self) -> Event:
        nodes = self.ints(0, 6, self.draw(st.integers(0, 3)))
        tokens = self.words(len(nodes) + self.draw(st.integers(0, 1)))
        return {"req": "A", "nodes": nodes, "tokens": tokens, "committed_len": len(nodes)}

    def copy(self) -> Event:
        count = self.draw(st.integers(0, 4))
        out: Event = {"src": self.slots(count), "dst": self.slots(count)}
        if self.maybe():
            out["src"] = {"req": "A", "pos": self.ints(0, self.row_len - 1, count)}
        if self.maybe():
            out |= {"src": self.words(count), "src_pool": "host"} if self.maybe() else {}
            out |= {"canary": self.maybe(), "via": "h2d", "id": self.draw(JSON_VALUES)}
        if self.maybe():
            out["dst_pool"] = self.draw(st.sampled_from(["full", "draft"]))
        return out

    def kv_hash(self) -> Event:
        count = self.draw(st.integers(0, 4))
        swa = self.maybe()
        out: Event = {
            "phase": self.draw(st.sampled_from(["before", "after", "sweep"])),
            "step": self.draw(st.integers(0, 9)),
            "slots": self.slots(count, self.swa_max if swa else None),
            "hash": self.words(count),
        }
        return out | ({"pool": "swa"} if swa else {})

    def sidecar_hash(self) -> Event:
        return self.kv_hash() | {"name": self.draw(NAMES)}

    def canary_rows(self) -> Event:
        count = self.draw(st.integers(0, 3))
        arrays = ("token", "position", "prev_hash", "real_kv_hash")
        return {
            "worker": self.draw(st.sampled_from(["target", "draft"])),
            "pool": "full",
            "half": self.draw(st.sampled_from(["k", "v"])),
            "slots": self.slots(count),
            **{name: self.words(count) for name in arrays},
        }

    def forward(self) -> Event:
        mode = self.draw(st.sampled_from(_ALL_MODES))
        bs = self.draw(st.integers(0, 3))
        padding = [self.draw(st.integers(0, 3)) == 0 for _ in range(bs)]
        prefix = self.ints(0, self.row_len // 2, bs)
        written = self.ints(0, 3, bs)
        out: Event = {
            "reqs": [None if pad else self.draw(NAMES) for pad in padding],
            "req_pool_indices": [
                0 if pad else self.draw(st.integers(1, self.rows - 1)) for pad in padding
            ],
            "seq_lens": [a + b for a, b in zip(prefix, written, strict=True)],
            "forward_mode": mode,
        }
        if mode in _TOP_MODES or mode == "DRAFT_EXTEND_V2":
            out |= {"extend_prefix_lens": prefix, "extend_seq_lens": written}
        elif mode == "TARGET_VERIFY":
            out["draft_token_num"] = self.draw(st.integers(1, 3))
            written = [out["draft_token_num"]] * bs
        else:
            written = [0] * bs if mode == "IDLE" and self.maybe() else [1] * bs
        tokens = sum(written)
        out["positions"] = self.ints(0, self.row_len - 1, tokens)
        out["out_cache_loc"] = self.ints(-1, self.max_slot, tokens)
        if not self.tokens_absent or self.maybe():
            out["input_ids"] = self.words(tokens)
        self._forward_options(out, bs, written)
        lane = (out.get("worker", "target"), out.get("draft_step", -1))
        self.steps[lane] = self.steps.get(lane, -1) + self.draw(st.integers(1, 3))
        out["step"] = self.steps[lane]
        return out

    def _forward_options(self, out: Event, bs: int, written: list[int]) -> None:
        tokens = sum(written)
        if self.maybe():
            out["worker"] = self.draw(st.sampled_from(["target", "draft"]))
        if self.maybe():
            out["draft_step"] = self.draw(st.integers(0, 2))
        if self.maybe():
            out["raw_bs"] = self.draw(st.integers(0, bs))
        if self.maybe():
            out["namespaces"] = [None if r is None else "n" for r in out["reqs"]]
        if self.draw(st.integers(0, 3)) == 0:
            draft = out.get("worker") == "draft"
            pools = ["draft", "full"] if draft else ["full", "swa"] if self.has_swa else ["full"]
            pool = self.draw(st.sampled_from(pools))
            last = self.swa_max if pool == "swa" else self.max_slot
            out["landed"] = {"pool": pool, "slots": self.ints(-1, last, tokens)}
        if self.draw(st.integers(0, 3)) == 0:
            out["row_as_read"] = {str(self.draw(st.integers(0, self.rows - 1))): self.slots(3)}
        if self.draw(st.integers(0, 3)) == 0:
            out["tree"] = {
                "parent": [self.draw(st.integers(-1, k - 1)) for n in written for k in range(n)]
            }


@st.composite
def traces(draw: st.DrawFn, max_events: int = 12) -> tuple[dict[str, Any], list[Event]]:
    """A valid trace of up to ``max_events`` events; see the module."""
    header = draw(headers())
    maker = _Maker(draw, header)
    kinds = [k for k in KINDS if k != "lut" or maker.swa_max]
    index = draw(st.integers(-5, 1 << 40))
    events = []
    chosen = draw(
        st.lists(st.sampled_from([*kinds, *["forward"] * 8, "x_unknown"]), max_size=max_events)
    )
    for kind in chosen:
        fields = {"x": draw(JSON_VALUES)} if kind == "x_unknown" else maker.event(kind)
        events.append({"kind": kind, "i": index, **fields})
        index += 1 + (draw(st.integers(1, 9)) if draw(st.integers(0, 9)) == 0 else 0)
    return header, events
