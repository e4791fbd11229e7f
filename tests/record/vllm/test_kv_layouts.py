"""Where vLLM keeps a slot's KV: a fingerprint is of its bytes, all of them and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.record.vllm.kv_layouts import Gathered, InPlace, layout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Order in memory of layers, blocks, heads, tokens and content, as vLLM names them.
ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
LAYERS = 2


def cache_of(order: Sequence[int], shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A layer's [blocks, heads, block_size, content] view of a memory of random bytes."""
    logical = (LAYERS, *shape)
    physical = [logical[axis] for axis in order]
    item = torch.empty(0, dtype=dtype).element_size()
    count = int(torch.tensor(physical).prod())
    memory = torch.randint(0, 256, (count * item,), dtype=torch.uint8).view(dtype)
    back = [order.index(axis) for axis in range(5)]
    return memory.view(physical).permute(back)[1]


shapes = st.tuples(
    st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 4, 16]), st.sampled_from([16, 48])
)
dtypes = st.sampled_from([torch.bfloat16, torch.float32, torch.uint8])


@given(st.sampled_from(sorted(ORDERS)), shapes, dtypes, st.randoms(use_true_random=False))
def test_a_fingerprint_is_of_the_slot_and_of_nothing_else(
    order: str, shape: tuple[int, int, int, int], dtype: torch.dtype, random: Any
) -> None:
    torch.manual_seed(random.randrange(1 << 30))
    cache = cache_of(ORDERS[order], shape, dtype)
    blocks, heads, size, content = shape
    layout = InPlace(cache)
    assert layout.slots == blocks * size
    slots = torch.arange(blocks * size)
    before = layout.fold(slots, RealKvHashMode.ALL)
    slot = random.randrange(blocks * size)
    token = cache[slot // size, :, slot % size]
    head, at = random.randrange(heads), random.randrange(content)
    byte = token[head, at : at + 1].view(torch.uint8)
    byte[0] ^= 1 << random.randrange(8)
    after = layout.fold(slots, RealKvHashMode.ALL)
    assert (before != after).nonzero().flatten().tolist() == [slot]
    # Where the same bytes stand is not seen.
    other = random.randrange(blocks * size)
    cache[other // size, :, other % size] = token.clone()
    same = layout.fold(torch.tensor([slot, other]), RealKvHashMode.ALL)
    assert same[0] == same[1] == after[slot]


@given(st.sampled_from(sorted(ORDERS)), shapes, dtypes)
def test_heads_side_by_side_are_one_strip(
    order: str, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Such a slot's hash is the specification's of its bytes, heads in order."""
    cache = cache_of(ORDERS[order], shape, dtype)
    blocks, heads, size, _ = shape
    if heads > 1 and order[-2:] != "HC":
        return
    tokens = cache.transpose(1, 2).reshape(blocks * size, 1, 1, -1)
    plain = InPlace(tokens.contiguous())
    slots = torch.arange(blocks * size)
    for mode in (RealKvHashMode.ALL, RealKvHashMode.PARTIAL):
        assert torch.equal(InPlace(cache).fold(slots, mode), plain.fold(slots, mode))


def test_slots_that_the_cache_does_not_have_do_no_harm() -> None:
    slots = torch.tensor([-1, 0, 31, 32, 1 << 40])
    for order in ORDERS.values():
        cache = cache_of(order, (4, 3, 8, 16), torch.bfloat16)
        assert len(InPlace(cache).fold(slots, RealKvHashMode.ALL)) == 5
    packed = torch.zeros(4, 3, 8, 16, dtype=torch.bfloat16)
    assert len(Gathered(packed).fold(slots, RealKvHashMode.ALL)) == 5


def test_many_slots_are_folded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcanary_cli.record.vllm import kv_layouts

    cache = cache_of(ORDERS["LBHNC"], (4, 3, 8, 16), torch.bfloat16)
    layout, slots = InPlace(cache), torch.arange(32)
    whole = layout.fold(slots, RealKvHashMode.ALL)
    monkeypatch.setattr(kv_layouts, "_AT_ONCE", 5)
    assert torch.equal(layout.fold(slots, RealKvHashMode.ALL), whole)


def _pools(cache: torch.Tensor, backend: str, **spec: Any) -> Any:
    layer = SimpleNamespace(kv_cache=cache, get_attn_backend=lambda: type(backend, (), {}))
    if backend == "CPUAttentionBackend":
        layer.isa = spec.pop("isa", "vec")
    group = SimpleNamespace(layer_names=["layer.0"], kv_cache_spec=SimpleNamespace(**spec))
    runner = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
        compilation_config=SimpleNamespace(static_forward_context={"layer.0": layer}),
    )
    return SimpleNamespace(runner=runner, group=0, why_derived="", num_blocks=4, block_size=16)


_PLAIN = torch.zeros(4, 2, 16, 32, dtype=torch.bfloat16)
_NONE = SimpleNamespace(name="NONE")


@pytest.mark.parametrize(
    ("cache", "backend", "spec"),
    [
        (_PLAIN, "FlashAttentionBackend", {"kv_quant_mode": _NONE}),
        (_PLAIN.transpose(1, 2).contiguous().transpose(1, 2), "TritonAttentionBackend", {}),
        (_PLAIN.view(torch.uint8), "FlashInferBackend", {"kv_quant_mode": _NONE}),
        # A latent vector a token, without heads.
        (torch.zeros(4, 16, 576, dtype=torch.bfloat16), "FlashMLABackend", {}),
        # The kernel's blocks are smaller than the manager's.
        (torch.zeros(8, 2, 8, 32, dtype=torch.bfloat16), "FlashAttentionBackend", {}),
        (_PLAIN, "CPUAttentionBackend", {}),
    ],
)
def test_a_known_layout_is_folded(cache: torch.Tensor, backend: str, spec: Any) -> None:
    layout, why = layout_of(_pools(cache, backend, **spec))
    assert layout is not None, why
    assert layout.slots == 64


@pytest.mark.parametrize(
    ("cache", "backend", "spec", "why"),
    [
        (_PLAIN, "NewBackend", {}, "not one that was looked at"),
        (_PLAIN, "CPUAttentionBackend", {"isa": "amx"}, "packed for amx"),
        (_PLAIN, "FlashInferBackend", {"kv_quant_mode": SimpleNamespace(name="NVFP4")}, "NVFP4"),
        (_PLAIN, "FlashAttentionBackend", {"state_content_bytes": 40}, "packed"),
        (_PLAIN, "FlashAttentionBackend", {"num_head_slots": 4}, "packed"),
        (_PLAIN, "FlashMLABackend", {"tokens_per_state": 4}, "several tokens"),
        (_PLAIN[:3], "FlashAttentionBackend", {}, "other slots than the 4 blocks of 16"),
        (_PLAIN[..., ::2], "FlashAttentionBackend", {}, "not side by side"),
        (_PLAIN[:, :, :, :4], "FlashAttentionBackend", {}, "not side by side"),
        (_PLAIN[..., :4].contiguous(), "FlashAttentionBackend", {}, "multiple of 16"),
        (torch.zeros(4, 2), "FlashAttentionBackend", {}, "other dimensions"),
    ],
)
def test_of_an_unknown_layout_it_is_said_why(
    cache: torch.Tensor, backend: str, spec: Any, why: str
) -> None:
    layout, said = layout_of(_pools(cache, backend, **spec))
    assert layout is None
    assert backend in said
    assert why in said
