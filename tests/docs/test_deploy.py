"""The files of `deploy/` are what Kubernetes, systemd, Docker, schedulers and Grafana read, and name what there is."""

import ast
import configparser
import json
import re
import stat
from pathlib import Path

import pytest
import yaml

from ammrank_dask.storage.objects.posix import open_objects
from ammrank_dask.workflows.cli import COMMANDS
from ammrank_dask.workflows.cluster.cluster_file import load_cluster
from ammrank_dask.workflows.nightly import command as COMMAND

ROOT = Path(__file__).parents[2]
KUBERNETES = sorted((ROOT / "deploy").glob("kubernetes*/*.yaml"))
NOT_AGAIN = {2, 65, 66, 75}


def load(name, folder="kubernetes"):
    return yaml.safe_load((ROOT / "deploy" / folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kubernetes__every_object_has_its_kind_and_name(path):
    found = load(path.name, path.parent.name)
    assert {"apiVersion", "kind", "metadata"} <= set(found)
    assert found["metadata"]["namespace"] == "ammrank"
    assert re.fullmatch(r"[a-z0-9-]+", found["metadata"]["name"])


def test_kubernetes__all_that_a_night_needs_is_there():
    kinds = {folder: {load(path.name, folder)["kind"] for path in KUBERNETES if path.parent.name == folder}
             for folder in ("kubernetes", "kubernetes-bucket")}  # fmt: skip
    assert kinds == {
        "kubernetes": {"ConfigMap", "CronJob", "DaskCluster", "NetworkPolicy", "PersistentVolumeClaim", "Secret"},
        "kubernetes-bucket": {"CronJob", "DaskCluster", "ServiceAccount"},
    }


def test_kubernetes__the_cluster_file_is_one_and_speaks_tls(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(load("config.yaml")["data"]["cluster.yaml"])
    config = load_cluster(path)
    cluster = load("dask-cluster.yaml")
    assert config.address == "tls://ammrank-scheduler.ammrank:8786"
    assert config.address in cluster["spec"]["worker"]["spec"]["containers"][0]["args"]
    assert config.wait_for_workers <= cluster["spec"]["worker"]["replicas"]
    assert set(load("tls-secret.yaml")["stringData"]) == {
        Path(file).name for file in config.security.model_dump(exclude_none=True).values()
    }


def pods(folder):
    cluster = load("dask-cluster.yaml", folder)["spec"]
    job = load("cronjob.yaml", folder)["spec"]["jobTemplate"]["spec"]
    return [cluster["worker"]["spec"], cluster["scheduler"]["spec"], job["template"]["spec"]]


@pytest.mark.parametrize("folder", ["kubernetes", "kubernetes-bucket"])
@pytest.mark.parametrize("number", [0, 1, 2], ids=["worker", "scheduler", "nightly"])
def test_kubernetes__roots_are_read_only_and_volumes_are_there(folder, number):
    pod = pods(folder)[number]
    container = pod["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    shared = {"site"} if folder == "kubernetes" else set()
    assert {volume["name"] for volume in pod["volumes"]} == {"tls", "config", "cache", "tmp", *shared}


@pytest.mark.parametrize("folder", ["kubernetes", "kubernetes-bucket"])
def test_cronjob__runs_a_command_there_is_and_does_not_repeat_bad_input(folder):
    job = load("cronjob.yaml", folder)["spec"]["jobTemplate"]["spec"]
    assert job["template"]["spec"]["containers"][0]["args"][0] in COMMANDS
    assert set(job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]) == NOT_AGAIN


def test_kubernetes_bucket__command_and_workers_may_use_the_bucket_and_differ_in_nothing_else():
    worker, scheduler, nightly = pods("kubernetes-bucket")
    account = load("service-account.yaml", "kubernetes-bucket")["metadata"]["name"]
    assert worker["serviceAccountName"] == nightly["serviceAccountName"] == account
    assert "serviceAccountName" not in scheduler
    site = nightly["containers"][0]["args"][1]
    assert str(open_objects(site)) == site
    for pod, other in zip(pods("kubernetes"), (worker, scheduler, nightly), strict=True):
        for name in ("image", "command", "resources", "ports"):
            assert pod["containers"][0].get(name) == other["containers"][0].get(name)
        assert "/tmp" in {mount["mountPath"] for mount in other["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize(
    ("name", "class_"), [("coiled", "coiled.Cluster"), ("dask-gateway", "dask_gateway.GatewayCluster")]
)
def test_cluster_files__of_services_are_cluster_files_and_say_that_nobody_tried_them(name, class_):
    path = ROOT / "deploy" / name / "cluster.yaml"
    config = load_cluster(path)
    assert config.class_ == class_
    assert config.wait_for_workers <= (config.scale or config.kwargs["n_workers"])
    assert "Not tried" in path.read_text(encoding="utf-8").splitlines()[0]
    assert f"deploy/{name}" in (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")


def test_systemd__units_are_those_of_the_page():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for name in ("ammrank-nightly.service", "ammrank-nightly.timer"):
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str
        unit.read(ROOT / "deploy" / "systemd" / name, encoding="utf-8")
        assert f"deploy/systemd/{name}" in text
        if name.endswith(".service"):
            service = dict(unit["Service"])
            assert service["ExecStart"].split()[1] in COMMANDS
            assert set(map(int, service["RestartPreventExitStatus"].split())) == NOT_AGAIN
        else:
            assert unit["Timer"]["OnCalendar"].endswith("UTC")


@pytest.mark.parametrize("name", ["airflow", "prefect"])
def test_schedulers__run_a_command_there_is_and_do_not_repeat_bad_input(name):
    tree = ast.parse((ROOT / "deploy" / name / "ammrank_nightly.py").read_text(encoding="utf-8"))
    constants = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)
                 and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    assert ast.literal_eval(constants["NOT_AGAIN"]) == NOT_AGAIN
    lists = [node.elts for node in ast.walk(tree) if isinstance(node, ast.List)]
    command = next(elements for elements in lists if elements and getattr(elements[0], "id", "") == "AMMRANK")
    words = [element.value for element in command if isinstance(element, ast.Constant)]
    options = {option for parameter in COMMAND.params for option in parameter.opts}
    assert words[0] == COMMAND.name
    assert set(words[1:]) <= options
    assert f"deploy/{name}" in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_grafana__panels_show_metrics_that_there_are_and_do_not_overlap():
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "ammrank.json").read_text(encoding="utf-8"))
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    taken = set()
    for panel in dashboard["panels"]:
        asked = {name for target in panel["targets"] for name in re.findall(r"ammrank_\w+", target["expr"])}
        assert asked
        assert asked <= set(re.findall(r"`(ammrank_\w+)`", metrics)), panel["title"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert "deploy/grafana" in metrics


def test_dockerfile__installs_by_the_script_that_is_run_in_a_fresh_environment():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "RUN /src/deploy/install /opt/ammrank" in text
    assert "NUMBA_CACHE_DIR=/cache" in text
    assert "USER 10001" in text
    assert (ROOT / "deploy" / "install").stat().st_mode & stat.S_IXUSR
    assert "deploy/install" in (ROOT / ".ci" / "pythons").read_text(encoding="utf-8")
