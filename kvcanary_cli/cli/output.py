"""Where a command's words go: results to stdout, everything else to stderr.

Nothing is cut: a pipe has no width to fit, a terminal folds. Colour follows NO_COLOR and the
terminal. A closed pipe ends the printing and never changes the exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError, KvCanaryError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Wider than any table: in a pipe or a file every row keeps to one line.
UNBOUNDED_WIDTH = 100_000


class _PipeClosedError(Exception):
    """The reader of stdout went away."""


def _result_console(target: IO[str], width: int | None) -> Console:
    # Imported here: `--version` and `--help` do without Rich, which takes longer than they do.
    from rich.console import Console

    class ResultConsole(Console):
        def on_broken_pipe(self) -> None:
            raise _PipeClosedError

    return ResultConsole(file=target, width=width, soft_wrap=False, highlight=False)


class Output:
    """Prints one command's result and its remarks.

    Args:
        file: Where the result goes; None = stdout.
        quiet: Whether remarks are kept back.
    """

    def __init__(self, file: IO[str] | None = None, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._file = file
        self._closed = False
        self.is_terminal = file is None and sys.stdout.isatty()

    @cached_property
    def _console(self) -> Console:
        target = self._file if self._file is not None else sys.stdout
        return _result_console(target, None if self.is_terminal else UNBOUNDED_WIDTH)

    @cached_property
    def stderr(self) -> Console:
        """The console of remarks."""
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    @property
    def width(self) -> int:
        """Columns that a table may take."""
        return self._console.width

    def print(self, what: RenderableType = "") -> None:
        """Print a renderable; strings are printed as they are, without markup."""
        if self._closed:
            return
        # Lines for grep and for copying stay one line: the terminal folds them, not we.
        whole = isinstance(what, str) or getattr(what, "no_wrap", None) is True
        try:
            self._console.print(what, markup=False, soft_wrap=whole)
        except (_PipeClosedError, BrokenPipeError):
            self._close_pipe()
        except OSError as error:
            self._refused(error)

    def write(self, parts: Iterable[str]) -> None:
        """Write text as it is (JSON and its kin)."""
        if self._closed:
            return
        target: IO[Any] = self._file if self._file is not None else sys.stdout
        try:
            for part in parts:
                target.write(part)
            target.flush()
        except BrokenPipeError:
            self._close_pipe()
        except OSError as error:
            self._refused(error)

    def note(self, text: str) -> None:
        """A remark on stderr, unless quiet."""
        if not self.quiet:
            self.stderr.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A warning on stderr, also when quiet."""
        self.stderr.print(f"warning: {text}", markup=False, soft_wrap=True, style="yellow")

    def error(self, error: KvCanaryError) -> None:
        self.stderr.print(f"error: {error.message}", markup=False, soft_wrap=True, style="bold red")
        if error.hint:
            self.stderr.print(f"help: {error.hint}", markup=False, soft_wrap=True)

    def _refused(self, error: OSError) -> None:
        """Stdout takes no more (a full disk behind ``>``), or a file, which its opener names."""
        if self._file is not None:
            raise error
        self._close_pipe()
        raise InputError(
            f"stdout: cannot be written: {error.strerror or error}",
            hint="what was printed is not whole; write to another place",
        ) from error

    def _close_pipe(self) -> None:
        self._closed = True
        if self._file is None:
            # The interpreter flushes stdout once more at exit, which must not fail again.
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, sys.stdout.fileno())
            os.close(devnull)


@contextmanager
def result_output(path: Path | None, *, quiet: bool = False) -> Iterator[Output]:
    """An ``Output`` whose result goes to ``path``, whole or not at all; None or - = stdout.

    The file is written beside its place and renamed at the end, so that a run that fails leaves
    what stood there, even if it was the input.

    Raises:
        InputError: It cannot be written.
    """
    if path is None or str(path) == "-":
        yield Output(quiet=quiet)
        return
    special = path.exists() and not path.is_file()
    place = path if special else path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = place.open("w", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            yield Output(file, quiet=quiet)
        if not special:
            place.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if not special:
            place.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be written: {error.strerror}", hint="choose another path for -o"
    )
