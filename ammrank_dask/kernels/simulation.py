"""Sample the events of simulated users from uniform numbers drawn outside."""

import numpy as np

from ammrank_dask.kernels.jit import kernel


@kernel
def find_bound(bounds, value):
    """Index of the first of the rising `bounds` that is above `value`; the last bound always is."""
    low = 0
    high = bounds.shape[0] - 1
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] > value:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def poisson_count(mean, uniform):
    """Poisson variable of `mean` below 100 by inversion of one uniform number."""
    if mean <= 0.0:
        return 0
    term = np.exp(-mean)
    passed = term
    count = 0
    while passed <= uniform and count < 400:
        count += 1
        term *= mean / count
        passed += term
    return count


@kernel
def count_events(rates, factor, uniforms, out_counts):
    """Write for each user the number of events of a day; the mean is `rates * factor`."""
    for user in range(rates.shape[0]):
        out_counts[user] = poisson_count(float(rates[user]) * factor, uniforms[user])


@kernel
def draw_personas(bounds, audiences, uniforms, out_personas):
    """Draw the personas of each user from the shares of the user's audience; one uniform number each."""
    for user in range(audiences.shape[0]):
        row = bounds[audiences[user]]
        for place in range(uniforms.shape[1]):
            out_personas[user, place] = find_bound(row, uniforms[user, place])


@kernel
def add_scaled(values, scale, out_row):
    """Add `scale * values` to `out_row`."""
    for place in range(values.shape[0]):
        out_row[place] += scale * values[place]


@kernel
def mix_taste(personas, weights, click, pair_table, pair_click, pair_gain, out_taste):
    """Mix the click shares of each user's personas and of the interactions between them, times `out_taste`.

    `out_taste` (users, categories) holds the user's own factors before and shares that sum to 1 after.
    """
    n_categories = click.shape[1]
    row = np.empty(n_categories, np.float32)
    for user in range(personas.shape[0]):
        for category in range(n_categories):
            row[category] = 0.0
        for place in range(personas.shape[1]):
            add_scaled(click[personas[user, place]], weights[user, place], row)
            for other in range(place):
                pair = pair_table[personas[user, place], personas[user, other]]
                if pair >= 0:
                    gain = pair_gain * min(weights[user, place], weights[user, other])
                    add_scaled(pair_click[pair], gain, row)
        total = np.float32(0.0)
        for category in range(n_categories):
            row[category] *= out_taste[user, category]
            total += row[category]
        for category in range(n_categories):
            out_taste[user, category] = row[category] / total


@kernel
def raise_row(taste, stock, effect, out_row):
    """Write the click shares of one user after the ads seen: taste · (1 + effect · stock / (1 + stock))."""
    for category in range(taste.shape[0]):
        seen = stock[category]
        out_row[category] = taste[category] * (np.float32(1.0) + effect * seen / (np.float32(1.0) + seen))


@kernel
def count_simulated_clicks(taste, stock, rates, factor, effect, weight, uniforms, out_counts, out_expected):
    """Write the number of clicks of each user on a day, and add `weight` times their mean to `out_expected`.

    taste, stock and out_expected have shape (users, categories).
    """
    n_users, n_categories = taste.shape
    row = np.empty(n_categories, np.float32)
    for user in range(n_users):
        if rates[user] <= 0.0:
            out_counts[user] = 0
            continue
        raise_row(taste[user], stock[user], effect, row)
        total = 0.0
        for category in range(n_categories):
            total += row[category]
        rate = rates[user] * factor
        out_counts[user] = poisson_count(total * rate, uniforms[user])
        if weight > 0.0:
            scale = np.float32(rate * weight)
            for category in range(n_categories):
                out_expected[user, category] += scale * row[category]


