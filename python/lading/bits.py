"""The bits of tensors, wherever they are: NaNs are equal to themselves, -0 is not 0."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def bytes_of(tensor: torch.Tensor, device: Any = "cpu") -> torch.Tensor:
    """Its elements, row-major, as bytes on a device."""
    plain = tensor.detach().resolve_conj().resolve_neg().to(device).contiguous().reshape(-1)
    if not plain.numel():
        return torch.empty(0, dtype=torch.uint8, device=device)
    if plain.stride(0) != 1:  # one element may have any stride
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8)


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Of shape, dtype and value. Compared where they are, if that is one device."""
    device = one.device if one.device == two.device else "cpu"
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return torch.equal(bytes_of(one, device), bytes_of(two, device))


def bits_digest(tensor: torch.Tensor) -> str:
    """Of value and dtype. Of a copy: memory that numpy has seen cannot be resized any more, and FSDP2 resizes."""
    bits = bytes_of(tensor).clone().numpy().tobytes()
    return hashlib.blake2b(bits + str(tensor.dtype).encode(), digest_size=12).hexdigest()
