"""Check which accounts may write to a site, and whose files there a command may trust.

A site belongs to the account that owns its folder, or to a group: then its folder has the set-group-id bit, the group
may write to it and others may not, and files are made so that every account of the group can go on with them.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.objects.atomic import OTHERS
from ammrank_dask.storage.objects.folders import make_folder, stat_of
from ammrank_dask.storage.objects.retry import retried

_OF_GROUP = stat.S_ISGID | stat.S_IWGRP


@retried
def is_of_group(site: Path) -> bool:
    """Return whether the accounts of a group share a site."""
    return _shared_group(stat_of(site)) is not None


@retried
def refuse_account(site: Path) -> None:
    """Refuse to write to a site as an account whose files would end the later nights of the site's own."""
    found = stat_of(site)
    if os.geteuid() == found.st_uid or _shared_group(found) in (os.getegid(), *os.getgroups()):
        return
    owner = account_name(found.st_uid)
    raise BadInput(
        f"commands that write to {site} must run as its owner, {owner}, or as an account of the group if its folder is"
        f" set-group-id and closed to others, found {account_name(os.geteuid())} and {stat.filemode(found.st_mode)};"
        f" run `sudo -u {shell_word(owner)} ammrank …`"
    )


@retried
def close_folder(folder: Path) -> None:
    """Make the folder of a site, refuse an account that is not its own, and close it to others."""
    make_folder(folder)
    refuse_account(folder)
    found = stat_of(folder)
    if found.st_mode & OTHERS and found.st_uid == os.geteuid():  # who is only in its group cannot change it
        folder.chmod(found.st_mode & 0o7777 & ~OTHERS)


@retried
def refuse_foreign_file(path: Path) -> None:
    """Refuse a file of a site's folder that accounts can have written who have no say in the site."""
    folder = stat_of(path.parent)
    group = _shared_group(folder)
    for found in (path.lstat(), stat_of(path)):
        is_of_site = group is not None and found.st_gid == group
        if found.st_uid not in (0, os.geteuid(), folder.st_uid) and not is_of_site:
            only_link = "-h " if stat.S_ISLNK(found.st_mode) else ""
            raise BadInput(
                f"{path} must belong to you, to the owner of its folder or to root, found"
                f" {account_name(found.st_uid)}; if you trust what is in it, run"
                f" `sudo chown {only_link}{account_name(folder.st_uid).removeprefix('#')} {shell_word(path)}`"
            )
        is_open = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and not is_of_site and not is_private_group(found.st_gid, found.st_uid)
        )
        if is_open and not stat.S_ISLNK(found.st_mode):
            raise BadInput(
                f"other accounts must not be able to write {path}, found {stat.filemode(found.st_mode)}; if you trust"
                f" what is in it, run `chmod go-w {shell_word(path)}`"
            )


def is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group is the private one of a user, as most systems make for every account."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def account_name(uid: int) -> str:
    """Return the name of an account as `sudo -u` takes it: #ID for one that has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _shared_group(folder: os.stat_result) -> int | None:
    """Return the group whose accounts share a folder; None where only its owner writes, or everybody may."""
    is_shared = folder.st_mode & (_OF_GROUP | stat.S_IWOTH) == _OF_GROUP
    return folder.st_gid if is_shared else None
