"""Write the lists of users as commands of Redis, for `redis-cli --pipe`."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class RedisKeys:
    """How the keys of a night are named: `PREFIX:user:ID` for a user, and `PREFIX:date` for the night.

    Keys expire after so many seconds, if they do: those of users who hold nothing any more, or were forgotten.
    """

    date: dt.date
    prefix: str = "ammrank"
    expire: int | None = None

    def commands(self, user_ids: pa.Array, values: pa.Array) -> pa.Array:
        """Return a command for each user that sets their key to a value; both are texts."""
        keys = pc.binary_join_element_wise(f"{self.prefix}:user:", user_ids, "")
        words = [_bulks(keys), _bulks(values)]
        if self.expire is not None:
            words += [_bulk("EX"), _bulk(str(self.expire))]
        return pc.binary_join_element_wise(f"*{1 + len(words)}\r\n", _bulk("SET"), *words, "")

    def last_command(self) -> bytes:
        """Return the command that tells which night is there, once all of it is."""
        return f"*3\r\n{_bulk('SET')}{_bulk(f'{self.prefix}:date')}{_bulk(str(self.date))}".encode()


def _bulk(text: str) -> str:
    return f"${len(text.encode())}\r\n{text}\r\n"


def _bulks(texts: pa.Array) -> pa.Array:
    """Return every text as the protocol has it, with the number of its bytes before it."""
    lengths = pc.cast(pc.binary_length(texts), pa.string())
    return pc.binary_join_element_wise("$", lengths, "\r\n", texts, "\r\n", "")
