"""The error of a trace that cannot be used."""

from __future__ import annotations

from kvcanary_cli.errors import InputError


class TraceError(InputError):
    """A trace that is malformed, damaged, unsafe, or of another format or version.

    Args:
        where: File and line, or file, event and column.
        what: What was expected there and what was found.
        hint: What to do next, or None.
    """

    def __init__(self, where: str, what: str, *, hint: str | None = None) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.where = where
        self.what = what


class DamagedTraceError(TraceError):
    """A file that ends early or whose bytes have changed; what it held may be lost, not wrong."""
