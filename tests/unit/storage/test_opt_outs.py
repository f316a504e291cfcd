"""Files of opt-outs: what is read, and one sentence about what cannot be."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.people import opt_outs_by_name, read_opt_outs

CATEGORIES = ["Flights", "Hats, caps", "Shoes"]


def pairs_of(opt_outs):
    ids = opt_outs.user_ids.to_arrow().to_pylist()
    return [(ids[user], CATEGORIES[code]) for user, code in zip(opt_outs.user, opt_outs.code, strict=True)]


@pytest.mark.parametrize("header", ["user_id,category\n", ""])
def test_read_opt_outs__text_in_any_order_each_pair_once(tmp_path, header):
    path = tmp_path / "out.csv"
    path.write_text(f'{header}8,Shoes\n\n-3,"Hats, caps"\n8,Flights\n8,Shoes\n')
    assert pairs_of(read_opt_outs(path, "int64", CATEGORIES)) == [(-3, "Hats, caps"), (8, "Flights"), (8, "Shoes")]


@pytest.mark.parametrize(("kind", "users"), [("int64", [8, -3]), ("string", ["b", "ä"])])
def test_read_opt_outs__parquet(tmp_path, kind, users):
    path = tmp_path / "out.parquet"
    pq.write_table(pa.table({"category": ["Shoes", "Flights"], "user_id": users}), path)
    assert sorted(pairs_of(read_opt_outs(path, kind, CATEGORIES))) == sorted(
        zip(users, ["Shoes", "Flights"], strict=True)
    )


def test_read_opt_outs__former_names_are_those_of_now(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("8,Sneakers\n8,Fax machines\n9,Flights\n")
    names_now = {"Sneakers": "Shoes", "Fax machines": None, "Flights": "Shoes"}
    assert pairs_of(read_opt_outs(path, "int64", CATEGORIES, names_now)) == [(8, "Shoes"), (9, "Flights")]
    with pytest.raises(BadInput, match="line 1: there is no ranked category 'Sandals'"):
        read_opt_outs(path, "int64", CATEGORIES, {"Sneakers": "Sandals"})


def test_read_opt_outs__an_empty_file_has_none(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("user_id,category\n")
    assert pairs_of(read_opt_outs(path, "int64", CATEGORIES)) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8,Shoos\n", r"out\.csv, line 1: there is no ranked category 'Shoos'; did you mean 'Shoes'\?"),
        ("user_id,category\nx,Shoes\n", r"out\.csv, line 2: user ids of this site are 64-bit integers, found text"),
        ("8\n", r"out\.csv, line 1: must be user_id,category, found 1 fields"),
        ("8,Hats, caps\n", r"out\.csv, line 1: must be user_id,category, found 3 fields"),
    ],
)
def test_read_opt_outs__what_cannot_be_read_is_refused(tmp_path, text, message):
    path = tmp_path / "out.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_opt_outs(path, "int64", CATEGORIES)


def test_read_opt_outs__a_table_without_its_columns_is_refused(tmp_path):
    path = tmp_path / "out.parquet"
    pq.write_table(pa.table({"user": [1]}), path)
    with pytest.raises(BadInput, match="must have the columns user_id and category, found user"):
        read_opt_outs(path, "int64", CATEGORIES)
    path.write_bytes(b"no parquet")
    with pytest.raises(BadInput, match=r"cannot read .*out\.parquet"):
        read_opt_outs(path, "int64", CATEGORIES)


def test_opt_outs__those_of_some_users(tmp_path):
    opt_outs = opt_outs_by_name([(5, "Shoes"), (2, "Flights"), (5, "Flights"), (9, "Shoes")], CATEGORIES)
    assert pairs_of(opt_outs.of_users(np.array([1, 2]))) == [(5, "Flights"), (5, "Shoes"), (9, "Shoes")]
    with pytest.raises(BadInput, match="opt_out, pair 2: there is no ranked category 'x'"):
        opt_outs_by_name([(5, "Shoes"), (2, "x")], CATEGORIES)
    for strange in ("ab", 7, (5, "Shoes", 1)):
        with pytest.raises(BadInput, match="opt_out, pair 2: must be a user id and the name of a category"):
            opt_outs_by_name([(5, "Shoes"), strange], CATEGORIES)
