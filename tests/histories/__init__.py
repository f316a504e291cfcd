"""Random histories of sites, with crashes in them, beside the same histories without."""

import tests.frozen  # noqa: F401, it brings tests/support into reach
