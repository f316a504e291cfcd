"""The taxonomy: what each category counts for, and what is said about a file that is wrong."""

import pytest
from lakes import TAXONOMY, write_taxonomy

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.taxonomy import (
    UNRANKED,
    build_taxonomy,
    compare_taxonomies,
    final_names,
    find_similar,
    flat_taxonomy,
    read_taxonomy,
)


def write_csv(folder, text):
    path = folder / "taxonomy.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("level", "categories", "code_of"),
    [
        (1, ("Retail", "Travel"), {"Boots": 0, "Retail": 0, "Flights": 1, "Travel": 1}),
        (2, ("Flights", "Hats", "Shoes"), {"Boots": 2, "Shoes": 2, "Hats": 1, "Retail": UNRANKED}),
        (3, ("Boots",), {"Boots": 0, "Shoes": UNRANKED, "Travel": UNRANKED}),
    ],
)
def test_read_taxonomy__maps_every_node_to_the_level(tmp_path, level, categories, code_of):
    taxonomy = read_taxonomy(write_taxonomy(tmp_path), level)
    assert taxonomy.categories == categories
    assert {name: taxonomy.code_of[name] for name in code_of} == code_of
    assert set(taxonomy.code_of) == {category for category, _ in TAXONOMY}


def test_read_taxonomy__order_of_rows_and_other_columns_do_not_matter(tmp_path):
    one = read_taxonomy(write_csv(tmp_path, "category,parent\na,\nb,a\nc,a\n"), 2)
    other = read_taxonomy(write_csv(tmp_path, "parent,note,category\r\na,x,c\r\n\r\n,,a\r\na,,b\r\n"), 2)
    assert one == other
    assert one.digest == other.digest


@pytest.mark.parametrize(
    "name", ["a/b", "..", "date=1", "<script>", "Möbel 家具", 'a "b", c', " padded ", "NA", "null", "1"]
)
def test_read_taxonomy__keeps_names_as_they_are(tmp_path, name):
    taxonomy = read_taxonomy(write_taxonomy(tmp_path, [("root", ""), (name, "root")]), 2)
    assert taxonomy.categories == (name,)


def test_read_taxonomy__byte_order_mark_is_not_part_of_the_header(tmp_path):
    path = write_csv(tmp_path, b"\xef\xbb\xbfcategory,parent\na,\n")
    assert read_taxonomy(path, 1).categories == ("a",)


def test_read_taxonomy__same_row_twice_is_one(tmp_path):
    assert read_taxonomy(write_csv(tmp_path, "category,parent\na,\na,\n"), 1).categories == ("a",)


BAD_FILES = {
    "cycle": ("category,parent\na,b\nb,c\nc,a\n", r"'\w' is its own ancestor \(a cycle\); correct its parents"),
    "below a cycle": ("category,parent\nleaf,b\nb,c\nc,b\n", r"'b' is its own ancestor \(a cycle\)"),
    "own parent": ("category,parent\na,a\n", r"'a' is its own ancestor \(a cycle\)"),
    "two parents": ("category,parent\na,\nb,\nc,a\nc,b\n", "'c' has two parents, 'a' and 'b'; keep one"),
    "root and child": ("category,parent\na,\nb,\nb,a\n", "'b' has two parents, '' and 'a'; keep one"),
    "missing parent": ("category,parent\na,\nb,x\n", "the parent 'x' of 'b' has no row of its own; add one"),
    "empty level": ("category,parent\na,\n", r"has no category at level 2 \(its depth is 1\); set taxonomy.level"),
    "no rows": ("category,parent\n", r"has no category at level 2 \(its depth is 0\); set taxonomy.level"),
    "no category": ("category,parent\n,a\n", "has a row without a category; remove it"),
    "other columns": ("name,parent\na,\n", "must have the columns category,parent; category missing"),
    "nothing": ("", "must have the columns category,parent; category, parent missing"),
    "comma in a name": (
        "category,parent\nFood, Drinks,\n",
        "line 2 has 3 fields, expected 2; quote names that contain",
    ),
    "short line": ("category,parent\na,\n\nb\n", "line 4 has 1 fields, expected 2"),
    "Latin-1": ("category,parent\nMöbel,\n".encode("latin-1"), "is not a readable CSV file: .*; write it as UTF-8"),
    "open quote": ('category,parent\n"a,\n', "is not a readable CSV file: unexpected end of data"),
    "long category": (
        f"category,parent\na,\n{'x' * 1025},a\n",
        "a value of 'category' may have at most 1,024 bytes, found one of 1,025 in line 3; shorten or remove it",
    ),
    "long parent": (
        f"category,parent\na,{'ä' * 600}\n",
        "a value of 'parent' .* found one of 1,200 in line 2; shorten",
    ),
    "very long category": (
        f"category,parent\n{'x' * 200_000},\n",
        "a value of 'category' may have at most 1,024 bytes, found a field of more than 131,072; shorten or remove it",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), BAD_FILES.values(), ids=BAD_FILES)
