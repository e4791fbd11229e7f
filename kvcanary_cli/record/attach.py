"""Attaches the recorder in a process of an engine, if the environment asks for it."""

from __future__ import annotations

import logging
import os

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.record.options import from_env
from kvcanary_cli.record.triggers import SIGNAL, pull_on_signal

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
        if SIGNAL in options.triggers:
            # Here and not with the first trace: the signal would end a process without a handler.
            pull_on_signal(options.path)
        from kvcanary_cli.record.sglang import watch as watch_sglang
        from kvcanary_cli.record.vllm import watch as watch_vllm

        watch_sglang(options)
        watch_vllm(options)
    except KvCanaryError as error:
        log.error("kvcanary: not recording: %s", error.message)
    except Exception:
        log.exception("kvcanary: not recording")
