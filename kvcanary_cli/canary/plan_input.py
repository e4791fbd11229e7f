"""PlanInput: what each batch row reads and writes, by forward mode (specification 1.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import ForwardMode
from kvcanary_cli.capacities.checks import check_padded_batch_size

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.canary.forward_batch import ForwardBatch


def as_int64(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself if it is contiguous int64, else such a copy.

    Raises:
        TypeError: KVC-R03 unless it is int32 or int64.
    """
    import torch

    if tensor.dtype is torch.int64:
        return tensor.contiguous()
    if tensor.dtype is not torch.int32:
        raise TypeError(
            f"kv-canary: {name} must have dtype torch.int32 or torch.int64, got {tensor.dtype}"
        )
    return tensor.to(torch.int64).contiguous()


def unsupported_mode_text(mode: int) -> str:
    """Text of KVC-R11, which prints the mode as a number."""
    return f"Unsupported forward mode for kv-canary: {int(mode)}"


def _given(name: str, tensor: torch.Tensor | None, mode: ForwardMode) -> torch.Tensor:
    if tensor is None:
        raise ValueError(f"kv-canary: forward_batch.{name} is required in {mode.name} mode")
    return as_int64(name, tensor)


def prefix_and_extend(batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefix and extend lengths of the batch's rows.

    Returns:
        (prefix_lens [n], extend_seq_lens [bs]), int64. n is the token count in DECODE and IDLE
        (rows past it have prefix 0) and bs otherwise.

    Raises:
        NotImplementedError: KVC-R11 for a mode without a rule.
        ValueError: Missing lengths, or more than one token per row in DECODE.
        TypeError: KVC-R03.
    """
    import torch

    mode = batch.forward_mode
    bs = batch.batch_size
    if mode.is_decode_or_idle:
        # Positions, not seq_lens - 1: draft decode leaves seq_lens unbumped.
        positions = as_int64("positions", batch.positions)
        if positions.shape[0] > bs:
            raise ValueError(
                f"kv-canary: {mode.name} takes one token per row, got {positions.shape[0]} "
                f"positions for {bs} rows (speculative top-k must be 1)"
            )
        return positions, torch.ones(bs, dtype=torch.int64, device=positions.device)
    if mode is ForwardMode.TARGET_VERIFY:
        prefix = as_int64("seq_lens", batch.seq_lens)
        return prefix, torch.full_like(prefix, batch.draft_token_num)
    if mode is ForwardMode.DRAFT_EXTEND_V2:
        extend = _given("extend_seq_lens", batch.extend_seq_lens, mode)
        return as_int64("seq_lens", batch.seq_lens) - extend, extend
    if mode.gives_extend_lens:
        return (
            _given("extend_prefix_lens", batch.extend_prefix_lens, mode),
            _given("extend_seq_lens", batch.extend_seq_lens, mode),
        )
    raise NotImplementedError(unsupported_mode_text(mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """Four int64 vectors of one length; rows that are not in use are 0, the padding row.

    Attributes:
        req_pool_indices: [rows], 0 = padding row.
        prefix_lens: [rows], positions to verify.
        extend_seq_lens: [rows], tokens to write.
        req_to_verify_expected_tokens_valid_lens: [rows], how far the expected-token pool is good
            for each row; 0 = no token is compared.
    """

    req_pool_indices: torch.Tensor
    prefix_lens: torch.Tensor
    extend_seq_lens: torch.Tensor
    req_to_verify_expected_tokens_valid_lens: torch.Tensor

    @classmethod
    def padded(
        cls, batch: ForwardBatch, *, rows: int, valid_lens: torch.Tensor | None
    ) -> PlanInput:
        """As the server does: ``rows`` rows, of which the first bs are the batch's.

        Args:
            batch: The forward.
            rows: Request capacity.
            valid_lens: [bs] int64, or None for 0.

        Raises:
            RuntimeError: KVC-B05 if the batch has more rows.
            NotImplementedError, ValueError, TypeError: see ``prefix_and_extend``.
        """
        import torch

        bs = batch.batch_size
        violation = check_padded_batch_size(batch_size=bs, capacity=rows)
        if violation is not None:
            raise RuntimeError(violation.message)
        prefix, extend = prefix_and_extend(batch)
        cells = torch.zeros((4, rows), dtype=torch.int64, device=batch.req_pool_indices.device)
        requests, prefixes, extends, lens = cells.unbind(0)
        requests[:bs] = as_int64("req_pool_indices", batch.req_pool_indices)
        prefixes[: prefix.shape[0]] = prefix
        extends[:bs] = extend
        if valid_lens is not None:
            lens[:bs] = valid_lens
        return cls(
            req_pool_indices=requests,
            prefix_lens=prefixes,
            extend_seq_lens=extends,
            req_to_verify_expected_tokens_valid_lens=lens,
        )

    @classmethod
    def exact(cls, batch: ForwardBatch, *, valid_lens: torch.Tensor | None) -> PlanInput:
        """The batch's own rows and no others; uses the batch's tensors where they fit.

        The plan is the same as from ``padded``, except that ``write_num_valid_reqs`` is bs.
        """
        import torch

        bs = batch.batch_size
        requests = as_int64("req_pool_indices", batch.req_pool_indices)
        prefix, extend = prefix_and_extend(batch)
        if prefix.shape[0] != bs:
            prefix = torch.nn.functional.pad(prefix, (0, bs - int(prefix.shape[0])))
        return cls(
            req_pool_indices=requests,
            prefix_lens=prefix,
            extend_seq_lens=extend,
            req_to_verify_expected_tokens_valid_lens=(
                torch.zeros_like(requests) if valid_lens is None else valid_lens
            ),
        )

    def verify_totals(self, windows: tuple[int, ...]) -> list[int]:
        """Entries that the plan step will emit, for each window; reads the lengths on the host.

        Args:
            windows: Sliding window of each group, 0 = the whole prefix.
        """
        prefix = self.prefix_lens.cpu().numpy()
        prefix = prefix[self.req_pool_indices.cpu().numpy() != 0]
        prefix = prefix[prefix > 0]
        return [
            int((prefix if window <= 0 else prefix.clip(max=window)).sum()) for window in windows
        ]
