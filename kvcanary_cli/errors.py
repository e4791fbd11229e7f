"""Errors that end a command: one sentence, one next step, one exit code.

The exit codes are a contract (docs/output.md). Library code raises these, only ``cli.main``
prints them.
"""

from __future__ import annotations

import errno

EXIT_CLEAN = 0
EXIT_FOUND = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 3
EXIT_INPUT = 4
EXIT_NOTHING_CHECKED = 5
EXIT_INTERRUPTED = 130


class KvCanaryError(Exception):
    """An error that a command reports as text; ``exit_code`` is the command's exit status.

    Args:
        message: What went wrong, where, expected against found.
        hint: What to do next, or None.
    """

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KvCanaryError):
    """Wrong usage: an option or argument that does not fit."""

    exit_code = EXIT_USAGE


class InputError(KvCanaryError):
    """Input that cannot be used: unreadable, malformed, unsafe or incompatible."""

    exit_code = EXIT_INPUT


class NothingCheckedError(KvCanaryError):
    """Nothing was checked: an empty trace, or filters that left nothing."""

    exit_code = EXIT_NOTHING_CHECKED


# Of a write: no space, no quota, larger than files may be.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REPORT = (
    "this is a bug in kvcanary; please report it with the command and, if you may share it, the "
    "trace (kvcanary --debug ... shows the traceback)"
)


def as_known(error: Exception) -> KvCanaryError:
    """Any exception as the error that a command reports."""
    if isinstance(error, KvCanaryError):
        return error
    if _is_out_of_memory(error):
        return InputError(
            "out of memory: this input needs more than the machine has free",
            hint="cut the trace first (kvcanary trace cut --help), or use a larger machine",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return InputError(
            f"{error.filename or 'stdout'}: cannot be written: {error.strerror}",
            hint="make room there, or write to another place",
        )
    return KvCanaryError(f"internal error: {type(error).__name__}: {error}", hint=_REPORT)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed; torch says so by a RuntimeError, on each device its own."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text
    )
