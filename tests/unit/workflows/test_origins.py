"""Which pages a browser may let follow the dashboard of a cluster that is started here."""

import http.client
from urllib.parse import urlsplit

import pytest
from bokeh.util.token import generate_jwt_token, generate_session_id

from ammrank_dask.workflows.cluster.open import open_cluster

SETTING = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"


def status_of(port, page, origin):
    """Ask for a websocket of the page as a browser does for a page of `origin`; 101 is yes and 403 is no.

    The host is none of the origins: Tornado 6.6 takes an origin that is the host without asking Bokeh.
    """
    headers = {
        "Host": "other.example", "Origin": origin, "Upgrade": "websocket", "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": f"bokeh, {generate_jwt_token(generate_session_id())}",
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/{page}/ws", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def worker_port(dask_worker):
    return dask_worker.http_server.port


def write_cluster(folder, processes, *lines):
    path = folder / "cluster.yaml"
    kwargs = f"n_workers: 1, threads_per_worker: 1, processes: {processes}, dashboard_address: '127.0.0.1:0'"
    kwargs += ", worker_dashboard_address: '127.0.0.1:0'"
    path.write_text("\n".join(("version: 1", "class: distributed.LocalCluster", f"kwargs: {{{kwargs}}}", *lines)))
    return str(path)


@pytest.mark.parametrize("processes", ["true", "false"])
def test_open_cluster__websockets_are_for_pages_of_the_dashboard_only(tmp_path, processes):
    with open_cluster(write_cluster(tmp_path, processes), None, quiet=True) as client:
        port = urlsplit(client.dashboard_link).port
        (other,) = client.run(worker_port).values()
        for number, page in ((port, "status"), (other, "status")):
            for host in ("127.0.0.1", "localhost", "[::1]"):
                assert status_of(number, page, f"http://{host}:{number}") == 101
            for origin in ("http://evil.example", f"http://evil.example:{number}", "http://127.0.0.1:1", "null"):
                assert status_of(number, page, origin) == 403
        # Browsers keep answers without this header from pages of other origins.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for page in ("ammrank", "ammrank.json", "ammrank.events"):
            connection.request("GET", f"/{page}", headers={"Origin": "http://evil.example"})
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Access-Control-Allow-Origin")) == (200, None)
            if not page.endswith("events"):  # of which there is no end
                answer.read()
        connection.close()


@pytest.mark.parametrize("processes", ["true", "false"])
def test_open_cluster__origins_of_the_cluster_file_win(tmp_path, processes):
    path = write_cluster(tmp_path, processes, f"dask: {{{SETTING}: ['pages.example:80']}}")
    with open_cluster(path, None, quiet=True) as client:
        port = urlsplit(client.dashboard_link).port
        (other,) = client.run(worker_port).values()
        for number, page in ((port, "status"), (other, "status")):
            assert status_of(number, page, "http://pages.example") == 101
            assert status_of(number, page, f"http://127.0.0.1:{number}") == 403
