"""The users table as ingest reads and decodes it: ages, genders, duplicates, and what is refused."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import write_lake, write_table, write_users
from taken_in import take_users

from ammrank_dask.storage.errors import BadInput


def test_decode_people__users_are_kept_whatever_is_unknown_of_them(tmp_path):
    people = [
        (1, -3, "female"), (2, 400, "male"), (3, None, "Weiblich"), (4, 0, "n/a"), (5, 120, None), (6, 121, "m"),
    ]  # fmt: skip
    write_users(tmp_path, people)
    taken = take_users(tmp_path, genders={"female": ["female"], "male": ["male", "m"], "ignore": ["n/a"]})
    assert taken.people == {1: (-1, 0), 2: (-1, 1), 3: (-1, -1), 4: (0, -1), 5: (120, -1), 6: (-1, 1)}
    assert taken.counts == {"age_out_of_range": 3, "unknown_gender": 1}
    assert taken.unknown_values == {"-3": 1, "121": 1, "400": 1, "Weiblich": 1}
    assert {(row["reason"], row["file"], row["row"], row["value"]) for row in taken.bad_rows} == {
        ("age_out_of_range", "users.parquet", 0, "-3"),
        ("age_out_of_range", "users.parquet", 1, "400"),
        ("age_out_of_range", "users.parquet", 5, "121"),
        ("unknown_gender", "users.parquet", 2, "Weiblich"),
    }


@pytest.mark.parametrize(
    ("type_", "ages", "n_bad"),
    [
        (pa.float64(), [float("nan"), 33.9, float("inf"), None], 1),
        (pa.int64(), [None, 33, 2**62, None], 1),
        (pa.uint8(), [None, 33, 255, None], 1),
        (pa.null(), [None] * 4, 0),
    ],
    ids=str,
)
def test_decode_people__ages_of_any_number_type(tmp_path, type_, ages, n_bad):
    write_users(tmp_path, [(user, age, None) for user, age in enumerate(ages, 1)], age=type_)
    taken = take_users(tmp_path)
    assert taken.people == {1: (-1, -1), 2: (33 if n_bad else -1, -1), 3: (-1, -1), 4: (-1, -1)}
    assert taken.counts == ({"age_out_of_range": n_bad} if n_bad else {})


def test_decode_people__user_with_two_problems_is_one_bad_row(tmp_path):
    write_users(tmp_path, [(1, 400, "?"), (2, -3, "?")])
    taken = take_users(tmp_path)
    assert taken.n_bad == 2
    assert taken.counts == {"age_out_of_range": 2, "unknown_gender": 2}


def test_user_reader__first_row_of_a_duplicate_user_counts(tmp_path):
    write_users(tmp_path, [(1, 20, "male"), (2, 30, None), (1, 50, "female"), (1, 60, None)])
    taken = take_users(tmp_path)
    assert taken.people == {1: (20, 1), 2: (30, -1)}
    assert taken.counts == {"duplicate_user": 2}
    assert [(row["reason"], row["file"], row["row"], row["user_id"]) for row in taken.bad_rows] == [
        ("duplicate_user", "users.parquet", 2, "1"),
        ("duplicate_user", "users.parquet", 3, "1"),
    ]


def test_decode_people__row_without_a_user_id_is_left_out(tmp_path):
    write_users(tmp_path, [(1, 20, "male"), (None, 30, "female")])
    taken = take_users(tmp_path)
    assert taken.people == {1: (20, 1)}
    assert taken.counts == {"no_user_id": 1}


@pytest.mark.parametrize(
    ("ids", "type_"), [((1, 2, 0), pa.int64()), (("a", "b", "unknown"), pa.string())], ids=["int64", "string"]
)
def test_decode_people__unknown_user_ids_are_nobody(tmp_path, ids, type_):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=type_)
    taken = take_users(lake, unknown_user_ids=[0, "unknown"])
    assert taken.counts == {"no_user_id": 1}
    assert ids[2] not in taken.people
    assert len(taken.people) == 3


def test_decode_people__other_column_names_are_mapped(tmp_path):
    users = pq.read_table(write_users(tmp_path, [(1, 20, "male")])).rename_columns(["uid", "years", "sex"])
    write_table(tmp_path / "users.parquet", users)
    names = {"user_id": "uid", "age": "years", "gender": "sex"}
    assert take_users(tmp_path, columns=names).people == {1: (20, 1)}


def test_decode_people__ages_may_be_decimals_as_warehouses_write_them(tmp_path):
    write_users(tmp_path, [(1, Decimal(20), "male"), (2, None, None)], age=pa.decimal128(3, 0))
    assert take_users(tmp_path).people == {1: (20, 1), 2: (-1, -1)}


@pytest.mark.parametrize(
    ("users", "types", "sentence"),
    [
        ([(1.0, 1, "male")], {"user_id": pa.float64()}, "user ids in 'user_id' must be int64 or string, found double"),
        ([(1, "34", "male")], {"age": pa.string()}, "'age' must be a number of years, found string"),
        ([(1, 34, 1)], {"gender": pa.int8()}, "'gender' must be a string, found int8"),
    ],
)
def test_decode_people__wrong_types_are_named(tmp_path, users, types, sentence):
    path = write_users(tmp_path, users, **types)
    with pytest.raises(BadInput) as error:
        take_users(tmp_path)
    assert str(error.value).startswith(f"{path}: {sentence}; convert")


def test_scan_file__missing_columns_of_users_are_named(tmp_path):
    path = write_users(tmp_path, gender=None)
    with pytest.raises(BadInput) as error:
        take_users(tmp_path)
    assert str(error.value) == (
        f"{path} has no column 'gender'; it has 'user_id', 'age'. Map the names under `columns` in ammrank.yaml"
    )
    assert take_users(tmp_path, columns={"gender": None}).people[1] == (34, -1)
