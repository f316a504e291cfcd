"""Name what can go wrong with data, so that every command can answer with one sentence and an exit code."""


class AmmrankError(Exception):
    """Base of all errors whose message is written for the user."""


class BadInput(AmmrankError, ValueError):
    """The lake, the config or an argument is not as it must be."""


class TooFewUsers(BadInput):
    """There are too few users who clicked to learn from."""


class DamagedStore(BadInput):
    """A stored array or manifest is not what was written."""


class SiteBusy(AmmrankError):
    """Another run holds the site."""
