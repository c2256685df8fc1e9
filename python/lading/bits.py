"""The bits of tensors, wherever they are: NaNs are equal to themselves, -0 is not 0."""

from __future__ import annotations

import hashlib

import torch


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements, row-major, as bytes on the CPU."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Of shape, dtype and value."""
    return one.shape == two.shape and one.dtype == two.dtype and torch.equal(bytes_of(one), bytes_of(two))


def bits_digest(tensor: torch.Tensor) -> str:
    """Of value and dtype. Of a copy: memory that numpy has seen cannot be resized any more, and FSDP2 resizes."""
    bits = bytes_of(tensor).clone().numpy().tobytes()
    return hashlib.blake2b(bits + str(tensor.dtype).encode(), digest_size=12).hexdigest()
