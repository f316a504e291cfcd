"""Place users: in partitions, in buckets, and in the splits for training, validation and the gate."""

import math

import numpy as np

from ammrank_dask.storage.store.ids import IntegerIds, StringIds, UserIds

PARTITION_SALT = 0x7061727469746E31
SPLIT_SALT = 0x73706C6974757331
BUCKET_SALT = 0x6275636B65747331

N_BUCKETS = 256
"""Groups of users, apart from partitions, by which the rows of a day are told from others."""

SPLITS = ("train", "validation", "gate")
_VALIDATION_SHARE, _GATE_SHARE = 0.1, 0.1

FEW = 32
"""Ids up to which loading the kernels takes longer than plain Python."""
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FNV_PRIME, _FNV_BASIS = 0x100000001B3, 0xCBF29CE484222325
_BITS = (1 << 64) - 1


def hash_ids(ids: UserIds, salt: int) -> np.ndarray:
    """Return a 64-bit hash of every id; another salt gives an independent hash.

    Examples
    --------
    >>> from ammrank_dask.storage.store.ids import ids_from_values
    >>> int(hash_ids(ids_from_values([1]), 0)[0])
    10451216379200822465
    """
    if len(ids) <= FEW:
        return hash_few(ids, salt)
    from ammrank_dask.kernels.hashing import hash_integers, hash_strings

    hashes = np.empty(len(ids), np.uint64)
    with np.errstate(over="ignore"):  # plain numpy (without the compiler) warns where hashes wrap around
        if isinstance(ids, IntegerIds):
            hash_integers(ids.values.view(np.uint64), np.uint64(salt), hashes)
        elif isinstance(ids, StringIds):
            arrays = ids.to_arrays()
            hash_strings(arrays["user_id_offsets"], arrays["user_id_bytes"], np.uint64(salt), hashes)
    return hashes


def partition_of(ids: UserIds, n_partitions: int) -> np.ndarray:
    """Return the partition of every user (int64); it depends on the id and the number of partitions only."""
    return _place(ids, PARTITION_SALT, n_partitions)


def source_partitions(partition: int, n_before: int, n_now: int) -> list[int]:
    """Return the partitions that have users of a new one: a user is in hash modulo n, before and now.

    Examples
    --------
    >>> source_partitions(11, 8, 16), source_partitions(3, 16, 8), source_partitions(1, 4, 6)
    ([3], [3, 11], [1, 3])
    """
    step = math.gcd(n_before, n_now)
    return list(range(partition % step, n_before, step))


def bucket_of(ids: UserIds) -> np.ndarray:
    """Return the bucket of every user (int64). It never changes, and is independent of partitions and splits."""
    return _place(ids, BUCKET_SALT, N_BUCKETS)


def _place(ids: UserIds, salt: int, n_places: int) -> np.ndarray:
    """Return the hash of every id modulo the number of places (int64)."""
    if not isinstance(ids, IntegerIds) or len(ids) <= FEW:
        return (hash_ids(ids, salt) % np.uint64(n_places)).astype(np.int64)
    from ammrank_dask.kernels.hashing import place_integers

    places = np.empty(len(ids), np.int64)
    with np.errstate(over="ignore"):
        place_integers(ids.values.view(np.uint64), np.uint64(salt), np.uint64(n_places), places)
    return places


def split_of(ids: UserIds) -> np.ndarray:
    """Return for every user 0 (train), 1 (validation) or 2 (gate), int8. It never changes with partitions or nights."""
    unit = hash_ids(ids, SPLIT_SALT) / 2.0**64
    return np.where(unit < _VALIDATION_SHARE, 1, np.where(unit < _VALIDATION_SHARE + _GATE_SHARE, 2, 0)).astype(np.int8)


def hash_few(ids: UserIds, salt: int) -> np.ndarray:
    """Return the hashes of `kernels.hashing` of a few ids, without the second that a compiler takes to load."""
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
