"""Arrays of a running job: what is written is read back, mapped or not, by any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ammrank_dask.storage.store.scratch_arrays import (
    ArrayWriter,
    RowReader,
    is_saved,
    load_array,
    load_arrays,
    load_facts,
    save_arrays,
)

ARRAYS = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.zeros((0, 4), np.int16),
    "flags": np.array([True, False]),
}


@pytest.mark.parametrize("mapped", [False, True])
def test_load_array__is_what_was_saved(tmp_path, mapped):
    folder = tmp_path / "new" / "saved"
    assert not is_saved(folder)
    save_arrays(folder, ARRAYS, {"n": 3})
    assert is_saved(folder)
    assert load_facts(folder) == {"n": 3}
    for name, array in ARRAYS.items():
        found = load_array(folder, name, mapped=mapped)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable or mapped
        assert found.flags.aligned
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.bin", "facts.json"]
    arrays, facts = load_arrays(folder)
    assert {name: array.tolist() for name, array in arrays.items()} == {name: a.tolist() for name, a in ARRAYS.items()}
    assert facts == {"n": 3}


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 2), (1, 2), (2, 2)])
def test_row_reader__gives_the_stretch_that_was_asked_for(tmp_path, start, stop):
    arrays = {
        "wide": np.arange(6, dtype=np.int16).reshape(2, 3),
        "flat": np.array([0.5, 1.5]),
        "empty": np.zeros((2, 0)),
    }
    save_arrays(tmp_path / "saved", arrays, {})
    reader = RowReader(tmp_path / "saved")
    for name, array in arrays.items():
        found = reader.read(name, start, stop)
        np.testing.assert_array_equal(found, array[start:stop])
        assert found.dtype == array.dtype
        assert found.flags.writeable


@pytest.mark.parametrize(
    ("starts", "stops", "expected"),
    [([], [], []), ([1], [3], [1, 2]), ([0, 3, 9], [1, 5, 10], [0, 3, 4, 9]), ([2, 4], [2, 6], [4, 5])],
)
def test_row_reader__stretches_of_rows(tmp_path, starts, stops, expected):
    rows = np.arange(20, dtype=np.int32).reshape(10, 2)
    with ArrayWriter(tmp_path / "saved") as writer:
        writer.append("rows", rows)
        writer.finish({})
    found = RowReader(tmp_path / "saved").read_stretches("rows", np.array(starts, np.int32), np.array(stops, np.int32))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, rows[np.array(expected, np.int64)])


def test_row_reader__a_file_that_was_cut_short_is_an_error(tmp_path):
    save_arrays(tmp_path / "saved", {"rows": np.arange(10)}, {})
    (packed,) = (tmp_path / "saved").glob("*.bin")
    packed.write_bytes(packed.read_bytes()[:-4])
    with pytest.raises(OSError, match="the file is shorter than it was"):
        RowReader(tmp_path / "saved").read_stretches("rows", np.array([0, 9]), np.array([2, 10]))


def test_load_array__by_many_threads_at_once(tmp_path):
    save_arrays(tmp_path / "saved", ARRAYS, {})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_array(tmp_path / "saved", "floats").sum(), range(400)))
    assert set(found) == {15.0}


def test_save_arrays__takes_nothing_over_that_an_earlier_version_left(tmp_path):
    folder = tmp_path / "model"
    save_arrays(folder, {"x": np.arange(3)}, {})
    save_arrays(folder, {"x": np.arange(3), "lift": np.arange(2)}, {})
    np.testing.assert_array_equal(load_array(folder, "lift"), [0, 1])


@pytest.mark.parametrize("cuts", [(0,), (0, 0, 1), (3, 12)])
def test_array_writer__pieces_make_the_file_of_the_whole(tmp_path, cuts):
    whole = {"flat": np.arange(12, dtype=np.int32), "wide": np.arange(36, dtype=np.float32).reshape(12, 3)}
    with ArrayWriter(tmp_path / "whole") as writer:
        for name, array in whole.items():
            writer.append(name, array)
        writer.finish({"n": 1})
    with ArrayWriter(tmp_path / "pieces") as writer:
        for name, array in whole.items():
            for piece in np.split(array, cuts):
                writer.append(name, piece)
        writer.finish({"n": 1})
    for file in ("flat.npy", "wide.npy", "facts.json"):
        assert (tmp_path / "pieces" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    np.testing.assert_array_equal(np.load(tmp_path / "pieces" / "wide.npy"), whole["wide"])
    assert is_saved(tmp_path / "pieces")


def test_array_writer__refuses_other_rows_and_leaves_nothing_unfinished(tmp_path):
    with ArrayWriter(tmp_path / "saved") as writer:
        writer.append("x", np.zeros((2, 3)))
        with pytest.raises(ValueError, match=r"rows of x must be <f8 \[3\], got <f4 \(3,\)"):
            writer.append("x", np.zeros((2, 3), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_is_saved__not_when_a_power_cut_left_a_file_without_content(tmp_path):
    folder = tmp_path / "rows"
    save_arrays(folder, {"x": np.arange(3), "none": np.zeros((0, 2))}, {"step": 1})
    assert is_saved(folder)
    (folder / "arrays.bin").write_bytes(b"")
    assert not is_saved(folder)
    # It is written again, and not taken for the work of a faster twin.
    save_arrays(folder, {"x": np.arange(4)}, {"step": 2})
    assert is_saved(folder)
    np.testing.assert_array_equal(load_array(folder, "x"), np.arange(4))
    (folder / "facts.json").write_bytes(b"")
    assert not is_saved(folder)
    assert not is_saved(tmp_path / "never")
