"""The header of a trace: who recorded it, the pool's geometry, what was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.fields import describe
from kvcanary_cli.trace.schema import FAMILIES, FORMAT, VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAINS = ("splitmix64-mix3",)
TOKENS = ("raw", "salted", "absent")
RANK_DEFAULTS: Mapping[str, int] = MappingProxyType(
    {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1}
)
#: Slots, rows and row cells are int32 in every engine's tables.
_MAX_SIZE = (1 << 31) - 1
#: Sizes that no deployment comes near.
_MAX_SLOT = 1 << 28
_MAX_CELLS = 1 << 34
#: Of a slot, the canary's two rows of four 64-bit words; of a cell of the request table, an int32.
_SLOT_BYTES, _CELL_BYTES = 64, 4
_HINT = "see docs/trace-format.md, section Header"
#: Characters of an entry of ``not_recorded`` that are shown.
MAX_LEFT_OUT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo:
    """Geometry of the KV pool and the request table.

    Attributes:
        slots: Usable slots; slot 0 is the padding slot.
        rows: Rows of the request table, the padding row 0 included.
        row_len: Cells of a row.
        page_size: Slots of a page.
        swa_slots: Usable slots of the sliding-window pool, 0 without one.
        swa_window: Window in tokens, 0 without one.
        reserved: Slots that no request may own.
        max_slot: Largest slot number.
        swa_max_slot: Largest slot number of the sliding-window pool.
    """

    slots: int
    rows: int
    row_len: int
    page_size: int
    swa_slots: int
    swa_window: int
    reserved: tuple[int, ...]
    max_slot: int
    swa_max_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """A parsed header.

    Attributes:
        raw: The header as it stands in the trace, for lossless conversion.
        engine_name: Engine that was recorded.
        engine_version: Its version, or None.
        rank: This rank's place: ``tp, tp_size, pp, pp_size, dp, dp_size`` and any further one.
        pool: Geometry.
        tokens: ``raw``, ``salted`` (keyed hashes) or ``absent``.
        records: Families that were recorded.
        unknown_records: Those of them that this version does not know.
        serving_args: The server's arguments, or None.
        chain: Hash chain of the canary that the trace belongs to.
        created_at: When the recording began, or None.
        starts_mid_run: Whether the server was already running then, so that slots may hold
            content whose writing the trace does not show.
        seal_interval_s: How often the recorder puts its events on disk, or None.
        not_recorded: What of the engine's KV the recorded families leave out, in words.
        blind_to: Root-cause classes that cannot show for that, whatever families there are.
    """

    raw: Mapping[str, Any]
    engine_name: str
    engine_version: str | None
    rank: Mapping[str, int]
    pool: PoolInfo
    tokens: str
    records: frozenset[str]
    unknown_records: tuple[str, ...]
    serving_args: Mapping[str, Any] | None
    chain: str
    created_at: str | None
    starts_mid_run: bool
    seal_interval_s: float | None = None
    not_recorded: tuple[str, ...] = ()
    blind_to: frozenset[str] = frozenset()


class _Reader:
    """Takes typed values out of one JSON object of the header, and names what does not fit."""

    def __init__(self, where: str, prefix: str, obj: Mapping[str, Any]) -> None:
        self._where, self._prefix, self._obj = where, prefix, obj

    def fail(self, name: str, expected: str) -> TraceError:
        found = describe(self._obj[name]) if name in self._obj else "nothing"
        return TraceError(
            self._where,
            f"header field '{self._prefix}{name}' must be {expected}, found {found}",
            hint=_HINT,
        )

    def integer(self, name: str, default: int | None, minimum: int) -> int:
        value = self._obj.get(name, default)
        if type(value) is not int or not minimum <= value <= _MAX_SIZE:
            raise self.fail(name, f"an integer from {minimum} to {_MAX_SIZE}")
        return value

    def slots(self, name: str, default: int | None, minimum: int) -> int:
        value = self.integer(name, default, minimum)
        if value > _MAX_SLOT:
            raise self.too_large(
                f"'{self._prefix}{name}' is {value}: canary rows of {value * _SLOT_BYTES} bytes, "
                f"expected at most {_MAX_SLOT} slots"
            )
        return value

    def too_large(self, what: str) -> TraceError:
        return TraceError(self._where, f"header field {what}", hint=_HINT)

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self._obj.get(name)
        if (value is None and required) or not isinstance(value, str | None):
            raise self.fail(name, "a string")
        return value

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        value = self._obj.get(name, default)
        if value not in known or not isinstance(value, str):
            raise self.fail(name, " or ".join(f"'{k}'" for k in known))
        return value

    def obj(self, name: str) -> Mapping[str, Any] | None:
        value = self._obj.get(name)
        if not isinstance(value, dict | None):
            raise self.fail(name, "an object")
        return value

    def strings(self, name: str, default: list[str] | None) -> list[str]:
        value = self._obj.get(name, default)
        if not isinstance(value, list) or not all(isinstance(s, str) for s in value):
            raise self.fail(name, "a list of strings")
        return value

    def seconds(self, name: str) -> float | None:
        value = self._obj.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not 0 < value < _MAX_SIZE:
            raise self.fail(name, "a positive number of seconds")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self._obj.get(name, False)
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value


def parse_header(obj: Any, where: str) -> TraceHeader:
    """Parse a header object.

    Args:
        obj: The JSON value of the first line.
        where: File and line, for messages.

    Raises:
        TraceError: It is no header, of another format or version, or a field does not fit.
    """
    if not isinstance(obj, dict) or obj.get("kind") != "header":
        kind = f"an event of kind {describe(obj.get('kind'))}" if isinstance(obj, dict) else "data"
        raise TraceError(
            where,
            f'the header is missing: expected an object with "kind": "header", found {kind}',
            hint="the first line of a trace is its header; is this file a trace?",
        )
    read = _Reader(where, "", obj)
    if obj.get("format") != FORMAT:
        raise read.fail("format", f"'{FORMAT}'")
    version = obj.get("version")
    if type(version) is not int or version not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise TraceError(
            where,
            f"trace version {describe(version)} is not known; this kvcanary reads: {known}",
            hint="upgrade kvcanary, or record the trace again with this version",
        )
    engine = _Reader(where, "engine.", _required(read, "engine"))
    records = read.strings("records", None)
    return TraceHeader(
        raw=obj,
        engine_name=engine.text("name", required=True) or "",
        engine_version=engine.text("version"),
        rank=_rank(where, read.obj("rank")),
        pool=_pool(where, _required(read, "pool")),
        tokens=read.choice("tokens", TOKENS, "raw"),
        records=frozenset(records),
        unknown_records=tuple(r for r in records if r not in FAMILIES),
        serving_args=read.obj("serving_args"),
        chain=read.choice("chain", CHAINS, CHAINS[0]),
        created_at=read.text("created_at"),
        starts_mid_run=read.boolean("starts_mid_run"),
        seal_interval_s=read.seconds("seal_interval_s"),
        not_recorded=tuple(read.strings("not_recorded", [])),
        blind_to=frozenset(read.strings("blind_to", [])),
    )


def _required(read: _Reader, name: str) -> Mapping[str, Any]:
    value = read.obj(name)
    if value is None:
        raise read.fail(name, "an object")
    return value


def _rank(where: str, obj: Mapping[str, Any] | None) -> Mapping[str, int]:
    given = {} if obj is None else obj
    read = _Reader(where, "rank.", given)
    rank = dict(RANK_DEFAULTS)
    for name in given:
        rank[name] = read.integer(name, None, 1 if name.endswith("_size") else 0)
    for name in ("tp", "pp", "dp"):
        if f"{name}_size" in given and rank[name] >= rank[f"{name}_size"]:
            raise read.fail(name, f"smaller than rank.{name}_size ({rank[f'{name}_size']})")
    return MappingProxyType(rank)


def _pool(where: str, obj: Mapping[str, Any]) -> PoolInfo:
    read = _Reader(where, "pool.", obj)
    slots = read.slots("slots", None, 1)
    swa_slots = read.slots("swa_slots", 0, 0)
    max_slot = read.slots("max_slot", slots, slots)
    rows, row_len = read.integer("rows", None, 1), read.integer("row_len", None, 1)
    if rows * row_len > _MAX_CELLS:
        raise read.too_large(
            f"'pool.rows' and 'pool.row_len' make {rows * row_len} cells: a table of "
            f"{rows * row_len * _CELL_BYTES} bytes, expected at most {_MAX_CELLS} cells"
        )
    reserved = obj.get("reserved", [0])
    if not isinstance(reserved, list) or not all(
        type(s) is int and 0 <= s <= max_slot for s in reserved
    ):
        raise read.fail("reserved", f"a list of slots from 0 to {max_slot}")
    return PoolInfo(
        slots=slots,
        rows=rows,
        row_len=row_len,
        page_size=read.integer("page_size", 1, 1),
        swa_slots=swa_slots,
        swa_window=read.integer("swa_window", 0, 0),
        reserved=tuple(reserved),
        max_slot=max_slot,
        # Both pools end with the same kind of last page.
        swa_max_slot=read.slots(
            "swa_max_slot", swa_slots + (max_slot - slots if swa_slots else 0), swa_slots
        ),
    )
