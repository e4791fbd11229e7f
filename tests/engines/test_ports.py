"""A server's port stays free until the server listens at it."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.engines import server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("handed_out", ["32768\t60999", "1024\t40000", "20000\t65535"])
def test_a_port_is_none_that_the_kernel_hands_out(
    handed_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(f"{handed_out}\n")
    monkeypatch.setattr(server, "_HANDED_OUT", tmp_path / "range")
    lowest, highest = map(int, handed_out.split())
    assert not any(lowest <= server.free_port() <= highest for _ in range(50))


def test_where_the_kernel_hands_out_all_ports_there_is_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(server, "_HANDED_OUT", tmp_path / "range")
    assert server.free_port() in range(1024, 65536)


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as opened:
        taken = opened.enter_context(socket.socket())
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = taken.getsockname()[1]
        free = server.free_port()
        server._dealt.discard(free)
        monkeypatch.setattr(server.random, "sample", lambda _, k: [used] * (k - 1) + [free])
        assert server.free_port() == free


def test_no_port_is_given_twice_by_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    given = []
    for worker in ("gw0", "gw1", "gw2"):
        # Each process has dealt none yet, and draws the same.
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        monkeypatch.setattr(server, "_dealt", set())
        monkeypatch.setattr(server, "random", random.Random(1))
        given += [server.free_port() for _ in range(40)]
    assert len(set(given)) == len(given)
    assert not set(given) & set(server._SGLANGS_OWN)
