"""An S3 server on loopback (moto's), whose requests a test may delay or fail."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs

from ammrank_dask.storage.lake.paths import RemotePath, open_store

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Answer = tuple[str, str] | None
"""Status and code of an error instead of the server's answer; None: as usual."""

RESET = ("reset", "")
"""No answer: the connection ends."""


@dataclass
class S3Server:
    """A server, the requests that it got, and what goes wrong with them."""

    port: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)
    fault: Callable[[str, str], Answer] | None = None
    lost: Callable[[str, str], Answer] | None = None

    def url(self, path: str) -> str:
        """Return the URL of a bucket or a path in one."""
        return f"s3://{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"

    def path(self, path: str) -> RemotePath:
        """Return a bucket or a path in one."""
        return RemotePath.parse(self.url(path))

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        store = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{self.port}", scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        store.create_dir(name)

    def keep_versions(self, name: str) -> None:
        """Let a bucket keep old versions of its objects."""
        self._client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def deny(self, name: str, action: str) -> None:
        """Let nobody do something in a bucket, as `s3:DeleteObject`."""
        rule = {"Effect": "Deny", "Principal": "*", "Action": action, "Resource": f"arn:aws:s3:::{name}/*"}
        policy = {"Version": "2012-10-17", "Statement": [rule]}
        self._client().put_bucket_policy(Bucket=name, Policy=json.dumps(policy))

    def _client(self) -> Any:
        from boto3 import client

        return client("s3", endpoint_url=f"http://127.0.0.1:{self.port}")

    def copy(self, folder: Path, path: str) -> str:
        """Copy a folder into a bucket, and return its URL."""
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            write_object(self.path(f"{path}/{file.relative_to(folder).as_posix()}"), file.read_bytes())
        return self.url(path)

    @contextlib.contextmanager
    def faults(self, fault: Callable[[str, str], Answer]) -> Iterator[None]:
        """Let `fault` look at method and path of every request first."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    @contextlib.contextmanager
    def losses(self, lost: Callable[[str, str], Answer]) -> Iterator[None]:
        """Let `lost` look at every request when it has been carried out: its answer goes instead of the server's."""
        self.lost = lost
        try:
            yield
        finally:
            self.lost = None


def write_object(path: RemotePath, data: bytes) -> None:
    """Write an object of a lake, which the product only reads."""
    found = open_store(path.store, path.options)
    with found.filesystem.open_output_stream(found.path(path.key)) as sink:
        sink.write(data)


def remove_object(path: RemotePath) -> None:
    """Remove an object of a lake."""
    found = open_store(path.store, path.options)
    found.filesystem.delete_file(found.path(path.key))


@contextlib.contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Run a server in a thread of this process, with credentials for it in the environment."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *args: Any) -> None:
            """Say nothing."""

    state = S3Server()
    one_request = threading.Lock()  # moto compares, writes and reads an object without one
    application = DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        state.requests.append((method, path))
        failed = None if state.fault is None else state.fault(method, path)
        if failed is None:
            head: list[Any] = []
            with one_request:
                done = list(application(environ, lambda *given: head.append(given)))
            failed = None if state.lost is None else state.lost(method, path)
            if failed is None:
                start(*head[0])
                return done
        if failed == RESET:
            raise ConnectionResetError
        status, code = failed
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        body = b"" if method == "HEAD" else body
        start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=Quiet)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join(10)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def slow(seconds: float) -> Callable[[str, str], Answer]:
    """Return a fault that delays every request."""

    def delay(method: str, path: str) -> Answer:
        time.sleep(seconds)
        return None

    return delay


def every(nth: int, status: str, code: str) -> Callable[[str, str], Answer]:
    """Return a fault that fails every nth request."""
    lock = threading.Lock()
    count = 0

    def fail(method: str, path: str) -> Answer:
        nonlocal count
        with lock:
            count += 1
            return (status, code) if count % nth == 0 else None

    return fail


def always(status: str, code: str) -> Callable[[str, str], Answer]:
    """Return a fault that fails all requests."""
    return lambda method, path: (status, code)
