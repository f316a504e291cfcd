"""Push the scores of boosted trees: gradient and curvature of AMM-rank-plus's loss."""

import math

from ammrank_dask.kernels.jit import kernel


@kernel
def push_scores(score, liking, out_push, out_curvature):
    """Write how far the pairs of its row push each score, and how the push weakens as the score follows it.

    A row's loss is Σ ln(1 + e^(s_k − s_i)) over the categories i that it likes more than k; pairs that it likes alike
    do not count. All arrays are (n, L).
    """
    n_rows, n_categories = score.shape
    for row in range(n_rows):
        for category in range(n_categories):
            out_push[row, category] = 0.0
            out_curvature[row, category] = 0.0
        for first in range(n_categories):
            for second in range(first):
                if liking[row, first] == liking[row, second]:
                    continue
                # Of the two, the odds that the first is ahead; the exponent is held where e^x is finite.
                lead = min(700.0, score[row, second] - score[row, first])
                ahead = 1.0 / (1.0 + math.exp(lead))
                push = 1.0 - ahead if liking[row, first] > liking[row, second] else -ahead
                out_push[row, first] += push
                out_push[row, second] -= push
                out_curvature[row, first] += ahead * (1.0 - ahead)
                out_curvature[row, second] += ahead * (1.0 - ahead)
