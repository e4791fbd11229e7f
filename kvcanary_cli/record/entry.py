"""The ways into an adapter: from a launch, from a program, as the engine's plugin."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.record.options import RecordOptions, from_env
from kvcanary_cli.record.triggers import SIGNAL, pull_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.record.recorder import Recorder


log = logging.getLogger("kvcanary.record")


def watch_if_asked(watch: Callable[[RecordOptions], object]) -> None:
    """Call ``watch`` with the options in the environment, if ``KVCANARY_RECORD`` is there.

    Whatever goes wrong is logged: an engine that loads a plugin may not outlive its errors.
    """
    try:
        options = from_env(os.environ)
        if options is None:
            return
        if SIGNAL in options.triggers:
            # Here and not with the first trace: the signal would end a process without a handler.
            pull_on_signal(options.path)
        watch(options)
    except KvCanaryError as error:
        log.error("kvcanary: not recording: %s", error.message)
    except Exception:
        log.exception("kvcanary: not recording")


class Entry:
    """Makes the one recorder of an engine that a process may have."""

    def __init__(self, make: Callable[[RecordOptions], Recorder]) -> None:
        """Nothing is watched.

        Args:
            make: Makes the engine's recorder, whose hooks are not placed yet.
        """
        self._make = make
        self._watching: Recorder | None = None

    def watch(self, options: RecordOptions) -> Any:
        """Record this process's engine, if it gets one. A second call changes nothing.

        Returns:
            The recorder.
        """
        if self._watching is None:
            recorder = self._make(options)
            recorder.patcher.install()
            self._watching = recorder
        return self._watching

    def install(self, path: str, **options: Any) -> Any:
        """Record from a program, before or after it has built its engine.

        Args:
            path: Folder for the traces, ``NAME.kvtrace``.
            options: Further fields of ``RecordOptions``.

        Returns:
            The recorder; its ``close()`` finishes the trace.

        Raises:
            UsageError: An option does not fit.
        """
        return self.watch(RecordOptions(path=os.path.abspath(path), **options))

    def plugin(self) -> None:
        """Entry point of the engine's plugins: records if ``KVCANARY_RECORD`` says so."""
        watch_if_asked(self.watch)
