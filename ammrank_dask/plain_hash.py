"""Hash a few ids in plain Python: the hashes of `kernels.hashing`, without the second that a compiler takes to load."""

from __future__ import annotations

import numpy as np

from ammrank_dask.storage.store.ids import IntegerIds, UserIds

FEW = 32
"""Ids up to which loading the kernels takes longer than this."""
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FNV_PRIME, _FNV_BASIS = 0x100000001B3, 0xCBF29CE484222325
_BITS = (1 << 64) - 1


def hash_few(ids: UserIds, salt: int) -> np.ndarray:
    """Return a 64-bit hash of every id."""
    values = ids.to_arrow().to_pylist()
    if isinstance(ids, IntegerIds):
        mixed = [_mix((value & _BITS) ^ salt) for value in values]
    else:
        mixed = [_mix(_fold(value.encode(), salt)) for value in values]
    return np.array(mixed, np.uint64)


def _mix(x: int) -> int:
    """Return the finaliser of splitmix64."""
    x = x + _GOLDEN & _BITS
    x = (x ^ (x >> 30)) * _MIX_1 & _BITS
    x = (x ^ (x >> 27)) * _MIX_2 & _BITS
    return x ^ (x >> 31)


def _fold(data: bytes, salt: int) -> int:
    """Return FNV-1a of bytes."""
    state = _FNV_BASIS ^ salt
    for byte in data:
        state = (state ^ byte) * _FNV_PRIME & _BITS
    return state
