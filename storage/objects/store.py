"""Keep objects in an object store, S3, Google's or Azure's, through the package obstore.

Credentials come from the environment variables of the store, for example `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit

from ammrank_dask.storage.errors import BadInput, NoPermission, StoreFailed, cut
from ammrank_dask.storage.objects.objects import Conflict, Object, Tag, check_key, conflict

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
ATTEMPTS = 5
"""How often a request is made that the store could not answer."""

REQUEST_SECONDS = 60
"""After which a request is not made again."""

ONE_REQUEST_BYTES = 1 << 29
"""What is larger is uploaded in parts, of which a crash leaves some that no listing shows."""

PAUSES = (0.1, 0.3, 1.0)
"""Seconds before a conditional write is made again that met another request at the same time."""

GUARDS: dict[str, Callable[[], None]] = {}
"""By URL, what raises SiteBusy where this process may no longer write."""

_REFUSED = re.compile(r"status code: 40[013]|AccessDenied|Expired")
_UNKNOWN = re.compile(r"status code: 40[01]|Expired|InvalidToken|InvalidAccessKey|SignatureDoesNotMatch|AuthFailure")
"""Of what a store refuses, what it says to credentials that are none."""


@dataclass(frozen=True)
class StoreObjects:
    """Objects below a prefix of a bucket.

    Attributes
    ----------
    url
        Scheme, bucket and prefix.
    options
        The query of the URL: `region`, and for a store that is not Amazon's `endpoint_override` and `scheme`.
    """

    url: str
    options: str = ""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the objects of a URL with its query."""
        address, _, options = url.partition("?")
        objects = cls(address.rstrip("/"), options)
        open_bucket(objects.url, objects.options)  # a package that is missing is named before anything is computed
        return objects

    def __str__(self) -> str:
        return self.url

    def get(self, key: str) -> tuple[bytes, Tag]:
        """Return an object and its tag; raises FileNotFoundError when there is none."""
        with self._opened() as store:
            found = store.get(check_key(key))
            return bytes(found.bytes()), self._tag_of(found.meta)

    def get_ranges(self, key: str, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return stretches of an object, fetched at once; one that ends behind its end is cut there."""
        wanted = [(start, size) for start, size in zip(starts, sizes, strict=True) if size]
        with self._opened() as store:
            read = iter(
                store.get_ranges(
                    check_key(key),
                    starts=[start for start, _ in wanted],
                    lengths=[size for _, size in wanted],
                )
            )
        return [bytes(next(read)) if size else b"" for size in sizes]

    def put(self, key: str, pieces: Iterable[bytes]) -> Tag:
        """Write an object from pieces, in place of one that was there; it is durable when this returns."""
        data = b"".join(pieces)
        with self._writing() as store:
            is_large = len(data) > ONE_REQUEST_BYTES
            return self._tag_of(store.put(check_key(key), data, use_multipart=is_large))

    def put_if(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Write an object if the one that is there has a tag, None for none there; raises Conflict otherwise.

        An answer may be lost, and the request that follows it then meets its own object. So the object is read before
        a conflict is believed; what has the bytes that were to be written was written. Who must tell two writers from
        each other writes something of its own into the object.
        """
        mode: Any = "create" if tag is None else {self._tag_name: tag}
        for pause in (0, *PAUSES):
            time.sleep(pause)
            try:
                with self._writing() as store:
                    return self._tag_of(store.put(check_key(key), data, mode=mode, use_multipart=False))
            except (Conflict, StoreFailed) as error:
                failure = error
            with contextlib.suppress(StoreFailed):  # nobody knows: what is put again has the tag of the first time
                found, now = self._find(key)
                if found == data and now is not None:
                    return now
                if now != tag:
                    raise conflict(f"{self.url}/{key}", now)
        raise failure

    @property
    def _tag_name(self) -> str:
        """What the store compares: Google's generations, entity tags of all others."""
        return "version" if self.url.startswith("gs:") else "e_tag"

    def _tag_of(self, meta: Any) -> Tag:
        return str(meta[self._tag_name])

    def _find(self, key: str) -> tuple[bytes | None, Tag | None]:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None, None

    def look(self, key: str) -> dict[str, Any]:
        """Return `size`, `last_modified` and `version` of an object as the store has them."""
        with self._opened() as store:
            return dict(store.head(check_key(key)))

    def copy(self, source: str, target: str) -> None:
        """Give an object another key, within the store; objects do not change, so a target that is there stays."""
        with self._writing() as store:
            try:
                store.head(check_key(target))
            except FileNotFoundError:
                store.copy(check_key(source), target)

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose keys begin with a prefix, in order of their keys: for sweep and verify only."""
        above = prefix.rpartition("/")[0]
        with self._opened() as store:
            listed = [found for chunk in store.list(above or None) for found in chunk]
        yield from sorted(
            (Object(found["path"], found["size"]) for found in listed if found["path"].startswith(prefix)),
            key=lambda one: one.key,
        )

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""
        with self._writing() as store:
            store.delete([check_key(key) for key in keys])

    def _writing(self) -> contextlib.AbstractContextManager[ObjectStore]:
        """Yield the store to write to, as `_opened` does."""
        GUARDS.get(self.url, lambda: None)()
        return self._opened()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[ObjectStore]:
        """Yield the store, and turn what it answers into one sentence; no such object stays FileNotFoundError."""
        store = open_bucket(self.url, self.options)
        from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, JoinError, PreconditionError

        try:
            yield store
        except (FileNotFoundError, BaseError) as error:
            reason = cut(str(error).partition("Debug source")[0])
            if "NoSuchBucket" in str(error):
                bucket = "/".join(self.url.split("/")[:3])
                raise BadInput(f"there is no bucket {bucket}; correct the URL {self.url}") from None
            if isinstance(error, AlreadyExistsError | PreconditionError):
                raise Conflict(f"{self.url} takes no conditional writes at present ({reason}); run it again") from None
            if "TimeTooSkewed" in str(error):
                raise BadInput(
                    f"{self.url}: the clocks of this machine and of the store differ; set it by NTP"
                ) from None
            if "NotImplemented" in str(error):
                raise BadInput(
                    f"{self.url}: the store does not have what a site needs ({reason}); use one with conditional writes"
                ) from None
            if _REFUSED.search(str(error)):
                raise (BadInput if _UNKNOWN.search(str(error)) else NoPermission)(
                    f"{self.url}: the store refuses the credentials of this process ({reason}); renew them, or give"
                    " them the right to list, read, write and delete"
                ) from None
            if isinstance(error, GenericError | JoinError):
                raise StoreFailed(
                    f"{self.url} cannot be reached ({reason}); what is published is whole, run the command again"
                ) from None
            raise


@functools.lru_cache(maxsize=16)
def open_bucket(url: str, options: str) -> ObjectStore:
    """Return the store of a URL; one for each is open in a process."""
    parts = urlsplit(url)
    if "@" in parts.netloc and parts.scheme.startswith("s3"):
        raise BadInput(f"a URL of {parts.scheme}:// must not hold credentials; give them in the environment")
    if parts.scheme not in SCHEMES:
        raise BadInput(f"{url}: objects are not written to {parts.scheme}://; name a folder, s3://, gs:// or az://")
    try:
        from obstore.store import from_url
    except ImportError:
        raise BadInput(
            f"{url} needs the package obstore, which is not installed; run pip install 'ammrank-dask[object-store]'"
        ) from None
    config: dict[str, Any] = {}
    for name, value in parse_qsl(options):
        if name == "region":
            config["region"] = value
        elif name == "endpoint_override":
            config["endpoint"] = f"{dict(parse_qsl(options)).get('scheme', 'https')}://{value}"
        elif name != "scheme":
            raise BadInput(f"{url} has an option {name}; give region, endpoint_override or scheme, or none")
    endpoint = config.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
    more: dict[str, Any] = {"config": config or None}
    if endpoint.startswith("http://"):
        more["client_options"] = {"allow_http": True}
    retries: Any = {"max_retries": ATTEMPTS - 1, "retry_timeout": dt.timedelta(seconds=REQUEST_SECONDS)}
    from obstore.exceptions import BaseError

    try:
        return from_url(url, retry_config=retries, **more)
    except BaseError as error:  # of the URL, or of what the environment says of the store
        reason = cut(str(error).partition("Debug source")[0])
        raise BadInput(f"{url} cannot be opened ({reason}); correct the URL, or the environment") from None
