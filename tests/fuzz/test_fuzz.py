"""Odd files from outside are read or refused in one sentence, and what does neither is found."""

import pytest

from tests.fuzz.machine import try_files
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "KeyError: 'path'"),
        ("rambles", "not one sentence: 'one line"),
        ("dies", "exit code -6"),
        ("hangs", "no answer within 5 s"),
        ("grows", "MiB more than at the start"),
    ],
)
def test_try_files__finds_a_reader_that_is_broken(name, why):
    outcome = try_files(1, 120, [name], 1, patience=5 if name == "hangs" else 60)
    assert outcome.cases == 1
    (found,) = outcome.findings
    assert found.startswith(f"seed 1, file 0, {name}: ")
    assert why in found


def test_read__odd_files_of_all_kinds():
    outcome = try_files(1, 120, cases=700)
    assert outcome.findings == []
    assert outcome.cases == 700
    assert set(outcome.read) == set(outcome.refused) == set(TARGETS)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_read__odd_files_for_ten_minutes():
    outcome = try_files(2, 600)
    assert outcome.findings == []
    assert outcome.cases > 10_000