def test_read_taxonomy__says_what_is_wrong(tmp_path, text, sentence):
    path = write_csv(tmp_path, text)
    with pytest.raises(BadInput, match=sentence) as raised:
        read_taxonomy(path, 2)
    assert str(path) in str(raised.value)


def test_read_taxonomy__missing_file(tmp_path):
    with pytest.raises(BadInput, match=r"there is no taxonomy at .*nowhere.csv; set lake.taxonomy \(null for flat"):
        read_taxonomy(tmp_path / "nowhere.csv", 2)
    with pytest.raises(BadInput, match=r"is not a readable CSV file: .*Is a directory"):
        read_taxonomy(tmp_path, 2)


def test_build_taxonomy__digest_knows_what_events_count_for():
    same = build_taxonomy([("r", ""), ("a", "r"), ("b", "r")], 2)
    assert build_taxonomy([("b", "r"), ("r", ""), ("a", "r")], 2).digest == same.digest
    assert build_taxonomy([("r", ""), ("a", "r"), ("b", "a")], 2).digest != same.digest
    assert build_taxonomy([("r", ""), ("a", "r"), ("b", "r")], 1).digest != same.digest


@pytest.mark.parametrize("other", ["SHOES", "Shoes ", " shoes\t", "Shoes\u00a0"])
def test_find_similar__case_and_blanks(other):
    assert find_similar({"Shoes": 0, other: 1, "Hats": 2}) == [tuple(sorted(["Shoes", other]))]
    assert find_similar({"Shoes": 0, "Hats": 2}, [other]) == [tuple(sorted(["Shoes", other]))]
    assert find_similar({"Shoes": 0, other: 0}) == []  # they count for the same
    assert find_similar({"Hats": 0}, ["Shoes", other]) == []  # nobody knows either


def test_find_similar__unicode_forms():
    composed, decomposed = "M\u00f6bel", "Mo\u0308bel"
    assert find_similar({composed: 0, decomposed: 1}) == [(decomposed, composed)]
    assert find_similar({composed: 0, "MO\u0308BEL ": 1}) == [("MO\u0308BEL ", composed)]
    assert find_similar({composed: 0, "Mobel": 1}) == []


def test_find_similar__former_names_are_not_compared():
    taxonomy = flat_taxonomy(["Shoes", "Hats"], {"shoes": "Shoes", "hats": None})
    assert find_similar(taxonomy.present_codes) == []


def test_flat_taxonomy__ranks_every_category():
    taxonomy = flat_taxonomy(["b", "a", "b"])
    assert taxonomy.categories == ("a", "b")
    assert taxonomy.code_of == {"b": 1, "a": 0}
    with pytest.raises(BadInput, match="the list of categories has a row without a category; remove it"):
        flat_taxonomy(["a", ""])


NODES = [
    ("Retail", ""),
    ("Shoes", "Retail"),
    ("Boots", "Shoes"),
    ("Hats", "Retail"),
    ("Travel", ""),
    ("Flights", "Travel"),
]


def test_build_taxonomy__former_names_count_as_what_they_became():
    taxonomy = build_taxonomy(NODES, 2, renames={"Shoes": "Footwear", "Sneakers": "Shoes"})
    assert taxonomy.categories == ("Flights", "Footwear", "Hats")
    assert taxonomy.parents == ("Travel", "Retail", "Retail")
    assert {name: taxonomy.ranked_above(name) for name in ("Shoes", "Sneakers", "Boots", "Footwear")} == dict.fromkeys(
        ("Shoes", "Sneakers", "Boots", "Footwear"), "Footwear"
    )
    assert taxonomy.codes_of(["Flights", "Hats", "Shoes"]) == (0, 2, 1)
    assert taxonomy.siblings_of("Hats") == ["Footwear"]
    assert taxonomy.siblings_of("Flights") == ["Footwear", "Hats"]  # alone below its parent


