"""SHA-256 of files, beside whatever else is done with them."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Small enough that what was read is still in a core's own cache when it is hashed.
_CHUNK_BYTES = 1 << 17


def files_sha256(paths: Sequence[Path], head: bytes = b"") -> str:
    """Hex digest of ``head`` and the files' bytes, one after another.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256(head)
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(view[:count])
    return digest.hexdigest()


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
