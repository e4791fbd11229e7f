"""Parts of the SGLang adapter on what the engine's objects look like, without the engine."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.record.copies import host_array
from kvcanary_cli.record.sglang.beams import Beams
from kvcanary_cli.record.sglang.graphs import Padding
from kvcanary_cli.record.sglang.handoffs import Handoffs
from kvcanary_cli.record.sglang.requests import Requests
from kvcanary_cli.record.sglang.scene import Scene
from kvcanary_cli.record.sglang.speculation import Speculation, tree_links, tree_parents
from kvcanary_cli.record.sglang.tiers import Tiers
from kvcanary_cli.record.tokens import TokenCoder

if TYPE_CHECKING:
    from collections.abc import Callable

FULL, SWA, OTHER = object(), object(), object()


class Collector:
    """Takes events in the place of a session."""

    def __init__(self, mode: str = "raw") -> None:
        self.events: list[dict[str, Any]] = []
        self.tokens = TokenCoder(mode)

    def add_state(self, _state: Any) -> None:
        pass

    def emit(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def emit_all(self, events: list[dict[str, Any]]) -> None:
        self.events += events

    def defer(self, make: Callable[..., list[dict[str, Any]]], *tensors: Any) -> None:
        self.events += make(*map(host_array, tensors))


def _scene(mode: str = "raw") -> Any:
    table = np.arange(80, dtype=np.int32).reshape(4, 20)
    pools = SimpleNamespace(
        max_slot=99, table=table, lut=None, kv=OTHER, kv_full=FULL, kv_swa=SWA, page_size=1
    )
    session: Any = Collector(mode)
    return Scene(session, pools)


def _plain(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in event.items()}
        for event in events
    ]


def _req(rid: str, row: int = 1, **fields: Any) -> Any:
    kv = SimpleNamespace(req_pool_idx=row, kv_committed_len=4)
    given = {"rid": rid, "kv": kv, "origin_input_ids": [1, 2, 3, 4], "output_ids": []}
    return SimpleNamespace(**(given | fields))


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of each node."""
    count = len(parents)
    children = [[k for k in range(count) if parents[k] == node] for node in range(count)]
    first = [min(found, default=-1) for found in children]
    after = [-1] * count
    for found in children:
        for node, sibling in pairwise(found):
            after[node] = sibling
    return first, after


@st.composite
def forests(draw: st.DrawFn) -> list[list[int]]:
    width = draw(st.integers(1, 9))
    rows = draw(st.integers(1, 4))
    return [
        [-1, *(draw(st.integers(0, node - 1)) for node in range(1, width))] for _ in range(rows)
    ]


@given(forests())
def test_parents_are_told_from_children_and_siblings(trees: list[list[int]]) -> None:
    rows, width = len(trees), len(trees[0])
    links = [_links(parents) for parents in trees]
    spec = SimpleNamespace(
        retrieve_next_token=np.array([first for first, _ in links]),
        retrieve_next_sibling=np.array([after for _, after in links]),
    )
    found = tree_parents(*tree_links(spec, rows * width), rows, width)
    linear = [[k - 1 for k in range(width)]] * rows
    if trees == linear:
        assert found is None
    else:
        assert found is not None
        assert found.reshape(rows, width).tolist() == trees


@pytest.mark.parametrize("spec", [None, SimpleNamespace(retrieve_next_token=None)])
def test_drafts_without_links_are_chains(spec: Any) -> None:
    assert tree_links(spec, 6) == ()


def test_accepted_nodes_are_counted_within_their_row() -> None:
    scene = _scene()
    batch = SimpleNamespace(reqs=[_req("a"), _req("b")], seq_lens=[7, 3])
    drafts = SimpleNamespace(draft_token_num=4, draft_token=list(range(10, 18)))
    result = (None, None, np.array([[0, 2, -1], [4, 5, 7]]))
    Speculation(scene).on_sample(None, result, False, drafts, batch)
    assert _plain(scene.session.events) == [
        {"kind": "accept", "req": "a", "nodes": [0, 2], "tokens": [10, 12], "committed_len": 9},
        {"kind": "accept", "req": "b", "nodes": [0, 1, 3], "tokens": [14, 15, 17]}
        | {"committed_len": 6},
    ]


