"""Token ids as the trace may hold them: as they are, as keyed hashes, or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_BYTES = 32
#: How long a rank waits for the one that makes the key: it writes right after it has the name, but
#: may have lost its CPU in between.
KEY_WAIT_S = 10.0
_KEY_POLL_S = 0.01
#: Permissions of everybody but the owner.
_OTHERS = 0o077
_MASK = (1 << 63) - 1


def key_path(recording: str) -> Path:
    """Where a recording's key lies: beside its folder, not in it."""
    return Path(f"{recording}.key")


def load_key(path: Path) -> bytes:
    """Read the key at ``path``; the first process of a recording makes it, with mode 0600.

    Raises:
        InputError: There is something else at that place.
        OSError: The file system refuses.
    """
    try:
        # Of several ranks that start at once, one gets the name; the others read what it writes.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return existing_key(path)
    key = secrets.token_bytes(KEY_BYTES)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return key


def existing_key(path: Path) -> bytes:
    """Read the key at ``path``, which others cannot read from then on; waits for who makes it.

    Raises:
        InputError: There is something else at that place.
        OSError: The file system refuses.
    """
    deadline = time.monotonic() + KEY_WAIT_S
    while True:
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            if path.stat().st_mode & _OTHERS:
                path.chmod(0o600)
            return key
        if len(key) > KEY_BYTES or time.monotonic() > deadline:
            raise InputError(
                f"{path}: expected the {KEY_BYTES} bytes of a recording's key, found {len(key)}",
                hint="give the recording another name, or move that file away",
            )
        time.sleep(_KEY_POLL_S)


class TokenCoder:
    """Turns token ids into what the trace holds."""

    def __init__(self, mode: str, key: bytes | None = None) -> None:
        """Prepare.

        Args:
            mode: ``raw``, ``salted`` or ``absent``.
            key: Key of the hash, for ``salted``.
        """
        self.mode = mode
        self._key = key or b""
        self._known: dict[int, int] = {}

    def encode(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] ids, or their 63-bit hashes; equal ids give equal hashes."""
        if self.mode != "salted":
            return ids
        unique, inverse = np.unique(ids, return_inverse=True)
        hashes = np.array([self._hash(token) for token in unique.tolist()], dtype=np.int64)
        out: NDArray[np.int64] = hashes[inverse.reshape(-1)] if len(ids) else ids
        return out

    def _hash(self, token: int) -> int:
        known = self._known.get(token)
        if known is None:
            digest = hashlib.blake2b(
                token.to_bytes(8, "little", signed=True), digest_size=8, key=self._key
            )
            known = self._known[token] = int.from_bytes(digest.digest(), "little") & _MASK
        return known
