"""Attaches the recorder in a process of an engine, if the environment asks for it."""

from __future__ import annotations

import logging
import os

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.record.options import from_env

log = logging.getLogger("kvcanary.record")


def attach() -> None:
    """Watch for engines in this process; without ``KVCANARY_RECORD`` nothing happens.

    Called at the start of every process below ``kvcanary record``. Whatever goes wrong here is
    logged and keeps nothing from starting.
    """
    try:
        options = from_env(os.environ)
        if options is None:
            return
        from kvcanary_cli.record.sglang import watch as watch_sglang

        watch_sglang(options)
    except KvCanaryError as error:
        log.error("kvcanary: not recording: %s", error.message)
    except Exception:
        log.exception("kvcanary: not recording")
