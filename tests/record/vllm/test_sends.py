"""What a connector keeps blocks of ended requests for, on an engine core in the shape of vLLM's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcanary_cli.record.vllm.sends import Sends
from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import events, parts, replay
from tests.record.vllm.recording import is_clean, run_recorded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.record.vllm.recording import Python

Event = dict[str, Any]

#: A request of 13 tokens in four blocks that ends while the next one still runs.
_ONE = """
server = Server(blocks=16)
connector = server.connect(steps=100)
sender = server.send(2)
sender.all_token_ids = list(range(3, 16))
sender.num_prompt_tokens, sender._length = 13, 15
server.core.step()
server.core.step()
assert connector.sending
"""
_FREED = """
manager = server.scheduler.kv_cache_manager
held = [block.block_id for block in manager.req_to_blocks["r0"]]
manager.free(sender)
"""
#: Takes the blocks that were freed and writes them, then the send ends.
_TAKEN = """
manager.block_pool.free_block_queue.blocks.sort(key=lambda block: block.block_id not in held)
other = server.send(2)
other.all_token_ids = list(range(40, 53))
other.num_prompt_tokens, other._length = 13, 17
server.core.step()
"""
_ENDED = """
connector.sending["r0"] = 1
server.core.step()
server.finish()
"""


def _windows(told: list[Event]) -> list[tuple[str, str, str]]:
    """Begins and ends of transfers: kind, id, request."""
    return [(e["kind"], e["id"], e["req"]) for e in told if e["kind"].startswith("transfer")]


def _held(told: list[Event], req: str, before: int) -> set[int]:
    """Slots that ``req`` took and was served from until then, since it was last preempted."""
    since = max([k for k, e in enumerate(told) if e["kind"] == "retract" and e["req"] == req] + [0])
    mine = [e for e in told[since:before] if e.get("owner", e.get("req")) == req]
    return {slot for e in mine if e["kind"] in ("alloc", "match") for slot in e["slots"]}


@pytest.mark.parametrize("core", ["", "runner='v2'", "executor='mp'"])
def test_blocks_are_in_transfer_until_the_connector_names_their_request(
    core: str, tmp_path: Path, python: Python
) -> None:
    """Several requests at once, some of which share a prefix; the others' blocks are not kept."""
    body = f"""
server = Server(3, {core})
connector = server.connect(4, lambda request: int(request.request_id[1:]) % 3 > 0)
server.run(40)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    told = events(trace)
    ended = [e["req"] for e in told if e["kind"] == "finish"]
    kept = [req for req in ended if int(req[1:]) % 3]
    windows = _windows(told)
    for kind in ("transfer_begin", "transfer_end"):
        assert sorted(req for k, _, req in windows if k == kind) == sorted(kept)
    assert len({name for _, name, _ in windows}) == len(kept) > 10
    # Several at a time, each in the order of its own.
    depth = [sum(1 if k == "transfer_begin" else -1 for k, _, _ in windows[:n]) for n in range(99)]
    assert max(depth) > 1
    for req in kept:
        at = {e["kind"]: k for k, e in enumerate(told) if e.get("req") == req}
        given_up = [
            k
            for k, e in enumerate(told)
            if e["kind"] in ("free", "own") and e.get("from", e["owner"]) == req
        ]
        assert at["transfer_begin"] < at["finish"] < at["transfer_end"]
        # Before it, what a preemption took back.
        assert not [k for k in given_up if at["transfer_begin"] < k < at["transfer_end"]]
        assert max(given_up) > at["transfer_end"]
        begin = told[at["transfer_begin"]]
        assert begin["via"] == "store"
        assert set(begin["slots"]) == _held(told, req, at["transfer_begin"])
    is_clean(trace)


def test_blocks_freed_and_written_while_they_are_sent_are_named(
    tmp_path: Path, python: Python
) -> None:
    run_recorded(python, tmp_path, _ONE + _FREED + _TAKEN + _ENDED)
    (trace,) = parts(tmp_path)
    told = events(trace)
    (finding,) = replay(trace).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "store_read_after_free")
    assert finding.culprit.req == "r0"
    # What left the server is damaged, which nobody in it reads.
    assert finding.victim is None
    (begin,) = [e for e in told if e["kind"] == "transfer_begin" and e["req"] == "r0"]
    taken = next(e for e in told if e["kind"] == "alloc" and e["owner"] == "r1")
    both = [slot for slot in begin["slots"] if slot in taken["slots"]]
    assert finding.slots == set(both)
    # Full blocks pass to the prefix cache and are free when that drops them.
    freed = [e for e in told if e["kind"] == "free" and both[0] in e["slots"]]
    assert finding.cause_event == freed[0]["i"]
    assert begin["i"] < freed[0]["i"] < taken["i"]
    assert finding.confidence == "probable"
    assert any("given to r1" in text for text in finding.evidence)


@pytest.mark.parametrize("inside", [_FREED, _FREED + _ENDED, _ENDED])
def test_blocks_that_nobody_takes_do_no_harm(inside: str, tmp_path: Path, python: Python) -> None:
    run_recorded(python, tmp_path, _ONE + inside)
    (trace,) = parts(tmp_path)
    is_clean(trace)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_request_aborted_while_it_runs(keeps: bool, tmp_path: Path, python: Python) -> None:
    """Whether the connector wants its blocks is the connector's word, not its end's."""
    body = f"""
