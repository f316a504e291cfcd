"""Hash user ids: stable, salted, the same on every machine and in every version of this package."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_FNV_PRIME = np.uint64(0x100000001B3)
_FNV_BASIS = np.uint64(0xCBF29CE484222325)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


@kernel
def mix(x):
    """Return the finaliser of splitmix64: every bit of `x` (uint64) moves every bit of the result."""
    x = x + _GOLDEN
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@kernel
def hash_integers(ids, salt, out_hash):
    """Write the hash of every id (uint64 view of int64)."""
    for i in range(len(ids)):
        out_hash[i] = mix(ids[i] ^ salt)


@kernel
def place_integers(ids, salt, n_places, out_place):
    """Write the hash of every id (uint64 view of int64) modulo the number of places."""
    for i in range(len(ids)):
        out_place[i] = mix(ids[i] ^ salt) % n_places


@kernel
def hash_strings(offsets, data, salt, out_hash):
    """Write the hash of every string given by its UTF-8 bytes: FNV-1a, then mixed."""
    for i in range(len(offsets) - 1):
        state = _FNV_BASIS ^ salt
        for j in range(offsets[i], offsets[i + 1]):
            state = (state ^ np.uint64(data[j])) * _FNV_PRIME
        out_hash[i] = mix(state)
