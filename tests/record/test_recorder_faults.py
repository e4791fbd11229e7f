"""A fault of the recorder itself, wherever it is, stays its own: the engine runs on."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.patching import Hook
from kvcanary_cli.record.recorder import Recorder
from tests.record.helpers import Toy, events, parts, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _WordlessError(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Unsized:
    """Values of an event that cannot be looked at."""

    @property
    def nbytes(self) -> int:
        raise ValueError("unsized")


class _BrokenHandler(logging.Handler):
    """A log that cannot be written to, and says so to whoever logs."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("the log is gone")


def _broken(*_args: Any, **_kwargs: Any) -> Any:
    raise KeyError("broken")


def _break_nothing(_toy: Toy, _patch: pytest.MonkeyPatch) -> None:
    pass


def _break_pending(toy: Toy, _patch: pytest.MonkeyPatch) -> None:
    toy.session.emit({"kind": "alloc", "owner": "r0", "slots": _Unsized()})


def _break_state(toy: Toy, patch: pytest.MonkeyPatch) -> None:
    # The next step begins a new part, for which all state is told.
    patch.setattr(type(toy.session._sink), "part_due", True)
    patch.setattr(toy.ledger, "retell", _broken)


def _break_sink(toy: Toy, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(toy.session._sink, "close", _broken)


class _ToyRecorder(Recorder):
    """Hooks one function, whose hook is at fault."""

    error: Exception = KeyError("broken")

    def _hooks(self) -> list[Hook]:
        def before() -> None:
            raise self.error

        return [Hook("toy_engine", "step", before)]


def _engine(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> Callable[[], str]:
    """A module with one function, hooked by ``recorder``."""
    module = ModuleType("toy_engine")
    vars(module)["step"] = lambda: "served"
    monkeypatch.setitem(__import__("sys").modules, "toy_engine", module)
    recorder.patcher._place_in(module)
    return lambda: str(vars(module)["step"]())


@pytest.mark.parametrize(
    "breaks", [_break_nothing, _break_pending, _break_state, _break_sink], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("error", [KeyError("broken"), _WordlessError(), MemoryError()], ids=repr)
@pytest.mark.parametrize("log_works", [True, False])
def test_no_fault_reaches_the_engine(
    breaks: Callable[[Toy, pytest.MonkeyPatch], None],
    error: Exception,
    log_works: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy = Toy(tmp_path)
    for _ in range(3):
        toy.step()
    recorder = _ToyRecorder(RecordOptions(path=str(tmp_path / "run.kvtrace")))
    recorder.error, recorder.follower = error, toy
    step = _engine(monkeypatch, recorder)
    handler = _BrokenHandler()
    with monkeypatch.context() as broken:
        if not log_works:
            logging.getLogger("kvcanary.record").addHandler(handler)
        breaks(toy, broken)
        served = [step() for _ in range(3)]
        logging.getLogger("kvcanary.record").removeHandler(handler)
    assert served == ["served"] * 3
    toy.session.close()
    trace = parts(tmp_path)[0]
    assert steps(trace) == [0, 1, 2]
    (last,) = [e for part in parts(tmp_path) for e in events(part) if e["kind"] == _ENDED]
    assert last["reason"].startswith(type(error).__name__)


_ENDED = "recording_ended"


def test_a_fault_before_the_first_recorded_step_is_told(tmp_path: Path) -> None:
    toy = Toy(tmp_path, start_after=45)
    for _ in range(5):
        toy.step()
    toy.session.emit({"kind": "finish", "req": "r0"})
    toy.session.fail(KeyError("broken"))
    toy.session.close()
    (trace,) = parts(tmp_path)
    (only,) = events(trace)
    assert only["kind"] == _ENDED
    assert "broken" in only["reason"]


def test_a_recording_that_never_began_says_why(tmp_path: Path) -> None:
    toy = Toy(tmp_path, start_after=45)
    for _ in range(5):
        toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    (only,) = events(trace)
    assert only == {"kind": _ENDED, "i": 0, "reason": "--start-after 45: only 5 forwards ran"}


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), KeyError("broken")])
def test_only_what_is_nobodys_mistake_is_traced_back(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    _ToyRecorder(RecordOptions(path="run.kvtrace"))._fault(error)
    (record,) = caplog.records
    assert "not recording" in record.message
    assert (record.exc_info is None) == isinstance(error, OSError)
