"""Attaches the recorder in a process of an engine, if the environment asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.record.entry import watch_if_asked

if TYPE_CHECKING:
    from kvcanary_cli.record.options import RecordOptions


def attach() -> None:
    """Watch for engines in this process; without ``KVCANARY_RECORD`` nothing happens.

    Called at the start of every process below ``kvcanary record``. Whatever goes wrong here is
    logged and keeps nothing from starting.
    """
    watch_if_asked(_watch_all)


def _watch_all(options: RecordOptions) -> None:
    from kvcanary_cli.record.sglang import watch as watch_sglang
    from kvcanary_cli.record.vllm import watch as watch_vllm

    watch_sglang(options)
    watch_vllm(options)
