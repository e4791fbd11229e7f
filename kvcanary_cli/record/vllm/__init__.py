"""Records vLLM (v1): from a launch (``watch``), as its plugin (``plugin``), or from a program.

Measured against the versions in ``KNOWN_VERSIONS``; on another one whatever hook can be placed is
placed, and what is missing is said once and left out of the header's ``records``.

From a program the engine core must live in its process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.record.entry import Entry

if TYPE_CHECKING:
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.recorder import Recorder

KNOWN_VERSIONS = ("0.32.0",)


def _recorder(options: RecordOptions) -> Recorder:
    from kvcanary_cli.record.vllm.recorder import VllmRecorder

    return VllmRecorder(options)


_entry = Entry(_recorder)
watch, install, plugin = _entry.watch, _entry.install, _entry.plugin
