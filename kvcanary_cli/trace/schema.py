"""Event kinds and fields of trace format version 1 (docs/trace-format.md), as a table.

The reader, the writer, the columnar form and the validator all follow this table; a kind or field
that is not in it is kept as JSON text, counted and reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "kvcanary-trace"
VERSIONS = (1,)
TREE_OWNER = "tree"
#: Stands behind a gap for whoever owned the slots that are free by then.
GAP_OWNER = "kvcanary:gap"


class FieldType(Enum):
    """How a field is stored: one column shape each."""

    INT = "an integer"
    INTS = "a list of integers"
    STR = "a string"
    STRS = "a list of strings or nulls"
    BOOL = "true or false"
    JSON = "any JSON value"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an event kind.

    Attributes:
        name: Name in the trace.
        type: How it is stored.
        required: Whether an event without it is refused.
    """

    name: str
    type: FieldType
    required: bool = True


def _fields(spec: str) -> tuple[Field, ...]:
    """Parse ``name:type`` words; ``?`` after the type marks an optional field."""
    types = {t.name.lower(): t for t in FieldType}
    fields = []
    for word in spec.split():
        name, _, type_name = word.partition(":")
        fields.append(Field(name, types[type_name.rstrip("?")], not type_name.endswith("?")))
    return tuple(fields)


@dataclass(frozen=True, slots=True)
class EventKind:
    """One kind of event: its fields in writing order, and the family that records it."""

    name: str
    family: str
    fields: tuple[Field, ...]


def _kind(name: str, family: str, spec: str) -> EventKind:
    return EventKind(name, family, _fields(spec))


_KINDS = (
    _kind(
        "forward",
        "forward",
        "step:int forward_mode:str reqs:strs req_pool_indices:ints seq_lens:ints input_ids:ints "
        "positions:ints out_cache_loc:ints extend_prefix_lens:ints? extend_seq_lens:ints? "
        "draft_token_num:int? worker:str? draft_step:int? raw_bs:int? landed:json? "
        "row_as_read:json? tree:json? namespaces:strs?",
    ),
    # req and at are ours: the request that last ran in the row, whose publishes take positions from
    # it, and the i of the map that set each cell.
    _kind("map", "map", "row:int start:int slots:ints req:str? at:ints?"),
    # at is ours: at the head of a cut, the i of the event that did this for each slot;
    # shared are those that others may read, too.
    _kind("alloc", "alloc", "owner:str slots:ints at:ints? shared:ints?"),
    _kind("free", "alloc", "owner:str slots:ints reason:str? at:ints?"),
    _kind("own", "alloc", "from:str owner:str slots:ints entry:str?"),
    # kv_pos and kv are ours: fingerprints last recorded at these positions of the request.
    _kind("history", "history", "req:str start:int ids:ints kv_pos:ints? kv:ints?"),
    _kind("finish", "request", "req:str"),
    _kind("retract", "request", "req:str"),
    _kind("abort", "request", "req:str"),
    _kind("row_release", "request", "row:int req:str"),
    _kind(
        "publish",
        "prefix",
        # Ours: where slots that begin within a prefix stand (start, prev_slot), and which of them
        # the tree has given back since the entry was published (gone).
        "entry:str req:str? slots:ints? namespace:str? start:int? prev_slot:int? gone:ints?",
    ),
    _kind("unpublish", "prefix", "entry:str req:str? slots:ints? namespace:str?"),
    _kind("match", "prefix", "req:str entry:str slots:ints tier:str? namespace:str?"),
    _kind(
        "copy",
        "transfer",
        # src is a list of slots or {"req": R, "pos": [...]}
        "src:json dst:ints id:json? via:str? by:str? canary:bool? src_pool:str? dst_pool:str? "
        "via_row:int? key:json? stream:str? direction:str?",
    ),
    _kind(
        "transfer_begin",
        "transfer",
        "id:json req:str? slots:ints? key:json? via:str? reason:str? direction:str?",
    ),
    _kind(
        "transfer_end",
        "transfer",
        "id:json req:str? slots:ints? key:json? via:str? reason:str? direction:str?",
    ),
    _kind(
        "transfer_fail",
        "transfer",
        "id:json req:str? slots:ints? key:json? via:str? reason:str? direction:str?",
    ),
    _kind("deferred_write", "transfer", "req:str pos:ints"),
    _kind("lut", "lut", "full:ints swa:ints"),
    _kind("launch", "launch", "step:int req:str slots:ints? row:int? stream:str?"),
    # at is ours: at the head of a cut, the i of the event that did this.
    _kind("accept", "spec", "req:str nodes:ints tokens:ints committed_len:int at:int?"),
    _kind("fork", "fork", "parent:str child:str shared:ints copy_on_write:json?"),
    _kind("future_put", "future", "ring:int req:str token:int"),
    _kind("future_get", "future", "ring:int req:str token:int"),
    _kind("adapter", "namespace", "name:str version:json"),
    _kind(
        "kv_hash",
        "kv_hash",
        "phase:str step:int slots:ints hash:ints pool:str? half:str? layer:int?",
    ),
    _kind(
        "sidecar_hash", "sidecar_hash", "phase:str step:int slots:ints hash:ints name:str pool:str?"
    ),
    # Ours: the canary rows that slots hold, written at the head of a cut (docs/trace-format.md).
    # lineage tells chains with unknown beginnings apart. Of the slots, unlinked are tree nodes
    # without a link, unhashed were written without a fingerprint (absent: those whose real_kv_hash
    # is 0), unknown hold what no event shows. The writer fields are parallel to slots: the event
    # that wrote the slot last, and of a forward its request, its step (-1: no forward wrote it),
    # where the token belonged, and the namespace; not_owned are slots that were not their writer's,
    # verified those that a verification of drafts wrote, proposed those whose token a draft
    # proposed.
    _kind(
        "canary_rows",
        "canary_rows",
        "worker:str pool:str half:str slots:ints token:ints position:ints prev_hash:ints "
        "real_kv_hash:ints written_at:ints? lineage:ints? unlinked:ints? unhashed:ints? "
        "unknown:ints? writer:strs? writer_step:ints? writer_event:ints? writer_position:ints? "
        "namespace:strs? not_owned:ints? verified:ints? proposed:ints?",
    ),
    # Ours: what the recorder says about the recording itself; refused is the event in whose place
    # it stands, which named what the pool does not have (docs/trace-format.md).
    _kind("recording_ended", "recording", "reason:str refused:json?"),
    _kind("triggered", "recording", "by:str text:str?"),
)

KINDS: Mapping[str, EventKind] = MappingProxyType({kind.name: kind for kind in _KINDS})

#: Fields that any event may carry besides ``kind`` and ``i``.
COMMON_FIELDS = (Field("t", FieldType.INT, False), Field("rank", FieldType.JSON, False))

#: Family of the recorder's own events; a header's ``records`` need not name it.
RECORDING_FAMILY = "recording"

#: Every entry that the header's ``records`` may name. ``graph`` and ``namespace`` cover fields of
#: ``forward``; ``canary_rows`` and ``recording`` are ours.
FAMILIES = tuple(
    dict.fromkeys([*(kind.family for kind in _KINDS), "graph", "namespace", "canary_rows"])
)

PHASES = ("before", "after", "sweep")
WORKERS = ("target", "draft")
#: Pools whose slot numbers are checked against the header's pool; others are host or remote.
DEVICE_POOLS = ("full", "swa", "draft")
MAX_LINE_BYTES = 64 << 20
#: Kinds of one trace, unknown ones included: far more than any recorder has.
MAX_KINDS = 1000
