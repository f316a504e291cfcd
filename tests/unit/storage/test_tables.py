"""Arrow tables of a site: any arrays come back as they were, other programs read them, and damage is found first."""

import google_crc32c
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.tables import encode_arrays, encode_users, read_arrow, write_arrow

DTYPES = ("int8", "uint8", "int16", "uint16", "uint32", "int64", "float32", "float64")


def write(path, batch):
    """Write a table and return its checksum."""
    size, checksum = write_arrow(path, batch)
    assert size == path.stat().st_size
    assert checksum == f"{google_crc32c.value(path.read_bytes()):08x}"
    return checksum


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable, name
        assert found[name].flags.aligned, name


@st.composite
def users(draw):
    """Ids of either kind, and cells of each user."""
    values = draw(st.one_of(st.sets(st.integers(-(2**63), 2**63 - 1)), st.sets(st.text(max_size=5))))
    counts = draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    n = int(starts[-1])
    cells = {
        "cell": draw(hnp.arrays(draw(st.sampled_from(["uint16", "uint32"])), n)),
        "intensity": draw(hnp.arrays("float64", n)),
        "last": draw(hnp.arrays("int64", n)),
    }
    return {**ids_from_values(sorted(values)).to_arrays(), "indptr": starts}, cells


@given(drawn=users())
def test_users__come_back_as_they_were(tmp_path_factory, drawn):
    path = tmp_path_factory.mktemp("table") / "part"
    checksum = write(path, encode_users(*drawn))
    assert_same(read_arrow(path, checksum, "rebuild it").users(), {**drawn[0], **drawn[1]})


@given(
    arrays=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(DTYPES).flatmap(lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=3, min_side=0))),
        min_size=1,
    )
)
def test_arrays__come_back_as_they_were(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("table") / "part"
    checksum = write(path, encode_arrays(arrays))
    assert_same(read_arrow(path, checksum, "rebuild it").arrays(), arrays)


def two_users():
    starts = np.array([0, 1, 3])
    cells = {"cell": np.array([5, 0, 7], np.uint16), "intensity": np.array([0.5, 1.5, 2.5]), "last": np.arange(3)}
    return encode_users({**ids_from_values(["a", "bc"]).to_arrays(), "indptr": starts}, cells)


def test_write_table__pandas_and_pyarrow_read_it(tmp_path):
    write(tmp_path / "part.arrow", two_users())
    frame = pd.read_feather(tmp_path / "part.arrow")
    assert frame["user_id"].tolist() == ["a", "bc"]
    assert [len(cells) for cells in frame["cells"]] == [1, 2]
    assert frame["cells"][1][1] == {"cell": 7, "intensity": 2.5, "last": 2}
    table = pa.ipc.open_file(tmp_path / "part.arrow").read_all()
    table.validate(full=True)
    assert str(table.schema.field("cells").type.value_type) == ("struct<cell: uint16, intensity: double, last: int64>")


def test_read_table__what_is_read_may_be_changed_and_the_file_stays(tmp_path):
    checksum = write(tmp_path / "part", two_users())
    before = (tmp_path / "part").read_bytes()
    read_arrow(tmp_path / "part", checksum, "rebuild it").users()["last"][:] = 9
    assert (tmp_path / "part").read_bytes() == before


@settings(max_examples=300)
@given(data=st.data())
def test_read_table__a_flipped_bit_anywhere_is_found_before_arrow_reads_it(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("table") / "part"
    checksum = write(path, two_users())
    whole = bytearray(path.read_bytes())
    bits = data.draw(st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=4, unique=True))
    for bit in bits:
        whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)
    with pytest.raises(DamagedStore, match=rf"{path} is not what was written \(checksum differs\); rebuild it"):
        read_arrow(path, checksum, "rebuild it")


def test_write_table__a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_arrow(tmp_path / "part", two_users())
    assert list(tmp_path.iterdir()) == []
