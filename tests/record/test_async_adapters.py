"""The SGLang adapter where tensors are on a device: it waits for nothing, and tells the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.record.helpers import events, parts
from tests.record.test_follow import DRAFT_FORWARD, EVERYTHING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]

_SGLANG = """
{device}
from types import SimpleNamespace
import torch
from kvcanary_cli.record.sglang import install
recorder = install({path!r}, tokens="raw", kv_hash={kv_hash!r})
from tests.record.fake_server import FakeServer
server = FakeServer()
scheduler = server.scheduler
"""
DEVICE = "from tests.record.lagging_device import play\nmover = play()"
DONE = "\nprint('copies', mover.begun)"
#: Fingerprints as on a device, where it is not known on the engine's thread which slots there are.
_MASKED = """
from kvcanary_cli.record.sglang import fingerprints
fingerprints.is_on_host = lambda tensor: False
"""


def _sglang(python: Python, folder: Path, kv_hash: str, device: str) -> list[dict[str, Any]]:
    path = str(folder / "run.kvtrace")
    code = _SGLANG.format(device=device, path=path, kv_hash=kv_hash)
    code += EVERYTHING.replace("DRAFT", DRAFT_FORWARD)
    done = python(code + (DONE if device else ""))
    assert done.returncode == 0, done.stderr
    assert "recording ends" not in done.stderr, done.stderr
    if device:
        assert int(done.stdout.split()[-1]) > 50
    (trace,) = parts(folder)
    return events(trace)


@pytest.mark.parametrize("kv_hash", ["none", "all"])
def test_sglang_on_a_device_is_told_alike_and_never_waited_for(
    kv_hash: str, tmp_path: Path, python: Python
) -> None:
    device = DEVICE + (_MASKED if kv_hash == "all" else "")
    on_host = _sglang(python, tmp_path / "host", kv_hash, "")
    on_device = _sglang(python, tmp_path / "device", kv_hash, device)
    assert on_device == on_host
    kinds = {event["kind"] for event in on_host}
    assert {"map", "alloc", "free", "own", "match", "copy", "forward", "finish"} <= kinds
    assert ("kv_hash" in kinds) == (kv_hash == "all")