def test_without_tokens_no_acceptance_is_told() -> None:
    scene = _scene("absent")
    batch = SimpleNamespace(reqs=[_req("a")], seq_lens=[7])
    drafts = SimpleNamespace(draft_token_num=2, draft_token=[1, 2])
    Speculation(scene).on_sample(None, (None, None, np.array([[0, 1]])), False, drafts, batch)
    assert not scene.session.events


def _event(**more: Any) -> dict[str, Any]:
    event = {"kind": "forward", "reqs": ["a", "b"], "req_pool_indices": np.array([1, 2])}
    event |= {"seq_lens": np.array([5, 6]), "positions": np.array([4, 5])}
    event |= {"out_cache_loc": np.array([11, 12]), "input_ids": np.array([7, 8])}
    return event | more


def test_rows_of_a_decode_graph_follow_as_its_buffers_have_them() -> None:
    event = _event(namespaces=["x", None])
    padding = Padding(_scene().session)
    padding.opens(SimpleNamespace(event=event))
    buffers = SimpleNamespace(
        seq_lens=np.array([5, 6, 1, 1]),
        positions=np.array([4, 5, 0, 0]),
        # The last row's write should go to slot 0.
        out_cache_loc=np.array([11, 12, 0, 13]),
    )
    runner = SimpleNamespace(raw_bs=2, bs=4, captured_req_width=1, buffers=buffers)
    padding.on_decode_load(None, None, False, runner)
    assert _plain([event]) == [
        {
            "kind": "forward",
            "reqs": ["a", "b", None, None],
            "req_pool_indices": [1, 2, 0, 0],
            "seq_lens": [5, 6, 1, 1],
            "positions": [4, 5, 0, 0],
            "out_cache_loc": [11, 12, 0, 13],
            "input_ids": [7, 8, 0, 0],
            "namespaces": ["x", None, None, None],
            "raw_bs": 2,
        }
    ]


def test_rows_of_a_verification_graph_have_all_their_nodes() -> None:
    event = _event(
        reqs=["a"],
        req_pool_indices=np.array([1]),
        seq_lens=np.array([5]),
        draft_token_num=2,
        tree={"parent": [-1, -1]},
    )
    padding = Padding(_scene().session)
    padding.opens(SimpleNamespace(event=event))
    buffers = SimpleNamespace(
        seq_lens=np.array([5, 1]), positions=np.zeros(4), out_cache_loc=np.zeros(4)
    )
    runner = SimpleNamespace(raw_bs=1, bs=2, captured_req_width=2, buffers=buffers)
    padding.on_decode_load(None, None, False, runner)
    assert event["tree"] == {"parent": [-1, -1, -1, 0]}
    assert len(event["out_cache_loc"]) == len(event["input_ids"]) == 4


def test_tokens_of_a_prefill_graph_are_one_row() -> None:
    event = _event(extend_prefix_lens=np.array([4, 5]), extend_seq_lens=np.array([1, 1]), raw_bs=2)
    padding = Padding(_scene().session)
    padding.opens(SimpleNamespace(event=event))
    static = SimpleNamespace(
        input_ids=np.zeros(5), positions=np.zeros(5), out_cache_loc=np.zeros(5)
    )
    padding.on_prefill_load(
        None, (static, None), False, SimpleNamespace(raw_num_tokens=2), SimpleNamespace()
    )
    assert event["reqs"] == ["a", "b", None]
    assert event["extend_seq_lens"].tolist() == [1, 1, 3]
    assert event["extend_prefix_lens"].tolist() == [4, 5, 0]
    assert event["seq_lens"].tolist() == [5, 6, 3]
    assert len(event["positions"]) == len(event["out_cache_loc"]) == 5


