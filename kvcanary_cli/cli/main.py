"""``main``: the one place that catches errors, prints them and exits."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from kvcanary_cli.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, KvCanaryError

_REPORT = (
    "this is a bug in kvcanary; please report it with the command and, if you may share it, the "
    "trace (kvcanary --debug ... shows the traceback)"
)


class _Interrupted(BaseException):
    """Ctrl-C; not KeyboardInterrupt, which the command line library turns into exit code 1."""


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit status.

    Args:
        argv: Arguments without the program's name; None = ``sys.argv``.
    """
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    signal.signal(signal.SIGINT, _on_interrupt)
    from kvcanary_cli.cli.app import app
    from kvcanary_cli.cli.output import Output

    try:
        app(args=[a for a in arguments if a != "--debug"], prog_name="kvcanary")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    except _Interrupted:
        Output().note("interrupted: nothing was concluded")
        return EXIT_INTERRUPTED
    except KvCanaryError as error:
        if debug:
            raise
        Output().error(error)
        return error.exit_code
    except MemoryError:
        if debug:
            raise
        Output().error(
            KvCanaryError("out of memory", hint="cut the trace first: kvcanary trace cut --help")
        )
        return EXIT_INTERNAL
    except Exception as error:
        if debug:
            raise
        Output().error(
            KvCanaryError(f"internal error: {type(error).__name__}: {error}", hint=_REPORT)
        )
        return EXIT_INTERNAL
    return 0
