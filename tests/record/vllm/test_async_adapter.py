"""The vLLM adapter where tensors are on a device: it waits for nothing, and tells the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.record.helpers import events, parts, replay
from tests.record.test_async_adapters import DEVICE, DONE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Python = Callable[..., subprocess.CompletedProcess[str]]

_VLLM = """
{device}
from kvcanary_cli.record.vllm import install
recorder = install({path!r}, tokens="raw", kv_hash={kv_hash!r}, kv_hash_every={every})
from tests.record.vllm import fake_server
plain = fake_server.config
def config(*args, **kwargs):
    made = plain(*args, **kwargs)
    made.cache_config.heads_first = {heads_first}
    made.speculative_config = fake_server.SimpleNamespace(method="x", num_speculative_tokens=2)
    return made
fake_server.config = config
server = fake_server.Server(2, blocks=14, runner={runner!r})
server.connect(3)
server.run(40, gap=3)
server.run(20, gap=3, drafts=True)
server.finish()
recorder.close()
"""


@pytest.mark.parametrize(
    ("kv_hash", "every", "heads_first"),
    [("none", 1, False), ("all", 1, False), ("all", 1, True), ("partial", 3, True)],
)
def test_vllm_on_a_device_is_told_alike_and_never_waited_for(
    kv_hash: str, every: int, heads_first: bool, tmp_path: Path, python: Python
) -> None:
    told = []
    for number, (device, runner) in enumerate([("", "v1"), (DEVICE, "v1"), (DEVICE, "v2")]):
        folder = tmp_path / str(number)
        code = _VLLM.format(
            device=device,
            path=str(folder / "run.kvtrace"),
            runner=runner,
            kv_hash=kv_hash,
            every=every,
            heads_first=heads_first,
        )
        done = python(code + (DONE if device else ""))
        assert done.returncode == 0, done.stderr
        assert "recording ends" not in done.stderr, done.stderr
        (trace,) = parts(folder)
        told.append(events(trace))
    assert told[0] == told[1] == told[2]
    kinds = {event["kind"] for event in told[0]}
    assert {"map", "alloc", "own", "publish", "match", "accept", "retract", "forward"} <= kinds
    assert {"transfer_begin", "transfer_end"} <= kinds
    diagnosis = replay(trace)
    assert not diagnosis.findings
    assert bool(diagnosis.replay.coverage.kv_hashes) == (kv_hash != "none")
    hashed = [event for event in told[0] if event["kind"] == "kv_hash"]
    before = {event["step"] for event in hashed if event["phase"] == "before"}
    after = {event["step"] for event in hashed if event["phase"] == "after"}
    forwards = {event["step"] for event in told[0] if event["kind"] == "forward"}
    assert after == (forwards if hashed else set())
    # A step that reads nothing has nothing to tell before it.
    assert len(forwards) / every * 0.8 <= len(before) <= len(forwards) / every * 1.2 or not hashed
