"""Traces behind a URL (``s3://``, ``gs://``, ``hf://``, ``file://``, ...), reached through fsspec.

``RemotePath`` stands in for a ``pathlib.Path``: readers ask it for what lies there and open it as
they open a file of this machine. What is opened is fetched first, once, because traces are mapped
into memory; the copies are gone when the trace is closed.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError
from kvcanary_cli.trace.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://", re.IGNORECASE)
_GLOB = frozenset("*?[")
_REACH = "check the address, and that this machine may read it"


def is_remote(name: str) -> bool:
    """Whether a trace's name is a URL and no path of this machine."""
    return _URL.match(name) is not None


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Whatever a store's client raises, as our errors.

    It must be no ``OSError``: to a reader that is a damaged file, and a recording may end in one.

    Raises:
        FileNotFoundError: Nothing is there.
        InputError: fsspec, or its client for this kind of store, is not installed.
        TraceError: It cannot be reached or read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    except (InputError, MemoryError):
        raise
    except ImportError as error:
        raise InputError(
            f"{url}: reading it needs a package that is not installed ({error})",
            hint="pip install 'kvcanary[remote]'",
        ) from error
    except Exception as error:
        # Clients of stores have error types of their own, with nothing in common.
        sentence = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(url, f"cannot be read: {sentence}", hint=_REACH) from error


@dataclass(frozen=True, slots=True)
class RemoteStat:
    """The one thing that readers ask of ``stat()``."""

    st_size: int


class _Store:
    """A store, and the copies of what was opened."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copies: dict[str, str] = {}

    def local_copy(self, path: str) -> str:
        """The name of a copy of ``path`` on this machine."""
        with self._lock:
            copy = self._copies.get(path)
            if copy is None:
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="kvcanary-")
                copy = os.path.join(self._folder.name, str(len(self._copies)))
                self.fs.get_file(path, copy)
                self._copies[path] = copy
            return copy


class RemotePath:
    """A file or folder in a store."""

    def __init__(self, url: str, *, _place: tuple[_Store, str] | None = None) -> None:
        """Find the store that ``url`` names.

        Raises:
            InputError: A package is missing.
            TraceError: There is no such kind of store.
        """
        self._url = url
        if _place is None:
            with _reaching(url):
                import fsspec.core

                fs, path = fsspec.core.url_to_fs(url)
            _place = _Store(fs), path
        self._store, self._path = _place

    def __str__(self) -> str:
        return self._url

    def __fspath__(self) -> str:
        """The name of a copy on this machine."""
        with _reaching(self._url):
            return self._store.local_copy(self._path)

    def resolve(self) -> Path:
        """The copy, as ``numpy.memmap`` asks for it."""
        return Path(self)

    @property
    def name(self) -> str:
        return self._path.rstrip("/").rpartition("/")[2]

    @property
    def real(self) -> str:
        """What tells this place from others; in a store of files, behind all links."""
        protocol = self._store.fs.protocol
        is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        return os.path.realpath(self._path) if is_local else self._url

    def __truediv__(self, name: str) -> RemotePath:
        place = (self._store, f"{self._path.rstrip('/')}/{name}")
        return RemotePath(f"{self._url.rstrip('/')}/{name}", _place=place)

    def _info(self) -> dict[str, Any] | None:
        # fsspec's own isdir and isfile take a store that does not answer for a missing file.
        with _reaching(self._url):
            try:
                found: dict[str, Any] = self._store.fs.info(self._path)
            except FileNotFoundError:
                return None
            return found

    def is_dir(self) -> bool:
        info = self._info()
        return info is not None and info["type"] == "directory"

    def is_file(self) -> bool:
        info = self._info()
        return info is not None and info["type"] != "directory"

    def exists(self) -> bool:
        return self._info() is not None

    def is_fifo(self) -> bool:
        return False

    def is_char_device(self) -> bool:
        return False

    def stat(self) -> RemoteStat:
        info = self._info()
        if info is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._url)
        return RemoteStat(int(info.get("size") or 0))

    def iterdir(self) -> Iterator[RemotePath]:
        with _reaching(self._url):
            found = self._store.fs.ls(self._path, detail=False)
        paths = (str(path).rstrip("/") for path in found)
        # Some stores list the folder itself as an empty object in it.
        inside = (path for path in paths if path != self._path.rstrip("/"))
        return (self / path.rpartition("/")[2] for path in inside)

    def matches(self) -> list[RemotePath]:
        """What a URL with ``*`` stands for; the URL itself if it has none."""
        if not _GLOB & set(self._path):
            return [self]
        fs = self._store.fs
        with _reaching(self._url):
            found = [str(path) for path in fs.glob(self._path)]
            return [RemotePath(fs.unstrip_protocol(path)) for path in found]

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return bytes(file.read())

    def open(self, mode: str = "rb", buffering: int = -1) -> IO[Any]:
        return Path(self).open(mode, buffering)
