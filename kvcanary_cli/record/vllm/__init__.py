"""Records vLLM (v1): from a launch (``watch``), as its plugin (``plugin``), or from a program.

Measured against the versions in ``KNOWN_VERSIONS``; on another one whatever hook can be placed is
placed, and what is missing is said once and left out of the header's ``records``.
"""

from __future__ import annotations

import os
from typing import Any

from kvcanary_cli.record.options import RecordOptions, from_env

KNOWN_VERSIONS = ("0.32.0",)

_watching: list[Any] = []


def watch(options: RecordOptions) -> Any:
    """Record this process's engine core, if it gets one. A second call changes nothing.

    Returns:
        The recorder.
    """
    if not _watching:
        from kvcanary_cli.record.vllm.recorder import Recorder

        recorder = Recorder(options)
        recorder.patcher.install()
        _watching.append(recorder)
    return _watching[0]


def install(path: str, **options: Any) -> Any:
    """Record from a program, before or after it has built its engine.

    The engine core must live in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).

    Args:
        path: Folder for the traces, ``NAME.kvtrace``.
        options: Further fields of ``RecordOptions``.

    Returns:
        The recorder; its ``close()`` finishes the trace.

    Raises:
        UsageError: An option does not fit.
    """
    return watch(RecordOptions(path=os.path.abspath(path), **options))


def plugin() -> None:
    """Entry point ``vllm.general_plugins``: records if ``KVCANARY_RECORD`` says so."""
    options = from_env(os.environ)
    if options is not None:
        watch(options)
