"""Commands that join a scheduler whose certificates or versions are not theirs: one sentence, and exit code 65."""

from pathlib import Path

import pytest
from certificates import write_certificates
from click.testing import CliRunner
from distributed import Client
from nights import day
from schedulers import running_scheduler

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.cluster.cluster_file import Tls, check_scheduler_name
from ammrank_dask.workflows.cluster.open import _security

pytestmark = pytest.mark.night


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """Return certificates by name, each pair with an authority of its own."""
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "good": write_certificates(folder / "good"),
        "other": write_certificates(folder / "other"),
        "far": write_certificates(folder / "far", hosts=["10.0.0.9", "*.far.example"]),
        "of nobody": write_certificates(folder / "nobody", hosts=[]),
        "expired": write_certificates(folder / "expired", days=-1),
        "expired alone": write_certificates(folder / "alone", days=-1, authority_days=5),
    }


def tls_of(authority, own, **more):
    return Tls(ca_file=str(authority.ca), cert=str(own.cert), key=str(own.key), **more)


def join(site, tmp_path, address, tls=None):
    """Run the command of a night on the scheduler, and return its exit code and what it says."""
    path = tmp_path / "joined.yaml"
    security = "network: trusted" if tls is None else f"security: {tls.model_dump_json(exclude_none=True)}"
    path.write_text(f"version: 1\naddress: {address}\ntimeout: 20\n{security}\n")
    done = CliRunner().invoke(ammrank, ["nightly", str(site.path), "--date", str(day(6)), "--cluster", str(path)])
    assert done.stdout == ""
    assert site.current().date == day(5)
    return done.exit_code, done.stderr


REFUSED = {
    "of another authority": (("good", "good"), ("other", "other"), "certificates (certificate signature failure)"),
    "the command's not accepted": (("good", "good"), ("good", "other"), "accept each other's TLS certificates ("),
    "the scheduler's expired": (("expired alone",) * 2, ("expired alone", "good"), "(certificate has expired)"),
    "of another host": (("far", "far"), ("far", "far"), "is that of 10.0.0.9, *.far.example and not of 127.0.0.1;"),
}


@pytest.mark.parametrize(("scheduler", "own", "sentence"), REFUSED.values(), ids=REFUSED)
def test_nightly__certificates_that_do_not_fit_exit_65(papers, site, tmp_path, scheduler, own, sentence):
    shown, asked = (tls_of(papers[authority], papers[cert]) for authority, cert in (scheduler, own))
    with running_scheduler(security=_security(shown)) as address:
        code, message = join(site, tmp_path, address, asked)
    assert code == 65, message
    assert sentence in message
    assert len(message.splitlines()) == 1


def test_nightly__own_certificates_that_expired_exit_65(papers, site, tmp_path):
    code, message = join(site, tmp_path, "tls://127.0.0.1:9", tls_of(papers["expired"], papers["expired"]))
    assert code == 65, message
    assert "ca.pem (security.ca_file) expired on 20" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("pair", ["good", "of nobody", "far"])
def test_check_scheduler_name__a_certificate_of_the_host_or_of_none(papers, pair):
    tls = tls_of(papers[pair], papers[pair])
    security = _security(tls)
    fitting = {
        "good": [None, "127.0.0.1"],
        "of nobody": [None, "x"],
        "far": ["10.0.0.9", "a.FAR.example", "b.far.example."],
    }
    wrong = {"good": ["localhost", "127.0.0.2"], "of nobody": [], "far": [None, "far.example", "a.b.far.example", "x"]}
    with (
        running_scheduler(security=security) as address,
        Client(address, security=security, set_as_default=False) as client,
    ):
        for name in fitting[pair]:
            named = tls.model_copy(update={"scheduler_name": name})
            check_scheduler_name(client, address, named, Path("cluster.yaml"))
        for name in wrong[pair]:
            named = tls.model_copy(update={"scheduler_name": name})
            with pytest.raises(BadInput, match=f"and not of {name or '127.0.0.1'}; give the scheduler its own"):
                check_scheduler_name(client, address, named, Path("cluster.yaml"))


def test_nightly__a_scheduler_of_another_version_exits_65(site, tmp_path):
    with running_scheduler(versions={"distributed": "2020.1.0"}) as address:
        code, message = join(site, tmp_path, address)
    assert code == 65, message
    assert "the scheduler has distributed 2020.1.0 instead of 20" in message
    assert len(message.splitlines()) == 1