@pytest.mark.parametrize("is_open", [True, False])
def test_a_full_batch_or_one_of_nobody_is_not_padded(is_open: bool) -> None:
    event = _event()
    padding = Padding(_scene().session)
    padding.opens(SimpleNamespace(event=event))
    if not is_open:
        padding.closes()
    runner = SimpleNamespace(raw_bs=2, bs=2 if is_open else 4, captured_req_width=1)
    padding.on_decode_load(None, None, False, runner)
    assert "raw_bs" not in event


def _transfer(**fields: Any) -> Any:
    given = {"device_pool": FULL, "is_draft": False}
    given |= {"device_indices": np.array([5, 6]), "host_indices": np.array([50, 60])}
    return SimpleNamespace(**(given | fields))


def test_backups_and_loads_name_both_ends() -> None:
    scene = _scene()
    tiers = Tiers(scene)
    tiers.on_backup(None, None, False, None, [_transfer(), _transfer(is_draft=True)])
    tiers.on_load(None, None, False, None, [_transfer(device_pool=SWA)])
    tiers.on_load(None, None, False, None, [_transfer(device_pool=object())])
    tiers.on_load(None, None, True, None, [_transfer()])
    copies = [e for e in _plain(scene.session.events) if e["kind"] == "copy"]
    assert copies == [
        {"kind": "copy", "src": [5, 6], "src_pool": "full", "dst": [50, 60], "dst_pool": "host"}
        | {"id": "d2h-1", "via": "d2h", "canary": True},
        {"kind": "copy", "src": [50, 60], "src_pool": "host_swa", "dst": [5, 6], "dst_pool": "swa"}
        | {"id": "h2d-2", "via": "h2d", "canary": True},
    ]
    begun = [e for e in _plain(scene.session.events) if e["kind"] == "transfer_begin"]
    assert [e.get("slots") for e in begun] == [[5, 6], None]


def test_moves_leave_out_what_does_not_move() -> None:
    scene = _scene()
    tiers = Tiers(scene)
    tiers.on_move(None, None, False, FULL, np.array([3, 4, 0]), np.array([7, 4, 0]))
    tiers.on_move(None, None, False, FULL, np.array([0]), np.array([0]))
    tiers.on_move(None, None, False, object(), np.array([3]), np.array([7]))
    assert _plain(scene.session.events) == [
        {"kind": "copy", "src": [7], "dst": [3], "via": "d2d", "canary": True}
    ]


def test_host_slots_for_the_storage_are_forgotten() -> None:
    scene = _scene()
    tiers = Tiers(scene)
    tiers.on_prefetch_alloc(None, None, False)
    tiers.on_prefetch_alloc(None, np.array([50, 51]), False)
    (event,) = _plain(scene.session.events)
    assert (event["src_pool"], event["dst_pool"], event["dst"]) == ("store", "host", [50, 51])


@pytest.mark.parametrize(("state", "end"), [(4, "transfer_end"), (0, "transfer_fail")])
def test_a_receipt_ends_as_the_engine_learns_it(state: int, end: str) -> None:
    scene = _scene()
    handoffs = Handoffs(scene)
    receiver = object()
    decode_req = SimpleNamespace(req=_req("a"), kv_receiver=receiver)
    handoffs.enter_metadata(None, decode_req, np.array([21, 22, 23]), 1)
    handoffs.on_poll(None, [2], False, [receiver])
    assert [e["kind"] for e in scene.session.events] == ["transfer_begin"]
    handoffs.on_poll(None, [state], False, [receiver])
    handoffs.on_poll(None, [state], False, [receiver])
    kinds = [e["kind"] for e in scene.session.events]
    landed = ["history", "copy"] if end == "transfer_end" else []
    assert kinds == ["transfer_begin", *landed, end]
    copies = [e for e in _plain(scene.session.events) if e["kind"] == "copy"]
    if landed:
        assert copies[0]["src"] == {"req": "a", "pos": [1, 2, 3]}
        assert copies[0]["dst"] == [21, 22, 23]


