"""Open a ``torch.save`` file as flat numpy arrays over a memory map, without torch.

Reading it this way needs no import of torch (seconds) and runs nothing from the file. Every byte
is held against the archive's checksums first, so a damaged file is refused, never misread.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.errors import DamagedTraceError, TraceError
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.pt_pickle import TensorRef, read_pickle

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_LOCAL_HEADER_BYTES = 30
_LOCAL_HEADER_MAGIC = b"PK\x03\x04"
_MAX_PICKLE_BYTES = 64 << 20
_AGAIN = "copy the file again from where it was recorded"
#: What zipfile raises on archives that are damaged or that it does not support.
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, KeyError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, IndexError, MemoryError),
)


def load_dictionary(path: Path) -> dict[str, Any]:
    """Load the dictionary of a ``torch.save`` file.

    Returns:
        Name to value; a tensor is a read-only one-dimensional array over the memory map.

    Raises:
        TraceError: The file is damaged, or needs more than plain tensors.
    """
    name = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            records = _check_archive(archive, name)
            root = _root(records, name)
            value = read_pickle(archive.read(records[f"{root}/data.pkl"]), name)
            byteorder = records.get(f"{root}/byteorder")
            if byteorder is not None and archive.read(byteorder) != b"little":
                raise TraceError(name, "the tensors are not little endian", hint=_AGAIN)
    except _ZIP_ERRORS as error:
        raise DamagedTraceError(
            name, f"the file is truncated or damaged ({error})", hint=_AGAIN
        ) from None
    except OSError as error:
        # zipfile seeks to wherever a damaged directory points.
        raise DamagedTraceError(name, f"the file cannot be read ({error})", hint=_AGAIN) from None
    if not isinstance(value, dict):
        raise TraceError(name, "the file holds no dictionary", hint="is this file a trace?")
    data = np.memmap(path, dtype=np.uint8, mode="r")
    return {
        key: _array(item, records, root, data, name, key) if isinstance(item, TensorRef) else item
        for key, item in value.items()
    }


def leading_pickle(path: Path) -> dict[str, Any] | None:
    """The dictionary at the start of a truncated file, tensors as references; None if it is gone.

    ``torch.save`` writes the pickle first, so a file that was cut later still says what it held.
    """
    with path.open("rb") as file:
        head = file.read(_LOCAL_HEADER_BYTES)
        if len(head) < _LOCAL_HEADER_BYTES or not head.startswith(_LOCAL_HEADER_MAGIC):
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


def _check_archive(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    records: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in records:
            raise DamagedTraceError(name, f"the archive holds '{info.filename}' twice", hint=_AGAIN)
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise TraceError(
                name,
                f"the record '{info.filename}' is compressed, expected what torch.save writes",
                hint="write the trace again with `kvcanary trace convert`",
            )
        records[info.filename] = info
    damaged = archive.testzip()
    if damaged is not None:
        raise DamagedTraceError(
            name, f"the record '{damaged}' is damaged (its checksum does not match)", hint=_AGAIN
        )
    return records


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


def _array(
    ref: TensorRef,
    records: dict[str, zipfile.ZipInfo],
    root: str,
    data: NDArray[np.uint8],
    name: str,
    key: str,
) -> NDArray[Any]:
    """One tensor as an array over the map; it may lie at any address."""

    def fail(what: str) -> TraceError:
        return DamagedTraceError(f"{name}, column {printable(key)}", what, hint=_AGAIN)

    dtype = np.dtype(ref.dtype)
    info = records.get(f"{root}/data/{ref.storage}")
    if info is None:
        raise fail(f"its storage '{ref.storage[:40]}' is missing from the archive")
    if len(ref.size) != 1 or (ref.size[0] > 1 and ref.stride != (1,)):
        raise fail(f"expected a flat tensor, found shape {ref.size} with stride {ref.stride}")
    if info.file_size < ref.items * dtype.itemsize or ref.offset + ref.size[0] > ref.items:
        raise fail(f"expected {ref.offset + ref.size[0]} items, its storage is shorter")
    header = bytes(data[info.header_offset : info.header_offset + _LOCAL_HEADER_BYTES])
    if len(header) < _LOCAL_HEADER_BYTES or not header.startswith(_LOCAL_HEADER_MAGIC):
        raise fail("its storage has no header in the archive")
    start = info.header_offset + _LOCAL_HEADER_BYTES + sum(struct.unpack("<HH", header[26:30]))
    start += ref.offset * dtype.itemsize
    if start + ref.size[0] * dtype.itemsize > len(data):
        raise fail("its storage ends behind the end of the file")
    return np.ndarray(ref.size, dtype, buffer=data, offset=start)
