"""Kernels of speculative decoding in plain torch, as far as a CPU run calls them.

Names, argument names and what is written where are those that SGLang's callers expect; trees are
given by each node's first child and next sibling, -1 = none.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

Tensor = torch.Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Links and positions of trees whose ancestors are given as [bs, n, n] flags."""
    n = draft_token_num
    masks = tree_mask.reshape(batch_size, n, n).bool().tolist()
    for b, mask in enumerate(masks):
        ancestors = [[j for j in range(i) if mask[i][j]] for i in range(n)]
        parents = [max(found, default=-1) for found in ancestors]
        depths = [len(found) for found in ancestors]
        start = int(verified_seq_len[b])
        _rows(positions, n)[b] = torch.tensor([start + depth for depth in depths])
        _rows(retrieve_index, n)[b] = torch.arange(b * n, (b + 1) * n)
        child, sibling = _links(parents)
        _rows(retrieve_next_token, n)[b] = torch.tensor(child)
        _rows(retrieve_next_sibling, n)[b] = torch.tensor(sibling)


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    top_scores_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: Any,
) -> None:
    """Links and positions of chains; trees with siblings are not needed here."""
    if topk != 1:
        raise NotImplementedError("only chains of drafts")
    n = num_verify_tokens
    for b in range(len(seq_lens)):
        _rows(positions, n)[b] = torch.arange(n) + int(seq_lens[b])
        _rows(retrieve_index, n)[b] = torch.arange(b * n, (b + 1) * n)
        _rows(retrieve_next_token, n)[b] = torch.tensor([*range(1, n), -1])
        _rows(retrieve_next_sibling, n)[b] = -1
    tree_mask.fill_(True)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's choices down each tree as far as it goes."""
    bs, n = candidates.shape
    for b in range(bs):
        at, path = 0, [0]
        while True:
            wanted = int(target_predict[b, at])
            child = int(retrive_next_token.reshape(bs, n)[b, at])
            while child >= 0 and int(candidates[b, child]) != wanted:
                child = int(retrive_next_sibling.reshape(bs, n)[b, child])
            predicts[b * n + at] = wanted
            if child < 0 or len(path) == accept_index.shape[1]:
                break
            path.append(child)
            at = child
        accept_index[b] = -1
        accept_index[b, : len(path)] = retrive_index.reshape(bs, n)[b, path].to(accept_index.dtype)
        accept_token_num[b] = len(path) - 1


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    _row_len: int,
) -> None:
    """Gather a window of each row, one behind the other."""
    at = 0
    for row, start, stop in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        out_cache_loc[at : at + stop - start] = req_to_token[row, start:stop].to(
            out_cache_loc.dtype
        )
        at += stop - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    _row_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Gather the slots that a draft writes, behind what is committed."""
    stops = seq_lens + topk * num_cols
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, stops, out_cache_loc, _row_len
    )


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    _row_len: int,
) -> None:
    """Scatter slots into a window of each row."""
    at = 0
    for row, start, stop in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        req_to_token[row, start:stop] = out_cache_loc[at : at + stop - start].to(req_to_token.dtype)
        at += stop - start


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Slots of the accepted nodes, packed to the front."""
    kept = accept_index.reshape(-1)
    kept = kept[kept >= 0].long()
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last accepted token of each row."""
    at = torch.arange(len(accept_lens)) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[at].to(bonus_tokens.dtype))


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Move rows of bytes within every buffer, all read before any is written."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(_address(base) + s * stride, stride) for s in sources]
        for target, data in zip(targets, read, strict=True):
            ctypes.memmove(_address(base) + target * stride, data, stride)


def _address(pointer: int) -> int:
    # Addresses stand in signed tensors.
    return pointer % (1 << 64)


def _rows(values: Tensor, width: int) -> Tensor:
    return values.view(-1, width)


def _links(parents: list[int]) -> tuple[list[int], list[int]]:
    count = len(parents)
    child = [next((k for k in range(i + 1, count) if parents[k] == i), -1) for i in range(count)]
    sibling = [
        next((k for k in range(i + 1, count) if parents[k] == parents[i] >= 0), -1)
        for i in range(count)
    ]
    return child, sibling
