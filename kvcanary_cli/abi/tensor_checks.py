"""What any tensor argument is checked for: type, shape, device, contiguity."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def check_dtype(name: str, tensor: torch.Tensor, want: torch.dtype) -> None:
    if tensor.dtype != want:
        raise ValueError(f"kv-canary: {name} must have dtype {want}, got {tensor.dtype}")


def check_dim(name: str, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dim() != dim:
        raise ValueError(f"kv-canary: {name} must be {dim}-D, got shape {tuple(tensor.shape)}")


def check_len(name: str, tensor: torch.Tensor, want: int) -> None:
    if tensor.shape[0] != want:
        raise ValueError(f"kv-canary: {name} length must be {want}, got {tensor.shape[0]}")


def check_device(name: str, tensor: torch.Tensor, ref_name: str, ref: torch.Tensor) -> None:
    if tensor.device != ref.device:
        raise ValueError(
            f"kv-canary: {name} must be on {ref_name}'s device {ref.device}, got {tensor.device}"
        )


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"kv-canary: {name} must be contiguous")


def check_vector(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    length: int | None,
    ref_name: str,
    ref: torch.Tensor,
) -> None:
    shape = tensor.shape
    # Launches are checked in every step, so a tensor that is right is told with few calls.
    if (
        tensor.dtype == dtype
        and len(shape) == 1
        and (length is None or shape[0] == length)
        and tensor.device == ref.device
        and tensor.is_contiguous()
    ):
        return
    check_dtype(name, tensor, dtype)
    check_dim(name, tensor, 1)
    if length is not None:
        check_len(name, tensor, length)
    check_device(name, tensor, ref_name, ref)
    check_contiguous(name, tensor)
