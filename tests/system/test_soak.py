"""Writers of one site in a bucket, of which some are killed and some stopped: what is published is whole, and once."""

import os

import pytest
from s3 import serve_s3
from soak import Soak


def soak(folder, seconds):
    with serve_s3() as server:
        server.make_bucket("soak")
        soaked = Soak(server, server.url("soak/site"), folder)
        soaked.run(seconds)
    assert soaked.problems == []
    return soaked.counts


@pytest.mark.system
def test_soak__for_some_seconds(tmp_path):
    counts = soak(tmp_path, 20)
    assert counts["nights"] > 1
    assert counts["reads"] > 20
    assert counts["lost answers"] > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_soak__for_half_an_hour(tmp_path):
    counts = soak(tmp_path, 60 * float(os.environ.get("AMMRANK_SOAK_MINUTES", "30")))
    assert counts["nights"] > 50
    for faults in ("409s", "500s and 503s", "slow answers", "kills", "stops beyond the lease"):
        assert counts[faults] > 5
    assert counts["stops between list and delete"] > 0
    assert counts["commands that exited 75"] > counts["commands that exited 1"]
