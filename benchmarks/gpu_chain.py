"""The floor of a serial chain: how long one token's hash takes that waits for the one before.

One program, all in registers, with the hash of the write kernel itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvcanary_cli.backends.triton.mix import HEAD_HASH, chain_step

if TYPE_CHECKING:
    from collections.abc import Callable


@triton.jit(do_not_specialize=["steps"])
def _chain_kernel(out_ptr, token_ptr, steps):  # type: ignore[no-untyped-def]
    # [1]: the token is loaded, so that nothing of the chain is known at compile time.
    lane = tl.arange(0, 1).to(tl.int64)
    token = tl.load(token_ptr + lane)
    chain = tl.zeros_like(token).to(tl.uint64, bitcast=True) + HEAD_HASH
    for i in range(0, steps):
        chain = chain_step(chain, token, lane + i)
    tl.store(out_ptr + lane, chain.to(tl.int64, bitcast=True))


def chain_value(device: str, token: int, steps: int) -> int:
    """The chain's hash after ``steps`` equal tokens at positions 0, 1, ... as int64."""
    out = torch.zeros(1, dtype=torch.int64, device=device)
    tokens = torch.full((1,), token, dtype=torch.int64, device=device)
    _chain_kernel[(1,)](out, tokens, steps, num_warps=1)
    return int(out)


def chain_step_us(
    device: str,
    steps: int,
    measure: Callable[[Callable[[], None]], tuple[float, float, float]],
) -> float:
    """Microseconds of one step: what twice as many steps take longer, so launches cancel out."""
    out = torch.zeros(1, dtype=torch.int64, device=device)
    tokens = torch.full((1,), 7, dtype=torch.int64, device=device)

    def run(count: int) -> float:
        def step() -> None:
            _chain_kernel[(1,)](out, tokens, count, num_warps=1)

        return measure(step)[0]

    return max(run(2 * steps) - run(steps), 0.0) / steps
