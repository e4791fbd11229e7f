"""Records SGLang: from a launch (``watch``), as its plugin (``plugin``), or from a program.

Measured against the versions in ``KNOWN_VERSIONS``; on another one whatever hook can be placed is
placed, and what is missing is said once and left out of the header's ``records``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.record.entry import Entry

if TYPE_CHECKING:
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.recorder import Recorder

KNOWN_VERSIONS = ("0.5.23",)


def _recorder(options: RecordOptions) -> Recorder:
    from kvcanary_cli.record.sglang.recorder import SglangRecorder

    return SglangRecorder(options)


_entry = Entry(_recorder)
watch, install, plugin = _entry.watch, _entry.install, _entry.plugin
