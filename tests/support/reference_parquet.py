"""Slow twins of what encodes columns, from the description of the format and not from the kernels."""


def packed_bits(codes, width):
    """Return codes bit by bit, those of the first code lowest, as whole bytes."""
    number = sum(code << (width * i) for i, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * width // 8), "little")


def varint(number):
    """Return a number seven bits a byte, the lowest first; all bytes but the last have the highest bit."""
    low, rest = number % 128, number // 128
    return bytes([low]) if not rest else bytes([low + 128]) + varint(rest)


def runs(counts, n_bytes):
    """Return a run for every count that is not zero: twice the count, then the number of the run."""
    lengths = [count for count in counts if count]
    return b"".join(varint(2 * count) + i.to_bytes(n_bytes, "little") for i, count in enumerate(lengths))


def plain_texts(texts):
    """Return texts led by their lengths."""
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in texts)


def rows_of(counts):
    """Return (user, rank) of every row; rank from 1."""
    return [(user, rank) for user, count in enumerate(counts) for rank in range(1, count + 1)]
