"""The end of a process that neither its main thread nor a process that it started lets go."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

CODE = """
import hashlib, subprocess, sys
from ammrank_dask.workflows.session.deadline import ended_in_time
from ammrank_dask.workflows.session.options import stopped_in_a_sentence

with ended_in_time(), stopped_in_a_sentence():
    print(subprocess.Popen(["sleep", "600"], stderr=subprocess.DEVNULL).pid, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # no handler of a signal is called before it ends
"""


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        (signal.SIGINT, 130, "ammrank: interrupted; run the same command again to go on\n"),
        (signal.SIGTERM, 143, "ammrank: stopped by SIGTERM; run the same command again to go on\n"),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_ended_in_time__a_main_thread_in_a_long_call_is_not_waited_for(number, code, sentence):
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that a shell runs in the background inherit that the signal is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            child = psutil.Process(int(process.stdout.readline()))
            time.sleep(0.2)
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, said) == (code, sentence)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
