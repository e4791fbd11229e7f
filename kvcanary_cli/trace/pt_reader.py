"""Read a ``.pt`` trace: checks its tables, and cuts segments of bounded size from the map."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace import pt_layout as layout
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.header import TraceHeader, parse_header
from kvcanary_cli.trace.jsonl import parse_text
from kvcanary_cli.trace.located import LocatedSegment
from kvcanary_cli.trace.pt_compiled import CompiledCutter, fits, pays
from kvcanary_cli.trace.pt_file import LoadedFile, load_dictionary
from kvcanary_cli.trace.pt_slices import Cutter, StoredColumn, StoredTable
from kvcanary_cli.trace.reader import TraceReader
from kvcanary_cli.trace.schema import COMMON_FIELDS, FORMAT, KINDS, MAX_KINDS, FieldType
from kvcanary_cli.trace.segment import EXTRA, MAX_SEGMENT_EVENTS, MAX_SEGMENT_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_HINT = "write the trace again with `kvcanary trace convert`"
#: After so many values, some 2 MiB of the file, its pages are given back.
_RELEASE_VALUES = 1 << 19
#: Offsets and kinds are checked so many at a time.
_CHECKED_AT_ONCE = 1 << 20


@dataclass(slots=True)
class StoredTrace:
    """The checked dictionary of a ``.pt`` file.

    Attributes:
        name: File, for messages.
        header: Parsed header.
        tables: Kind to its columns, in order of the codes in ``kind``.
        kind: [events] code of each event's kind.
        index: [events] the events' ``i``.
        strings: UTF-8 text of all strings.
        string_offsets: [strings + 1].
        release: Gives the pages of the map back that were read.
    """

    name: str
    header: TraceHeader
    tables: dict[str, StoredTable]
    kind: NDArray[Any]
    index: NDArray[Any]
    strings: NDArray[np.uint8]
    string_offsets: NDArray[Any]
    release: Callable[[], None]

    def segments(self, *, compiled: bool = False) -> Iterator[LocatedSegment]:
        """Cut the trace into segments; only one is held widened at a time.

        Args:
            compiled: Whether compiled code does it, which ``pt_compiled.pays`` says.

        Raises:
            TraceError: A column is inconsistent.
        """
        cutter = self._cutter(compiled)
        start = read = 0
        while start < len(self.kind):
            segment, values = cutter.cut(MAX_SEGMENT_EVENTS, MAX_SEGMENT_VALUES)
            read += values
            if read >= _RELEASE_VALUES:
                self.release()
                read = 0
            yield LocatedSegment(segment, _place(self.name, start, segment.index))
            start += len(segment)
            del segment
        cutter.check_end()

    def _cutter(self, compiled: bool) -> Cutter:
        return CompiledCutter(self) if compiled and fits(self) else Cutter(self)


def _place(name: str, start: int, index: NDArray[np.int64]) -> Any:
    return lambda k: f"{name}: event {start + k} (i={index[k]})"


class PtReader(TraceReader):
    """A ``.pt`` file."""

    _reads_ahead = 1

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._trace = load_stored(path)
        self.header = self._trace.header
        self.bytes_total = path.stat().st_size

    def _located_segments(self) -> Iterator[LocatedSegment]:
        done = 0
        self.bytes_read = 0
        assert self.bytes_total is not None
        for located in self._trace.segments(compiled=pays(self.bytes_total)):
            done += len(located.segment)
            # Columns are read side by side, so progress goes by events.
            self.bytes_read = self.bytes_total * done // max(1, len(self._trace.kind))
            yield located
            del located

    def _digested(self) -> tuple[list[Path], bytes]:
        return [self._path], b""


def load_stored(path: Path) -> StoredTrace:
    """Open a ``.pt`` trace and check that its dictionary is whole.

    Raises:
        TraceError: It is damaged, unsafe, or not of this format or version.
    """
    name = str(path)
    loaded = load_dictionary(path)
    take = _Taker(name, loaded)
    if take.state.get(layout.FORMAT_KEY) != FORMAT:
        raise TraceError(
            name,
            f"expected a dictionary with 'format' = '{FORMAT}'",
            hint="is this file a trace? checkpoints and captures have other dictionaries",
        )
    header = parse_header(
        parse_text(take.text(layout.HEADER_KEY), f"{name}, header"), f"{name}, header"
    )
    found = take.state.get(layout.LAYOUT_KEY)
    if type(found) is not int or found != layout.LAYOUT:
        raise take.fail(
            layout.LAYOUT_KEY, f"{layout.LAYOUT} (a newer kvcanary may have written it)"
        )
    kind, index = take.integers(layout.KIND_KEY), take.integers(layout.INDEX_KEY)
    if len(kind) != len(index) or take.state.get(layout.EVENTS_KEY) != len(kind):
        raise take.fail(
            layout.EVENTS_KEY, f"as many as 'kind' ({len(kind)}) and 'i' ({len(index)}) have"
        )
    strings = take.integers(layout.STRINGS_KEY)
    string_offsets = take.integers(layout.STRING_OFFSETS_KEY)
    take.check_offsets("column strings", string_offsets, len(string_offsets) - 1, len(strings))
    if strings.dtype != np.uint8:
        raise take.fail(layout.STRINGS_KEY, "a uint8 tensor")
    tables = _tables(take)
    for at in range(0, len(kind), _CHECKED_AT_ONCE):
        some = kind[at : at + _CHECKED_AT_ONCE]
        if int(some.min()) < 0 or int(some.max()) >= len(tables):
            raise take.fail(layout.KIND_KEY, f"codes from 0 to {len(tables) - 1}")
        take.release()
    return StoredTrace(name, header, tables, kind, index, strings, string_offsets, take.release)


class _Taker:
    """Takes entries out of the dictionary, or says what is wrong with them.

    What has been looked at is given back to the system, here as everywhere.
    """

    def __init__(self, name: str, loaded: LoadedFile) -> None:
        self.name = name
        self.state = loaded.values
        self.release = loaded.archive.release

    def fail(self, key: str, expected: str) -> TraceError:
        value = self.state.get(key)
        found = "nothing" if value is None else f"{value!r}"[:60]
        if isinstance(value, np.ndarray):
            found = f"a {value.dtype} tensor of {value.size} items"
        return TraceError(
            f"{self.name}, column {printable(key)}",
            f"expected {expected}, found {found}",
            hint=_HINT,
        )

    def text(self, key: str) -> str:
        value = self.state.get(key)
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def integers(self, key: str) -> NDArray[Any]:
        value = self.state.get(key)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise self.fail(key, "a tensor of integers")
        return value

    def check_offsets(self, what: str, offsets: NDArray[Any], rows: int, values: int) -> None:
        """Check that ``offsets`` cuts ``values`` items into ``rows`` runs, in order.

        Raises:
            TraceError: It does not.
        """
        where = f"{self.name}, {what}"
        if len(offsets) != rows + 1 or rows < 0:
            raise TraceError(
                where,
                f"has {len(offsets)} offsets, expected {rows + 1} (one more than rows)",
                hint=_HINT,
            )
        if int(offsets[0]) != 0 or int(offsets[-1]) != values:
            raise TraceError(
                where,
                f"its offsets run from {offsets[0]} to {offsets[-1]}, expected 0 to {values}",
                hint=_HINT,
            )
        for at in range(0, rows, _CHECKED_AT_ONCE):
            some = offsets[at : at + _CHECKED_AT_ONCE + 1]
            if bool((some[1:] < some[:-1]).any()):
                raise TraceError(where, "its offsets go back, expected them to grow", hint=_HINT)
            self.release()


def _tables(take: _Taker) -> dict[str, StoredTable]:
    text = take.text(layout.TABLES_KEY)
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise take.fail(layout.TABLES_KEY, "JSON") from None
    if not isinstance(listed, list) or len(listed) > MAX_KINDS:
        raise take.fail(layout.TABLES_KEY, f"a JSON list of at most {MAX_KINDS} tables")
    tables: dict[str, StoredTable] = {}
    for item in listed:
        match item:
            case {"kind": str(kind), "rows": int(rows), "columns": dict(columns)} if (
                kind not in tables and kind != "header" and rows >= 0 and type(rows) is int
            ):
                tables[kind] = _table(take, kind, rows, columns)
            case _:
                raise take.fail(layout.TABLES_KEY, "a kind, its rows and its columns, each once")
    return tables


def _table(take: _Taker, kind: str, rows: int, types: dict[str, Any]) -> StoredTable:
    spec = KINDS.get(kind)
    known = {f.name: f for f in (*COMMON_FIELDS, *(spec.fields if spec is not None else ()))}
    columns = {}
    for name, type_name in types.items():
        if type_name not in FieldType.__members__:
            raise take.fail(
                layout.TABLES_KEY, f"column types that this version knows, {kind}.{name}"
            )
        field_type = FieldType[type_name]
        expected = FieldType.JSON if name == EXTRA else known[name].type if name in known else None
        if expected is not None and field_type is not expected:
            raise take.fail(layout.TABLES_KEY, f"{kind}.{name} to be {expected.name}")
        columns[name] = _column(take, kind, name, field_type, rows)
    # Events without a required field are found here: that field is absent, or not all have it.
    for f in known.values():
        if (
            f.required
            and not (f.name == "input_ids" and json_tokens_absent(take))
            and (f.name not in columns or columns[f.name].present is not None)
        ):
            raise take.fail(layout.column_key(kind, f.name), f"{f.type.value} for every '{kind}'")
    return StoredTable(rows, columns)


def json_tokens_absent(take: _Taker) -> bool:
    """Whether the header says that no tokens were recorded."""
    return bool(json.loads(take.text(layout.HEADER_KEY)).get("tokens") == "absent")


def _column(take: _Taker, kind: str, name: str, field_type: FieldType, rows: int) -> StoredColumn:
    key = layout.column_key(kind, name)
    values = take.integers(key)
    offsets = None
    if field_type in (FieldType.INTS, FieldType.STRS):
        offsets = take.integers(layout.offsets_key(kind, name))
        take.check_offsets(f"column {printable(key)}", offsets, rows, len(values))
    elif len(values) != rows:
        raise take.fail(key, f"{rows} items (rows of its table)")
    present = take.state.get(layout.present_key(kind, name))
    if present is not None and not (
        isinstance(present, np.ndarray) and present.dtype == np.bool_ and len(present) == rows
    ):
        raise take.fail(layout.present_key(kind, name), f"a bool tensor of {rows} items")
    return StoredColumn(field_type, values, offsets, present)
