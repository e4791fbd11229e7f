"""SHA-256 of files, beside whatever else is done with them."""

from __future__ import annotations

import hashlib
import mmap
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Large enough that a thread seldom asks for the interpreter lock: it may wait for it as long as
#: hashing some MiB takes. No more than this is resident.
_CHUNK_BYTES = 2 << 20


def files_sha256(paths: Sequence[Path], head: bytes = b"") -> str:
    """Hex digest of ``head`` and the files' bytes, one after another.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256(head)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            try:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                continue  # an empty file, which has no pages
            with data:
                for at in range(0, len(data), _CHUNK_BYTES):
                    _update(digest, data, at, min(at + _CHUNK_BYTES, len(data)))
    return digest.hexdigest()


def _update(digest: hashlib._Hash, data: mmap.mmap, start: int, stop: int) -> None:
    with memoryview(data) as view, view[start:stop] as part:
        digest.update(part)
    if hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, start, stop - start)


class BackgroundDigest:
    """The digest of files, computed by a thread of its own from now on."""

    def __init__(self, paths: Sequence[Path], head: bytes = b"") -> None:
        self._paths, self._head = list(paths), head
        self._hex = ""
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="kvcanary-sha256", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._hex = files_sha256(self._paths, self._head)
        except Exception as error:
            # Whatever it is, it is the caller's to hear of: a digest that is not one is none.
            self._error = error

    def result(self) -> str:
        """Wait for the digest.

        Raises:
            OSError: A file cannot be read.
            TraceError: A store cannot be reached.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._hex
