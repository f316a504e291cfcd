"""The hashes of a few ids are those that the kernels give to many."""

from hypothesis import given
from hypothesis import strategies as st

from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.user_hash import FEW, hash_few, hash_ids, partition_of

NUMBERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.lists(NUMBERS, min_size=FEW + 1, max_size=FEW + 9) | st.lists(TEXTS, min_size=FEW + 1, max_size=FEW + 9),
    st.integers(0, 2**64 - 1),
)
def test_hash_few__is_what_the_kernels_give(values, salt):
    ids = ids_from_values(values)
    assert hash_few(ids, salt).tolist() == hash_ids(ids, salt).tolist()
    few = ids_from_values(values[:FEW])
    assert hash_ids(few, salt).tolist() == hash_ids(ids, salt).tolist()[:FEW]
    assert partition_of(few, 7).tolist() == partition_of(ids, 7).tolist()[:FEW]
