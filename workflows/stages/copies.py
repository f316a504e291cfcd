"""Keep the copies of published nights that `publish.to` asks for like the nights of the site."""

from __future__ import annotations

import datetime as dt

from ammrank_dask.storage.site.copies import NightFiles, copied_nights, copy_night, point_to
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import copies_target


def copy_published(site: Site, config: Config, date: dt.date) -> str | None:
    """Copy a published night, move the pointer if it is the newest, and return what is to tell; None without a target.

    The copy before of the same night stays until another night is copied: somebody may be reading it. Copies of nights
    that the site no longer keeps are removed.
    """
    target = copies_target(site, config)
    if target is None or not is_finished(site.qualifications_folder(date)):
        return None
    night = NightFiles.of(site, date)
    copy_night(night, target)
    if date == max(site.published_nights()):
        point_to(night, target)
    kept = set(site.published_nights())
    for other, folders in copied_nights(target).items():
        if other != date:
            own = NightFiles.of(site, other).folder if other in kept and _is_kept(site, other) else None
            target.delete(key for folder, keys in folders.items() if folder != own for key in keys)
    return f"{target}/{night.folder}"


def renew_copies(site: Site, config: Config) -> int:
    """Copy all nights again whose files changed, and remove the copies before at once; return their number."""
    target, renewed = copies_target(site, config), 0
    if target is None:
        return 0
    newest = max(site.published_nights(), default=None)
    for date, folders in copied_nights(target).items():
        kept = NightFiles.of(site, date) if _is_kept(site, date) else None
        if kept is not None:
            copy_night(kept, target)
            if date == newest:
                point_to(kept, target)
        replaced = [key for folder, keys in folders.items() if kept is None or folder != kept.folder for key in keys]
        target.delete(replaced)
        renewed += bool(replaced)
    return renewed


def _is_kept(site: Site, date: dt.date) -> bool:
    return is_finished(site.qualifications_folder(date))
