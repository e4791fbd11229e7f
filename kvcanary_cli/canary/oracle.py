"""The token oracle: a deterministic stand-in for the model's sampler (specification 5.9)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import MIX_MULTIPLIER_1, MIX_MULTIPLIER_2, ForwardMode
from kvcanary_cli.canary.plan_input import as_int64

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import torch

    from kvcanary_cli.canary.forward_batch import ForwardBatch


def request_id_hash(request_id: str) -> int:
    """A request id as signed int64: blake2b of its UTF-8, 8 bytes, little-endian (O05)."""
    digest = blake2b(request_id.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generalized_request_ids(
    request_ids: Sequence[str | None], bootstrap_rooms: Sequence[int], batch_size: int
) -> list[int]:
    """One id per row: the bootstrap room where there is one, so that both sides of a
    disaggregated pair agree, else the request's hash; 0 for padding rows."""
    ids = []
    for row in range(batch_size):
        room = bootstrap_rooms[row] if row < len(bootstrap_rooms) else -1
        request = request_ids[row] if row < len(request_ids) else None
        if room >= 0:
            ids.append(room)
        else:
            ids.append(0 if request is None else request_id_hash(request))
    return ids


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    import numpy as np

    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_MULTIPLIER_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_MULTIPLIER_2)
    return x ^ (x >> np.uint64(31))


class TokenOracle:
    """token(id, position) = mix(id xor position) mod vocabulary."""

    __slots__ = ("vocab_size",)

    def __init__(self, *, vocab_size: int) -> None:
        if vocab_size <= 0:
            raise ValueError(f"kv-canary: oracle vocab_size must be positive, got {vocab_size}")
        self.vocab_size = vocab_size

    def tokens(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Tokens of ``ids`` at ``positions``, both [n] int64 or int32, as [n] int64."""
        import numpy as np
        import torch

        bits = ids.long().cpu().numpy().view(np.uint64)
        bits = bits ^ positions.long().cpu().numpy().view(np.uint64)
        tokens = (_mix(bits) % np.uint64(self.vocab_size)).astype(np.int64)
        return torch.from_numpy(tokens).to(positions.device)

    def sample(self, ids: torch.Tensor | None, logits_positions: torch.Tensor) -> torch.Tensor:
        """What the sampler returns: the token of the position after the logits.

        Raises:
            RuntimeError: KVC-O01 without request ids.
        """
        if ids is None:
            raise RuntimeError(
                "_OracleSampler.forward: generalized_req_id source tensor is None; token oracle "
                "requires a per-forward generalized_req_id source tensor (set in "
                "ForwardBatch.init_new when SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1)"
            )
        return self.tokens(ids, logits_positions + 1)


class TokenOracleManager:
    """Expected inputs of a forward, as ``InputOracle``.

    Positions are the batch's own, and so are the tokens in extend modes: there the comparison is
    trivially true. Only DECODE and DRAFT_EXTEND_V2 are held to the oracle.
    """

    __slots__ = ("oracle",)

    def __init__(self, oracle: TokenOracle) -> None:
        self.oracle = oracle

    def expected_inputs(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Raises RuntimeError KVC-O02 and KVC-O03."""
        positions = as_int64("positions", batch.positions)
        ids = self._ids_per_token(batch)
        if batch.forward_mode.is_extend:
            return as_int64("input_ids", batch.input_ids), positions
        return self.oracle.tokens(ids, positions), positions

    def _ids_per_token(self, batch: ForwardBatch) -> torch.Tensor:
        import torch

        mode, bs = batch.forward_mode, batch.batch_size
        device = batch.positions.device
        if mode is ForwardMode.TARGET_VERIFY:
            lens = torch.full((bs,), batch.draft_token_num, device=device)
        elif mode is ForwardMode.DRAFT_EXTEND_V2:
            per_row = batch.num_tokens_per_req
            lens = torch.full(
                (bs,), batch.draft_token_num if per_row is None else per_row, device=device
            )
        elif mode.is_extend:
            if batch.extend_seq_lens is None:
                raise RuntimeError(
                    "_build_generalized_req_id_per_token: extend_seq_lens is None in extend mode"
                )
            lens = as_int64("extend_seq_lens", batch.extend_seq_lens)
        else:
            lens = torch.ones(bs, dtype=torch.int64, device=device)
        total, tokens = int(lens.sum()), int(batch.input_ids.shape[0])
        if total != tokens:
            raise RuntimeError(f"fill_expected_inputs: sum(lens)={total} != num_tokens={tokens}")
        ids = generalized_request_ids(batch.req_ids, batch.bootstrap_rooms, bs)
        return torch.tensor(ids, dtype=torch.int64, device=device).repeat_interleave(lens)
