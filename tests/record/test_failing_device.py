"""A device that fails or hangs under the engine: what was there before is kept, and it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.record import session as sessions
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session
from tests.record.helpers import HEADER, events, parts
from tests.record.test_copies import Device, _Copy, _Fence

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_FAULT = "CUDA error: an illegal memory access was encountered"
_SOUND = 5


class _Failing(Device):
    """Works for some steps; then all that is asked of it fails, or what ``fails`` names first."""

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.free_running = True
        self.fails, self.has_failed = fails, False

    def _may_fail(self, what: str) -> None:
        if self.has_failed and what in (self.fails, "query"):
            raise RuntimeError(_FAULT)

    def begin(self, tensor: Any, *, fresh: bool) -> _Copy:
        self._may_fail("begin")
        return super().begin(tensor, fresh=fresh)

    def fence(self) -> _Fence:
        self._may_fail("fence")
        fence, passed = super().fence(), _Fence.passed

        class Failing(_Fence):
            def passed(fence) -> bool:
                self._may_fail("query")
                return passed(fence)

        return Failing(fence._device, fence._behind)


def _told(values: NDArray[Any]) -> list[dict[str, Any]]:
    return [{"kind": "finish", "req": f"r{values[0]}"}]


def _session(folder: Path, device: Device) -> Session:
    options = RecordOptions(path=str(folder / "run.kvtrace"), tokens="raw")
    return Session(options, HEADER, mover=device)


def _step(session: Session, number: int) -> None:
    """As the engine's hooks do it: a fault of the recorder ends the recording, nothing else."""
    try:
        session.defer(_told, [number])
        session.commit(step=True)
    except Exception as error:
        session.fail(error)


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("fails", ["begin", "fence", "query"])
def test_what_a_device_gave_before_it_failed_is_kept(
    fails: str, after: int, tmp_path: Path
) -> None:
    """Steps come on after it has failed, or none does."""
    device = _Failing(fails)
    session = _session(tmp_path, device)
    for number in range(_SOUND):
        _step(session, number)
    assert session._drainer is not None
    assert session._drainer.settle(60)
    device.has_failed = True
    if not after:
        session.defer(_told, [0]) if fails != "begin" else session.emit({"kind": "finish"})
    for number in range(after):
        _step(session, _SOUND + number)
    session.close()
    (trace,) = parts(tmp_path)
    *before, last = events(trace)
    assert [event["req"] for event in before][:_SOUND] == [f"r{k}" for k in range(_SOUND)]
    if after or fails != "begin":
        assert last["kind"] == "recording_ended"
        assert _FAULT in last["reason"]
        assert len(before) == _SOUND


def test_a_device_that_hangs_does_not_hold_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_CLOSE_S", 0.2)
    device = Device()
    session = _session(tmp_path, device)
    for number in range(_SOUND):
        _step(session, number)
    device.run()
    assert session._drainer is not None
    assert session._drainer.settle(60)
    for number in range(3):
        _step(session, _SOUND + number)
    session.close()
    # Too late: the trace has an end by now.
    device.run()
    (trace,) = parts(tmp_path)
    *before, last = events(trace)
    assert len(before) == _SOUND
    assert last["kind"] == "recording_ended"
    assert "did not answer" in last["reason"]
    assert "3 steps are missing" in last["reason"]
