"""Where compiled kernels are kept between runs.

The folder's name carries a fingerprint of the sources: Numba itself notices a change of the file
that defines a kernel, but not of one that the kernel calls into. Nothing here imports Numba.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

#: What is marked as compiled: the kernels that every replay needs, and that of whole events.
ALL, EVENTS = "complete", "complete-events"


@cache
def cache_dir() -> Path | None:
    """The folder for this version's kernels, or None if no place is writable.

    The first that is writable of: ``NUMBA_CACHE_DIR``, the package's own ``__pycache__``, the
    user's cache folder.
    """
    name = f"kvcanary-{_fingerprint()}"
    return next((base / name for base in _places() if _is_writable(base)), None)


def is_complete(what: str) -> bool:
    """Whether ``mark_complete`` was called for this version's folder, and ``what``."""
    folder = cache_dir()
    return folder is not None and (folder / what).exists()


def mark_complete(what: str) -> None:
    """Note that the kernels called ``what`` have been compiled into the folder."""
    folder = cache_dir()
    if folder is not None:
        folder.mkdir(exist_ok=True)
        (folder / what).touch()


def _places() -> list[Path]:
    places = [_package_cache()]
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        places.insert(0, Path(given))
    user = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return [*places, Path(user) / "kvcanary"]


def _package_cache() -> Path:
    return Path(__file__).resolve().parent / "__pycache__"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _fingerprint() -> str:
    here = Path(__file__).resolve().parent
    abi = here.parents[1] / "abi"
    digest = hashlib.sha256(f"{version('numba')} {sys.implementation.cache_tag}".encode())
    for path in [*sorted(here.glob("*.py")), abi / "constants.py", abi / "faults.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