server = Server()
connector = server.connect(3, lambda request: {keeps} or "ABORTED" not in request.status.name)
server.run(8)
names = [request.request_id for request in server.scheduler.running[:2]]
server.scheduler.finish_requests(names, "FINISHED_ABORTED")
server.run(4)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    told = events(trace)
    aborted = {e["req"] for e in told if e["kind"] == "abort"}
    assert len(aborted) == 2
    sent = {req for _, _, req in _windows(told)}
    assert aborted & sent == (aborted if keeps else set())
    is_clean(trace)


def test_an_abort_of_what_is_being_sent_changes_nothing(tmp_path: Path, python: Python) -> None:
    body = _ONE + 'server.scheduler.finish_requests(["r0"], "FINISHED_ABORTED")\n' + _ENDED
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    told = events(trace)
    assert not [e for e in told if e["kind"] == "abort"]
    assert [kind for kind, _, _ in _windows(told)] == ["transfer_begin", "transfer_end"]
    is_clean(trace)


def test_a_recording_that_ends_while_blocks_are_sent_leaks_nothing(
    tmp_path: Path, python: Python
) -> None:
    body = (
        _ONE + "for _ in range(3):\n    server.send(4)\nfor _ in range(8):\n    server.core.step()"
    )
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    assert _windows(events(trace))[0][0] == "transfer_begin"
    diagnosis = is_clean(trace)
    assert any("belong to transfers" in note for note in diagnosis.replay.coverage.notes)


def _late(folder: Path, before: str, inside: str) -> str:
    """Code that records only what is ``inside``."""
    return f"""
from tests.record.vllm.fake_server import Server
{before}
from kvcanary_cli.record.vllm import install
recorder = install({str(folder / "run.kvtrace")!r}, tokens="raw")
# A request that runs on: the recorder attaches in a step of it.
waiting = server.send(12)
server.core.step()
{inside}
server.finish()
recorder.close()
"""


@pytest.mark.parametrize("fault", [True, False])
def test_attached_while_blocks_are_sent(fault: bool, tmp_path: Path, python: Python) -> None:
    inside = (_FREED + _TAKEN if fault else "server.core.step()\n") + _ENDED
    done = python(_late(tmp_path, _ONE, inside))
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    told = events(trace)
    assert open_trace(trace).header.starts_mid_run
    first = next(e for e in told if e["kind"] == "transfer_begin")
    assert first["req"] == "r0"
    if not fault:
        is_clean(trace)
        return
    finding = replay(trace).findings[0]
    assert (finding.cls, finding.culprit.req) == ("transfer_race", "r0")


def test_attached_late_an_aborted_request_is_not_called_sent(
    tmp_path: Path, python: Python
) -> None:
    """Its blocks may be kept for what is still being loaded into them."""
    before = """
server = Server()
connector = server.connect(100)
server.send(8)
server.core.step()
server.scheduler.finish_requests(["r0"], "FINISHED_ABORTED")
"""
    done = python(_late(tmp_path, before, _ENDED))
    assert done.returncode == 0, done.stderr
    (trace,) = parts(tmp_path)
    assert {req for _, _, req in _windows(events(trace))} == {"r1"}
    is_clean(trace)


#: Every third step finds the queue full, beginning with the next.
_DROPS = """
sink = recorder.follower.session._sink
offer, groups = sink.offer, []
def some(group):
    groups.append(group)
    return len(groups) % 3 != 1 and offer(group)
sink.offer = some
"""


@pytest.mark.parametrize("seed", range(3))
def test_sends_under_way_are_told_again_behind_a_gap(
    seed: int, tmp_path: Path, python: Python
) -> None:
    body = f"""
server = Server({seed})
server.connect(4)
server.run(10)
{_DROPS}
server.run(30)
server.finish()
"""
    run_recorded(python, tmp_path, body)
    (trace,) = parts(tmp_path)
    begun: set[str] = set()
    gaps, again, last = 0, 0, None
    for event in events(trace):
        if last is not None and event["i"] != last + 1:
            gaps += 1
            before, begun = begun, set()
        last = event["i"]
        if event["kind"] == "transfer_begin":
            begun.add(event["id"])
            again += gaps > 0 and event["id"] in before
        elif event["kind"] == "transfer_end":
            assert event["id"] in begun
    assert gaps > 5
    assert again > 5
    is_clean(trace)


def test_a_race_whose_begin_was_lost_is_named(tmp_path: Path, python: Python) -> None:
    two = "server.core.step()\nserver.core.step()\n"
    assert two in _ONE
    lost = _ONE.replace(two, f"server.core.step()\n{_DROPS}\nserver.core.step()\n")
    run_recorded(python, tmp_path, lost + _FREED + _TAKEN + "sink.offer = offer\n" + _ENDED)
    (trace,) = parts(tmp_path)
    assert not [e for e in events(trace) if e["kind"] == "finish" and e["req"] == "r0"]
    findings = [f for f in replay(trace).findings if f.cls == "transfer_race"]
    assert [f.culprit.req for f in findings] == ["r0"]


def test_what_was_not_seen_is_not_told() -> None:
    """Behind steps that never reached the recorder a send may have ended; its end says nothing."""
    sends, slots = Sends(), np.arange(4, 8, dtype=np.int64)
    (first,) = sends.begin("r0", slots)
    assert sends.retell(gap=True) == [first]
    sends.lost()
    assert sends.retell(gap=True) == sends.end("r0") == []
    (second,) = sends.begin("r0", slots)
    assert second["id"] != first["id"]
    (end,) = sends.end("r0")
    assert end["id"] == second["id"]
    assert sends.end("r0") == []
