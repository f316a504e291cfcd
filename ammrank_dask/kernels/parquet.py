"""Encode columns of qualifications as pages of parquet files have them."""

import numpy as np

from ammrank_dask.kernels.jit import kernel

_WORD_BITS = np.uint64(32)
_WORD = np.uint64(0xFFFFFFFF)


@kernel
def pack_codes(code, width, out_words):
    """Write the lowest `width` bits (1 to 32) of every code, one behind the other from the lowest bit.

    Parameters
    ----------
    code
        (n,) numbers from zero.
    out_words
        (ceil(n · width / 32),) uint32; the bits behind the last code are zero.
    """
    bits, n_bits, at = np.uint64(0), np.uint64(0), 0
    step = np.uint64(width)
    for row in range(code.shape[0]):
        bits |= np.uint64(code[row]) << n_bits
        n_bits += step
        if n_bits >= _WORD_BITS:
            out_words[at] = bits & _WORD
            at += 1
            bits >>= _WORD_BITS
            n_bits -= _WORD_BITS
    if n_bits > np.uint64(0):
        out_words[at] = bits & _WORD


@kernel
def pack_ranks(indptr, width, out_words):
    """Write the ranks of users as `pack_codes` does, from zero: user u has `indptr[u + 1] - indptr[u]` rows."""
    bits, n_bits, at = np.uint64(0), np.uint64(0), 0
    step = np.uint64(width)
    for user in range(indptr.shape[0] - 1):
        for rank in range(indptr[user + 1] - indptr[user]):
            bits |= np.uint64(rank) << n_bits
            n_bits += step
            if n_bits >= _WORD_BITS:
                out_words[at] = bits & _WORD
                at += 1
                bits >>= _WORD_BITS
                n_bits -= _WORD_BITS
    if n_bits > np.uint64(0):
        out_words[at] = bits & _WORD


@kernel
def write_runs(indptr, n_bytes, out_bytes):
    """Write one run for every user who has rows, numbered from zero, and return how many bytes they take.

    A run is twice its length, seven bits a byte, and then the number of the user in `n_bytes`. `out_bytes` has room
    for five more a user.
    """
    at, number = 0, 0
    for user in range(indptr.shape[0] - 1):
        rest = np.uint64(indptr[user + 1] - indptr[user]) << np.uint64(1)
        if rest == np.uint64(0):
            continue
        while rest > np.uint64(0x7F):
            out_bytes[at] = (rest & np.uint64(0x7F)) | np.uint64(0x80)
            rest >>= np.uint64(7)
            at += 1
        out_bytes[at] = rest
        at += 1
        for byte in range(n_bytes):
            out_bytes[at] = (number >> (8 * byte)) & 0xFF
            at += 1
        number += 1
    return at


@kernel
def set_bits(indptr, flag, out_bytes):
    """Set the bits of the rows of users who have a flag, one bit a row from the lowest; `out_bytes` is zero before."""
    for user in range(indptr.shape[0] - 1):
        if flag[user]:
            for row in range(indptr[user], indptr[user + 1]):
                out_bytes[np.uintp(row >> 3)] |= np.uint8(1 << (row & 7))


@kernel
def write_texts(offsets, data, out_bytes):
    """Write texts, each led by its length in four bytes; text i is `data[offsets[i]:offsets[i + 1]]`."""
    at = 0
    for text in range(offsets.shape[0] - 1):
        length = offsets[text + 1] - offsets[text]
        for byte in range(4):
            out_bytes[at] = (length >> (8 * byte)) & 0xFF
            at += 1
        for byte in range(offsets[text], offsets[text + 1]):
            out_bytes[at] = data[byte]
            at += 1
