"""Which accounts may write to a site, and whose files of it are trusted."""

import os
import stat

import pytest
from click.testing import CliRunner

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects import account
from ammrank_dask.storage.objects.account import close_folder, is_of_group, refuse_account, refuse_foreign_file
from ammrank_dask.storage.objects.atomic import private_files, write_private
from ammrank_dask.storage.site.forgotten import add_forgotten
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.cluster.cluster_file import find_cluster_file
from ammrank_dask.workflows.session.config import Config, load_config, write_config

OTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another account")


@pytest.fixture
def site(tmp_path):
    """A site with a config and a cluster file, as its owner writes them."""
    site = Site(tmp_path / "site")
    site.path.mkdir(mode=0o700)
    site.config_path.write_text(write_config(Config()))
    (site.path / "cluster.yaml").write_text("version: 1\nclass: distributed.LocalCluster\n")
    for path in site.path.iterdir():
        path.chmod(0o644)
    return site


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o666, 0o602])
@pytest.mark.parametrize("name", ["ammrank.yaml", "cluster.yaml"])
def test_refuse_foreign_file__everybody_may_write_it(site, name, mode):
    (site.path / name).chmod(mode)
    use = {
        "ammrank.yaml": lambda: load_config(site.config_path),
        "cluster.yaml": lambda: find_cluster_file(None, site.path),
    }
    with pytest.raises(BadInput, match=rf"^other accounts must not be able to write .*{name}, found -rw.*`chmod go-w"):
        use[name]()
    (site.path / name).chmod(0o600)
    load_config(site.config_path)
    assert find_cluster_file(None, site.path) == site.path / "cluster.yaml"


@pytest.mark.parametrize("command", ["nightly", "status", "plan", "check", "publish"])
def test_load_config__one_that_everybody_may_write_ends_every_command(site, command):
    site.config_path.chmod(0o666)
    done = CliRunner().invoke(ammrank, [command, str(site.path)])
    assert done.exit_code == 65
    assert done.stderr == (
        f"ammrank: other accounts must not be able to write {site.config_path}, found -rw-rw-rw-; if you trust what is"
        f" in it, run `chmod go-w {site.config_path}`\n"
    )


def test_refuse_foreign_file__its_group_may_write_it(site, monkeypatch):
    monkeypatch.setattr(account, "is_private_group", lambda gid, uid: False)
    site.config_path.chmod(0o660)
    with pytest.raises(BadInput, match=r"^other accounts must not be able to write .*, found -rw-rw----; .*chmod go-w"):
        refuse_foreign_file(site.config_path)
    site.path.chmod(0o2770)
    refuse_foreign_file(site.config_path)
    site.path.chmod(0o2777)  # everybody can put a file of that group there
    with pytest.raises(BadInput, match=r"^other accounts must not be able to write .*, found -rw-rw----; .*chmod go-w"):
        refuse_foreign_file(site.config_path)
    monkeypatch.undo()
    monkeypatch.setattr(account, "is_private_group", lambda gid, uid: True)
    refuse_foreign_file(site.config_path)


@as_root
def test_refuse_foreign_file__another_account_owns_it(site):
    os.chown(site.config_path, OTHER, OTHER)
    with pytest.raises(
        BadInput, match=r"must belong to you, to the owner of its folder or to root.*`sudo chown root /"
    ):
        load_config(site.config_path)
    site.path.chmod(0o2770)
    with pytest.raises(BadInput, match=r"must belong to you, to the owner of its folder or to root"):
        load_config(site.config_path)  # not of the group of the site
    site.path.chmod(0o700)
    os.chown(site.path, OTHER, OTHER)
    load_config(site.config_path)  # that of the owner
    os.chown(site.config_path, 0, 0)
    load_config(site.config_path)  # that of root
    site.config_path.rename(site.path / "mine.yaml")
    site.config_path.symlink_to("mine.yaml")
    os.chown(site.config_path, OTHER - 1, 0, follow_symlinks=False)
    with pytest.raises(BadInput, match=rf"found #{OTHER - 1}; .*`sudo chown -h \w+ /"):
        load_config(site.config_path)


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777, 0o2750, 0o2770, 0o2777])
def test_refuse_account__root_is_no_owner(site, mode):
    os.chown(site.path, OTHER, OTHER)
    site.path.chmod(mode)
    for write in (refuse_account, lambda path: find_cluster_file(None, path), close_folder):
        with pytest.raises(
            BadInput, match=r"must run as its owner, \S+, or .* found root and d.*`sudo -u \S+ ammrank …`$"
        ):
            write(site.path)
    assert not (site.path / ".lock").exists()


@as_root
def test_exclusive__a_site_of_the_group_is_left_as_open_as_it_is(site):
    os.chown(site.path, OTHER, os.getegid())
    site.path.chmod(0o2775)
    with site.exclusive():
        assert mode_of(site.path) == 0o2775  # only its owner, or root, could change it
        assert mode_of(site.path / ".lock") == 0o660


@pytest.mark.parametrize(("mode", "expected"), [(0o700, (0o600, 0o600, 0o600)), (0o2770, (0o660, 0o640, 0o640))])
def test_exclusive__files_of_a_group_are_for_the_group(site, mode, expected):
    site.path.chmod(mode)
    assert is_of_group(site.path) == (mode == 0o2770)
    with site.exclusive():
        add_forgotten(site.path, ids_from_values([1, 2]))
    assert tuple(mode_of(site.path / name) for name in (".lock", ".forget-key", "forgotten.json")) == expected


@pytest.mark.parametrize(("for_group", "expected"), [(False, (0o640, 0o750, 0o600)), (True, (0o660, 0o770, 0o660))])
def test_private_files__are_the_groups_where_it_shares_the_site(tmp_path, for_group, expected):
    before = os.umask(0o022)
    try:
        with private_files(for_group=for_group):
            (tmp_path / "file").touch()
            (tmp_path / "folder").mkdir()
            write_private(tmp_path / "config", "alpha: 1\n", for_group=for_group)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert tuple(mode_of(tmp_path / name) for name in ("file", "folder", "config")) == expected