@kernel
def draw_clicks(counts, taste, stock, effect, uniforms, out_users, out_categories):
    """Write user and category of every click; `counts` clicks of each user, one uniform number a click."""
    n_categories = taste.shape[1]
    row = np.empty(n_categories, np.float32)
    event = 0
    for user in range(counts.shape[0]):
        if counts[user] == 0:
            continue
        raise_row(taste[user], stock[user], effect, row)
        running_sum(row)
        for _ in range(counts[user]):
            out_users[event] = user
            out_categories[event] = find_bound(row, uniforms[event] * row[n_categories - 1])
            event += 1


@kernel
def running_sum(row):
    """Replace `row` by its running sum."""
    for place in range(1, row.shape[0]):
        row[place] += row[place - 1]


@kernel
def draw_browsing(
    counts,
    personas,
    weight_bounds,
    group_bounds,
    browse_bounds,
    uniforms,
    out_users,
    out_groups,
    out_categories,
):
    """Write user, group and category of the browsing events; the last group, ad views, gets category -1.

    browse_bounds (groups, personas, categories), uniforms (events, 3).
    """
    ad_group = browse_bounds.shape[0]
    event = 0
    for user in range(counts.shape[0]):
        for _ in range(counts[user]):
            group = find_bound(group_bounds, uniforms[event, 0])
            out_users[event] = user
            out_groups[event] = group
            if group == ad_group:
                out_categories[event] = -1
            else:
                persona = personas[user, find_bound(weight_bounds[user], uniforms[event, 1])]
                out_categories[event] = find_bound(browse_bounds[group, persona], uniforms[event, 2])
            event += 1


@kernel
def draw_ads(users, taste, general, targeting, factors, audiences, uniforms, decay, stock, out_categories):
    """Fill the categories that are -1 with the ads shown; decay `stock` in place and add them to it.

    An ad follows the user's taste with weight `targeting` and the `general` shares otherwise, times the
    campaign factors (audiences, categories) of the day. Events of one user are next to each other.
    """
    n_categories = taste.shape[1]
    row = np.empty(n_categories, np.float32)
    for user in range(stock.shape[0]):
        for category in range(n_categories):
            stock[user, category] *= decay
    last_user = -1
    for event in range(users.shape[0]):
        if out_categories[event] >= 0:
            continue
        user = users[event]
        if user != last_user:
            last_user = user
            factor = factors[audiences[user]]
            for category in range(n_categories):
                own = targeting * taste[user, category]
                row[category] = (own + (np.float32(1.0) - targeting) * general[category]) * factor[category]
            running_sum(row)
        category = find_bound(row, uniforms[event] * row[n_categories - 1])
        out_categories[event] = category
        stock[user, category] += np.float32(1.0)


@kernel
def stamp_events(
    categories,
    node_bounds,
    node_codes,
    time_quantiles,
    late_share,
    late_us,
    uniforms,
    times,
    out_nodes,
    out_times,
):
    """Write the taxonomy node of every event and its time in microseconds from the start of the day.

    The share `late_share` of events happened in the `late_us` before the day. uniforms (events, 2) choose
    the node and who is late, times (events,) the moment.
    """
    n_steps = time_quantiles.shape[0] - 1
    for event in range(categories.shape[0]):
        category = categories[event]
        out_nodes[event] = node_codes[category, find_bound(node_bounds[category], uniforms[event, 0])]
        if uniforms[event, 1] < late_share:
            out_times[event] = -1 - np.int64(times[event] * (late_us - 1))
        else:
            place = times[event] * n_steps
            step = int(place)
            low = time_quantiles[step]
            out_times[event] = np.int64(low + (place - step) * (time_quantiles[step + 1] - low))


@kernel
def arrange_events(keys, place_bits, users, groups, nodes, out_users, out_groups, out_nodes, out_times):
    """Write the events in the order of `keys`, whose lower `place_bits` are places and upper bits times."""
    mask = (1 << place_bits) - 1
    for event in range(keys.shape[0]):
        place = keys[event] & mask
        out_users[event] = users[place]
        out_groups[event] = groups[place]
        out_nodes[event] = nodes[place]
        out_times[event] = keys[event] >> place_bits
