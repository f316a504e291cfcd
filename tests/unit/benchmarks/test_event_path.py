"""The functions that the path of an event is made of are where the benchmark says."""

import importlib

import pytest

from benchmarks.event_path import WORK


@pytest.mark.parametrize("name", [name for stage in WORK.values() for name in stage])
def test_work__names_functions_that_are_there(name):
    file, _, function = name.partition(":")
    room, _, rest = file.removesuffix(".py").replace("/", ".").partition(".")
    package = "ammrank_dask" if room == "ammrank_dask" else f"ammrank_dask.{room}"
    found = importlib.import_module(f"{package}.{rest}")
    for part in function.split("."):
        found = getattr(found, part)
    plain = getattr(found, "py_func", found)
    owner = getattr(plain, "__module__", f"{package}.{rest}")
    assert owner == f"{package}.{rest}"
