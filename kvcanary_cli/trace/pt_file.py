"""Open a ``torch.save`` file as flat numpy arrays over a memory map, without torch.

Reading it this way needs no import of torch (seconds) and runs nothing from the file. Every byte
is held against the archive's checksums first, so a damaged file is refused, never misread.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.errors import DamagedTraceError, TraceError
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.pt_archive import (
    AGAIN,
    LOCAL_HEADER_BYTES,
    LOCAL_HEADER_MAGIC,
    PtArchive,
)
from kvcanary_cli.trace.pt_pickle import TensorRef, read_pickle

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_MAX_PICKLE_BYTES = 64 << 20
#: What zipfile raises on archives that are damaged or that it does not support.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, KeyError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, IndexError, MemoryError),
)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """The dictionary of a ``torch.save`` file.

    Attributes:
        values: Name to value; a tensor is a read-only one-dimensional array over the memory map.
        archive: The map.
    """

    values: dict[str, Any]
    archive: PtArchive


def load_dictionary(path: Path) -> LoadedFile:
    """Load the dictionary of a ``torch.save`` file.

    Raises:
        TraceError: The file is damaged, or needs more than plain tensors.
    """
    name = str(path)
    try:
        archive = PtArchive(path)
        records = archive.records
        root = _root(records, name)
        value = read_pickle(archive.read(records[f"{root}/data.pkl"]), name)
        byteorder = records.get(f"{root}/byteorder")
        if byteorder is not None and archive.read(byteorder) != b"little":
            raise TraceError(name, "the tensors are not little endian", hint=AGAIN)
    except _ZIP_ERRORS as error:
        raise DamagedTraceError(
            name, f"the file is truncated or damaged ({error})", hint=AGAIN
        ) from None
    except OSError as error:
        # zipfile seeks to wherever a damaged directory points.
        raise DamagedTraceError(name, f"the file cannot be read ({error})", hint=AGAIN) from None
    if not isinstance(value, dict):
        raise TraceError(name, "the file holds no dictionary", hint="is this file a trace?")
    values = {
        key: _array(item, archive, root, name, key) if isinstance(item, TensorRef) else item
        for key, item in value.items()
    }
    return LoadedFile(values, archive)


def leading_pickle(path: Path) -> dict[str, Any] | None:
    """The dictionary at the start of a truncated file, tensors as references; None if it is gone.

    ``torch.save`` writes the pickle first, so a file that was cut later still says what it held.
    """
    with path.open("rb") as file:
        head = file.read(LOCAL_HEADER_BYTES)
        if len(head) < LOCAL_HEADER_BYTES or not head.startswith(LOCAL_HEADER_MAGIC):
            return None
        name_bytes, extra_bytes = struct.unpack("<HH", head[26:30])
        if not file.read(name_bytes).endswith(b"/data.pkl"):
            return None
        file.seek(extra_bytes, 1)
        data = file.read(_MAX_PICKLE_BYTES)
    try:
        value = read_pickle(data, str(path))
    except TraceError:
        return None
    return value if isinstance(value, dict) else None


def _root(records: dict[str, zipfile.ZipInfo], name: str) -> str:
    roots = [r.removesuffix("/data.pkl") for r in records if r.endswith("/data.pkl")]
    if len(roots) != 1:
        raise TraceError(
            name, "the archive has no data.pkl, expected a torch.save file", hint="is it a trace?"
        )
    pickled = records[f"{roots[0]}/data.pkl"]
    if pickled.file_size > _MAX_PICKLE_BYTES:
        raise TraceError(
            name,
            f"its pickle has {pickled.file_size} bytes, expected flat tensors beside a small one",
            hint="write the trace again with `kvcanary trace convert`",
        )
    return roots[0]


def _array(ref: TensorRef, archive: PtArchive, root: str, name: str, key: str) -> NDArray[Any]:
    """One tensor as an array over the map; it may lie at any address."""

    def fail(what: str) -> TraceError:
        return DamagedTraceError(f"{name}, column {printable(key)}", what, hint=AGAIN)

    dtype = np.dtype(ref.dtype)
    info = archive.records.get(f"{root}/data/{ref.storage}")
    if info is None:
        raise fail(f"its storage '{ref.storage[:40]}' is missing from the archive")
    if len(ref.size) != 1 or (ref.size[0] > 1 and ref.stride != (1,)):
        raise fail(f"expected a flat tensor, found shape {ref.size} with stride {ref.stride}")
    if info.file_size < ref.items * dtype.itemsize or ref.offset + ref.size[0] > ref.items:
        raise fail(f"expected {ref.offset + ref.size[0]} items, its storage is shorter")
    start = archive.start(info)
    if start is None:
        raise fail("its storage has no header in the archive")
    start += ref.offset * dtype.itemsize
    if start + ref.size[0] * dtype.itemsize > len(archive.map):
        raise fail("its storage ends behind the end of the file")
    return np.ndarray(ref.size, dtype, buffer=archive.map, offset=start)
