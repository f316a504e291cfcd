"""Pick the best categories of each row."""

from ammrank_dask.kernels.jit import kernel


@kernel
def top_k_rows(scores, tie_order, out_category, out_score):
    """Write the k best categories of each row; equal scores in `tie_order`.

    Parameters
    ----------
    scores
        (n_rows, L), no NaN; -inf is a score like any other.
    tie_order
        (L,) all category codes, the one to prefer among equal scores first.
    out_category, out_score
        (n_rows, k) with k ≤ L, best first.
    """
    k = out_category.shape[1]
    for row in range(scores.shape[0]):
        n_kept = 0
        for visit in range(tie_order.shape[0]):
            category = tie_order[visit]
            score = scores[row, category]
            if n_kept == k and score <= out_score[row, k - 1]:
                continue
            # Earlier categories of `tie_order` keep their place before an equal score.
            place = n_kept if n_kept < k else k - 1
            while place > 0 and out_score[row, place - 1] < score:
                out_score[row, place] = out_score[row, place - 1]
                out_category[row, place] = out_category[row, place - 1]
                place -= 1
            out_score[row, place] = score
            out_category[row, place] = category
            if n_kept < k:
                n_kept += 1