def test_build_taxonomy__what_became_nothing_takes_those_below_it_along():
    taxonomy = build_taxonomy(NODES, 2, renames={"Shoes": None})
    assert taxonomy.categories == ("Flights", "Hats")
    assert taxonomy.ranked_above("Boots") is None
    assert taxonomy.codes_of(["Flights", "Hats", "Shoes"]) == (0, 1, -1)


class CountedName(str):
    """A name that is looked up and compared a limited number of times, by all of its kind together."""

    steps_left = 0

    def __hash__(self):
        self.count()
        return super().__hash__()

    def __eq__(self, other):
        self.count()
        return super().__eq__(other)

    def count(self):
        CountedName.steps_left -= 1
        assert CountedName.steps_left >= 0, "more than a few steps for every name"


def counted_names(n):
    CountedName.steps_left = 50 * n
    return [CountedName(f"n{i:05}") for i in range(n)]


@pytest.mark.parametrize("is_upwards", [False, True], ids=["root first", "leaf first"])
def test_build_taxonomy__takes_a_few_steps_a_row_however_deep_it_is(is_upwards):
    def build(n):
        names = counted_names(n)
        pairs = list(zip(names, ["", *names[:-1]], strict=True))
        return build_taxonomy(pairs[::-1] if is_upwards else pairs, 3, renames={names[-4]: None})

    deep, small = build(20_000), build(8)
    assert deep.categories == small.categories == ("n00002",)
    assert deep.parents == small.parents == ("n00001",)
    assert [small.code_of[f"n{i:05}"] for i in range(8)] == [UNRANKED] * 2 + [0] * 2 + [UNRANKED] * 4
    assert [deep.code_of[f"n{i:05}"] for i in (0, 1, 2, 3, 19_995, 19_996, 19_999)] == [UNRANKED] * 2 + [0] * 3 + [
        UNRANKED
    ] * 2


def test_build_taxonomy__a_cycle_of_20000_is_found():
    names = counted_names(20_000)
    with pytest.raises(BadInput, match=r"'n00000' is its own ancestor \(a cycle\)"):
        build_taxonomy(list(zip(names, [*names[1:], names[0]], strict=True)), 2)


def test_final_names__takes_a_few_steps_a_name_however_often_it_was_renamed():
    names = counted_names(20_000)
    renames = dict(zip(names, [*names[1:], "Shoes"], strict=True))
    assert final_names(renames) == dict.fromkeys(names, "Shoes")
    assert list(final_names({"a": "b", "c": None, "b": "c"}).items()) == [("a", None), ("c", None), ("b", None)]
    with pytest.raises(BadInput, match="categories: x -> a -> b -> a is a cycle; a name must become another one"):
        final_names({"x": "a", "a": "b", "b": "a"})


def test_compare_taxonomies__tells_apart_what_came_went_moved_and_was_renamed():
    before = build_taxonomy([*NODES, ("Clogs", "Shoes"), ("Trains", "Travel")], 2)
    now = build_taxonomy(
        [*[pair for pair in NODES if pair[0] != "Boots"], ("Boots", "Hats"), ("Caps", "Retail")], 2,
        renames={"Flights": "Air"},
    )  # fmt: skip
    change = compare_taxonomies(before, now)
    assert change.added == ("Air", "Caps")
    assert change.gone == ("Clogs", "Trains")
    assert change.renamed == (("Flights", "Air"),)
    assert change.moved == (("Boots", "Shoes", "Hats"),)
    assert change.lost == ("Trains",)


def test_compare_taxonomies__a_category_that_moved_below_another_is_no_merge():
    moved = build_taxonomy([(name, "Hats" if name == "Shoes" else parent) for name, parent in NODES], 2)
    assert compare_taxonomies(build_taxonomy(NODES, 2), moved).moved == (
        ("Shoes", "Shoes", "Hats"),
        ("Boots", "Shoes", "Hats"),
    )