def test_a_receipt_that_is_staged_or_goes_to_the_host() -> None:
    scene = _scene()
    handoffs = Handoffs(scene)
    on_host = SimpleNamespace(name="HOST")
    decode_req = SimpleNamespace(req=_req("a"), kv_receiver=object())
    handoffs.enter_metadata(None, decode_req, np.array([21]), 1, destination=on_host)
    assert not scene.session.events
    handoffs.enter_metadata(None, decode_req, np.array([21]), 1)
    handoffs.on_staged_poll(None, [4], False, [decode_req])
    assert scene.session.events[-1]["kind"] == "transfer_end"


def test_parts_of_a_prompt_are_sent_one_by_one() -> None:
    scene = _scene()
    handoffs = Handoffs(scene)
    req = _req("a", start_send_idx=0, disagg_kv_sender=object())
    for stop in (3, 3, 4):
        begun = handoffs.enter_send(None, req)
        req.start_send_idx = stop
        handoffs.leave_send(begun, None, False, None, req)
    begun_events = [e["slots"].tolist() for e in scene.session.events]
    assert begun_events == [[20, 21, 22], [23]]
    handoffs.on_poll(None, [4], False, [req.disagg_kv_sender])
    assert [e["kind"] for e in scene.session.events[2:]] == ["transfer_end"] * 2


def test_dropped_transfers_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcanary_cli.record.sglang.handoffs._MAX_OPEN", 3)
    handoffs = Handoffs(_scene())
    for k in range(9):
        decode_req = SimpleNamespace(req=_req(f"r{k}"), kv_receiver=object())
        handoffs.enter_metadata(None, decode_req, np.array([21]), 1)
    assert len(handoffs._open) == 3


def test_members_of_a_beam_search_get_names_and_lose_them() -> None:
    scene = _scene()
    scene.requests.of_row[1] = "a"
    beams = Beams(scene)
    group = SimpleNamespace(
        leader=_req("a"), prompt_len=4, member_rows=object(), member_rows_cpu=np.array([2, 3])
    )
    beams.on_spawn(None, None, False, None, group, group.leader)
    assert scene.requests.of_row == {1: "a", 2: "a/beam-1", 3: "a/beam-2"}
    new = np.array([[24, 25], [24, 25], [64, 65]])
    beams.enter_survivors(None, group)
    beams.on_remap(None, (None, new), False, None, np.array([1, 2, 3]), np.array([0, 0, 2]))
    beams.enter_free_members(group)
    told = [(e["kind"], e.get("child") or e["req"]) for e in scene.session.events]
    assert told == [
        ("fork", "a/beam-1"),
        ("fork", "a/beam-2"),
        ("fork", "a/beam-1"),
        ("finish", "a/beam-1"),
        ("row_release", "a/beam-1"),
        ("finish", "a/beam-2"),
        ("row_release", "a/beam-2"),
    ]
    assert scene.session.events[2]["shared"].tolist() == [24, 25]
    assert scene.requests.of_row == {1: "a"}


def test_namespaces_follow_adapter_key_and_salt() -> None:
    requests = Requests()
    ref = SimpleNamespace(lora_name="poet", lora_id="id1")

    def namespace(**fields: Any) -> str:
        return requests.namespace(SimpleNamespace(**fields))

    assert namespace(extra_key=None, cache_salt=None) == requests.namespace(None) == ""
    tenant = namespace(extra_key="tenant")
    assert tenant.startswith("ns-")
    assert "tenant" not in tenant
    assert namespace(extra_key="tenant", cache_salt="s") not in ("", tenant)
    unknown = namespace(extra_key="id1", lora_id="id1")
    assert requests.adapter_loaded(ref) == {"kind": "adapter", "name": "poet", "version": "v1"}
    assert namespace(extra_key="id1", lora_id="id1") == "lora=poet@v1" != unknown
    assert namespace(extra_key="tenantid1", lora_id="id1") == f"lora=poet@v1+{tenant}"
    assert requests.adapter_loaded(ref)["version"] == "v2"
    # A key that forgets the adapter does not hide what was computed with it.
    assert namespace(extra_key=None, lora_id="id1") == "lora=poet@v2"
