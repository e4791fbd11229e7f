"""The adapter that docs/recording.md shows is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.record.helpers import parts, replay, steps

DOCUMENT = Path(__file__).parents[2] / "docs" / "recording.md"


def _adapter() -> tuple[str, dict[str, Any]]:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (text,) = [block for block in blocks if "class ToyRecorder" in block]
    namespace: dict[str, Any] = {}
    exec(compile(text, str(DOCUMENT), "exec"), namespace)
    return text, namespace


def test_it_is_short() -> None:
    assert len(_adapter()[0].splitlines()) < 80


def test_it_records_and_what_it_records_replays(tmp_path: Path) -> None:
    _, names = _adapter()
    engine = names["ToyEngine"]()
    recorder = names["ToyRecorder"](engine, str(tmp_path / "run.kvtrace"))
    for number in range(4):
        tokens = [50 + number, 60, 61, 62, 63]
        for position, token in enumerate(tokens):
            engine.decode(1, position, token, f"r{number}", tokens)
        engine.release(1, len(tokens), f"r{number}")
    recorder.session.close()
    (trace,) = parts(tmp_path)
    assert steps(trace) == list(range(20))
    diagnosis = replay(trace)
    assert diagnosis.verdict == "clean"
    assert not diagnosis.ownership


def test_it_shows_a_slot_that_is_handed_out_twice(tmp_path: Path) -> None:
    _, names = _adapter()
    engine = names["ToyEngine"]()
    recorder = names["ToyRecorder"](engine, str(tmp_path / "run.kvtrace"))
    for position in range(3):
        engine.decode(1, position, 50 + position, "a", [50, 51, 52, 53])
    engine.free_slots.insert(0, int(engine.table[1, 1]))
    engine.decode(2, 0, 70, "b", [70])
    engine.decode(1, 3, 53, "a", [50, 51, 52, 53])
    recorder.session.close()
    (trace,) = parts(tmp_path)
    finding = replay(trace).findings[0]
    assert finding.cls == "double_alloc"
    assert set(finding.slots) == {2}
