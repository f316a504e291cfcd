"""Counts of pieces of work as lines of few files."""

import threading

from ammrank_dask.storage.store.parts import append_counts, read_counts


def test_read_counts__of_several_threads(tmp_path):
    append_counts(tmp_path, 0, {"kept": 3})
    thread = threading.Thread(target=append_counts, args=(tmp_path, 1, {"kept": 4}))
    thread.start()
    thread.join()
    append_counts(tmp_path, 2, {"kept": 5})
    assert read_counts(tmp_path) == {0: {"kept": 3}, 1: {"kept": 4}, 2: {"kept": 5}}
    assert len(list(tmp_path.iterdir())) == 2  # one a thread, not one a piece


def test_read_counts__a_piece_that_was_done_twice_counts_once(tmp_path):
    append_counts(tmp_path, 7, {"kept": 3})
    append_counts(tmp_path, 7, {"kept": 3})
    assert read_counts(tmp_path) == {7: {"kept": 3}}


def test_read_counts__a_line_cut_short_does_not_count_and_spoils_no_other(tmp_path):
    append_counts(tmp_path, 0, {"kept": 3})
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    append_counts(tmp_path, 1, {"kept": 4})
    for size in range(len(whole), path.stat().st_size - 1):  # without the last newline the line is whole
        path.write_bytes(path.read_bytes()[:size])
        assert read_counts(tmp_path) == {0: {"kept": 3}}
        append_counts(tmp_path, 2, {"kept": 5})
        assert read_counts(tmp_path) == {0: {"kept": 3}, 2: {"kept": 5}}
        path.write_bytes(whole)
        append_counts(tmp_path, 1, {"kept": 4})


def test_read_counts__of_no_folder(tmp_path):
    assert read_counts(tmp_path / "none") == {}
