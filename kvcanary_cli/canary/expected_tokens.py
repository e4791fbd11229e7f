"""Where the tokens come from that verify and write compare with (specification 1.14, 5.4, 5.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.forward_batch import ForwardBatch


class InputOracle(Protocol):
    """Says what a forward's inputs should be (input assert)."""

    def expected_inputs(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Expected tokens and positions, [num_tokens] int64 each, or None = do not compare."""


def checked_expected_inputs(
    oracle: InputOracle | None, batch: ForwardBatch
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """Ask the oracle, for a forward whose inputs are to be compared.

    Raises:
        RuntimeError: KVC-W05 without an oracle, KVC-R04 for vectors of another length.
    """
    if oracle is None:
        raise RuntimeError(
            "kv-canary: enable_write_input_assert=True requires a TokenOracleManager; pass "
            "token_oracle_manager=install_oracle_sampler(oracle=...) into install_canary(...)"
        )
    expected = oracle.expected_inputs(batch)
    if expected is None:
        return None, None
    for field, tensor in zip(("tokens", "positions"), expected, strict=True):
        if tensor.shape[0] != batch.num_tokens:
            raise RuntimeError(
                f"kv-canary: expected_inputs.{field} shape {tensor.shape[0]} != num_tokens "
                f"{batch.num_tokens}; caller must slice before invoking"
            )
    return expected


class ExpectedTokens(Protocol):
    """Says which token each request has at each position (verify-token assert)."""

    @property
    def pool(self) -> torch.Tensor:
        """[request table rows, any] int32 or int64; may be another tensor at each forward."""

    def refresh(self, batch: ForwardBatch) -> None:
        """Bring the pool up to date; called before each forward, outside any graph."""

    def valid_lens(self, batch: ForwardBatch) -> torch.Tensor | None:
        """[bs] int64, cells of each row that are good; None = no token is compared."""


class SnapshotTokens:
    """The server's own source: ids of prompt and output, scattered in from the batch.

    Rows that are not in the batch keep old data, which is why a row is good only up to the length
    that came with the same batch.
    """

    __slots__ = ("_backend", "pool")

    def __init__(self, *, backend: Backend, pool: torch.Tensor) -> None:
        """
        Args:
            backend: Runs the scatter.
            pool: [rows, max_context_len] int32, changed in place.
        """
        self._backend = backend
        self.pool = pool

    def refresh(self, batch: ForwardBatch) -> None:
        """Scatter the batch's snapshot into the pool, if the batch carries one.

        Raises:
            RuntimeError: KVC-E01, KVC-E02.
            ValueError, TypeError: KVC-E03 to KVC-E06 from the backend.
        """
        import torch

        flat, lens = batch.req_all_ids_flat, batch.req_all_ids_lens
        if flat is None or lens is None:
            return
        bs = batch.batch_size
        if lens.shape[0] != bs:
            raise RuntimeError(
                f"kv-canary: req_all_ids_lens length {lens.shape[0]} != batch_size {bs}; "
                "ForwardBatch snapshot diverged"
            )
        offsets = torch.zeros(bs + 1, dtype=torch.int64, device=lens.device)
        torch.cumsum(lens, 0, dtype=torch.int64, out=offsets[1:])
        total = int(offsets[-1])
        if total != flat.numel():
            raise RuntimeError(
                f"kv-canary: cumsum(req_all_ids_lens)={total} != req_all_ids_flat.numel()="
                f"{flat.numel()}; snapshot inconsistent"
            )
        self._backend.scatter_req_token_ids(
            flat_in=flat.to(torch.int64),
            offsets=offsets,
            req_pool_indices=batch.req_pool_indices.to(torch.int64),
            pool_out=self.pool,
        )

    def valid_lens(self, batch: ForwardBatch) -> torch.Tensor | None:
        import torch

        if batch.req_all_ids_flat is None or batch.req_all_ids_lens is None:
            return None
        return batch.req_all_ids_lens.to(torch.int64)
