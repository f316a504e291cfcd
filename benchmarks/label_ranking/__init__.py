"""Label ranking on public tables: maps of their rows, sums of models, and the search among them."""
