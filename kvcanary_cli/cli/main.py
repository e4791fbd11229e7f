"""``main``: the one place that catches errors, prints them and exits."""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING

from kvcanary_cli.errors import EXIT_INTERRUPTED, KvCanaryError, as_known

if TYPE_CHECKING:
    from kvcanary_cli.cli.output import Output


class _Interrupted(BaseException):
    """Ctrl-C; not KeyboardInterrupt, which the command line library turns into exit code 1."""


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit status.

    Args:
        argv: Arguments without the program's name; None = ``sys.argv``.
    """
    arguments, debug = _without_debug(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGINT, _on_interrupt)
    # Most objects of a command stay to its end; looking through them after each few hundred new
    # ones is a tenth of a start, and some hundredths of a long replay.
    gc.set_threshold(100_000, 20, 100)
    failure: Exception
    try:
        # What takes time belongs in here: Ctrl-C may come at any moment.
        from kvcanary_cli.cli.app import app

        app(args=arguments, prog_name="kvcanary")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except _Interrupted:
        _output().note("interrupted: nothing was concluded")
        return EXIT_INTERRUPTED
    except KvCanaryError as error:
        known, failure = error, error
    except Exception as error:
        known, failure = as_known(error), error
    else:
        return 0
    if debug:
        traceback.print_exception(failure)
    _output().error(known)
    return known.exit_code


def _output() -> Output:
    from kvcanary_cli.cli.output import Output

    return Output()


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without our ``--debug``; what stands behind ``--`` is not ours."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [word for word in arguments[:end] if word != "--debug"]
    return [*ours, *arguments[end:]], len(ours) < end
