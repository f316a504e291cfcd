"""Parts that are zarr groups: zarr-python reads what is there, and damage is found before it is used."""

import itertools
import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.store.groups import Group, write_group

ARRAYS = {
    "user_id": np.array([3, 9]),
    "X/data": np.array([0.5, 1.5, 2.5], np.float32),
    "X/indices": np.array([1, 0, 1], np.uint16),
    "X/indptr": np.array([0, 1, 3]),
    "gender": np.zeros(2, np.int8),
    "user_id_bytes": np.empty(0, np.uint8),
}
CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [2, 2]}


def write(folder, arrays=ARRAYS):
    """Write a group and return its checksum."""
    size, checksum = write_group(folder, arrays, {"X": CSR})
    assert size == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return checksum


def test_write_group__zarr_reads_it_and_finds_nothing_else(tmp_path):
    write(tmp_path / "part")
    group = zarr.open_group(tmp_path / "part", mode="r")
    assert {name for name, _ in group.members()} == {"X", "user_id", "gender", "user_id_bytes"}
    assert dict(group["X"].attrs) == CSR
    for name, array in ARRAYS.items():
        assert group[name].dtype == array.dtype
        np.testing.assert_array_equal(group[name][:], array)
        assert group[name].metadata.codecs[-1].to_dict() == {"name": "crc32c"}
        assert group[name].fill_value not in array
    # Zeros are written like any other values.
    assert (tmp_path / "part" / "gender" / "c" / "0").stat().st_size == 2 + 4


def test_write_group__a_lost_chunk_does_not_look_like_values(tmp_path):
    checksum = write(tmp_path / "part")
    (tmp_path / "part" / "X" / "data" / "c" / "0").unlink()
    assert np.isnan(zarr.open_group(tmp_path / "part", mode="r")["X/data"][:]).all()
    with pytest.raises(DamagedStore, match="X/data/c/0 is missing; rebuild it"):
        Group(tmp_path / "part", checksum, "rebuild it").rows("X/data")


def test_write_group__twice_gives_the_same_bytes(tmp_path):
    assert write(tmp_path / "one") == write(tmp_path / "two")
    for path in (tmp_path / "one").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_group__has_the_attributes_of_a_group_inside(tmp_path):
    assert Group(tmp_path / "part", write(tmp_path / "part"), "rebuild it").attributes("X") == CSR


@given(
    array=st.sampled_from(["int8", "uint8", "uint16", "uint32", "int64", "float32", "float64"]).flatmap(
        lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=2, min_side=0, max_side=20))
    ),
    data=st.data(),
)
def test_group__has_the_rows_of_any_stretch(tmp_path_factory, array, data):
    folder = tmp_path_factory.mktemp("group") / "part"
    group = Group(folder, write(folder, {"a": array}), "rebuild it")
    assert (group.arrays["a"].shape, group.arrays["a"].dtype) == (array.shape, array.dtype)
    cuts = sorted({0, len(array), *data.draw(st.lists(st.integers(0, len(array)), max_size=3))})
    for start, stop in itertools.pairwise(cuts):
        rows = group.rows("a", start, stop)
        np.testing.assert_array_equal(rows, array[start:stop])
        assert rows.flags.writeable
    np.testing.assert_array_equal(group.rows("a"), array)


@pytest.mark.parametrize("position", [0, 5, -1, -5], ids=["value", "another", "checksum of zarr", "last value"])
def test_group__finds_any_flipped_byte_of_a_chunk(tmp_path, position):
    group = Group(tmp_path / "part", write(tmp_path / "part"), "rebuild it")
    path = tmp_path / "part" / "X" / "indptr" / "c" / "0"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedStore, match=r"X/indptr/c/0 is not what was written \(checksum differs\); rebuild it"):
        group.rows("X/indptr", 0, 1)


def test_group__metadata_says_what_every_file_is(tmp_path):
    write(tmp_path / "part")
    listed = json.loads((tmp_path / "part" / "zarr.json").read_text())["attributes"]["files"]
    files = {
        path.relative_to(tmp_path / "part").as_posix() for path in (tmp_path / "part").rglob("*") if path.is_file()
    }
    assert files - {"zarr.json"} == set(listed)
