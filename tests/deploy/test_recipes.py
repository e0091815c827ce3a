"""The recipes of deploy: by the schemas of Kubernetes, by systemd, and by bash."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from counterpoise.tools.cli import COMMANDS
from counterpoise.tools.services import balancer, worker
from tests.imports import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
RELEASE = "1.37"
# Of operators, whose schemas no package has: what they are made of is checked by Kubernetes'.
OPERATORS = {"JobSet": "jobset.x-k8s.io/v1alpha2", "RayJob": "ray.io/v1"}


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def parts(kind, spec):
    """Return what an operator's object hands on to Kubernetes: templates of jobs and of pods."""
    if kind == "JobSet":
        return [("Job", "batch/v1", each["template"]) for each in spec["replicatedJobs"]]
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [("Pod", "v1", group["template"]) for group in groups]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_takes_the_manifests(path):
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents(path):
        if document["kind"] not in OPERATORS:
            validate(document, RELEASE, strict=True)
            continue
        assert document["apiVersion"] == OPERATORS[document["kind"]]
        for kind, version, template in parts(document["kind"], document["spec"]):
            named = {"metadata": {"name": "checked"}, **template}
            validate({"apiVersion": version, "kind": kind, **named}, RELEASE, strict=True)


def test_the_schemas_see_a_wrong_field():
    validate = pytest.importorskip("kubernetes_validate")
    document = documents(DEPLOY / "kubernetes" / "balancer.yaml")[0]
    document["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(document, RELEASE, strict=True)


def pods(path):
    """Yield the pods' specs of a file."""
    for document in documents(path):
        if document["kind"] == "Deployment":
            yield document["spec"]["template"]["spec"]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_our_containers_have_no_rights_and_mount_what_there_is(path):
    for pod in pods(path):
        assert pod["securityContext"]["runAsNonRoot"]
        volumes = {each["name"] for each in pod["volumes"]}
        for container in [*pod["initContainers"], *pod["containers"]]:
            locked = container["securityContext"]
            assert locked["readOnlyRootFilesystem"]
            assert not locked["allowPrivilegeEscalation"]
            assert {each["name"] for each in container["volumeMounts"]} <= volumes


def command_lines():
    """Yield each `counterpoise` command line of the recipes, with where it is."""
    for path in KUBERNETES:
        for pod in pods(path):
            for container in pod["containers"]:
                yield path.name, container["args"]
    for path in [*UNITS, DEPLOY / "slurm" / "train.sbatch"]:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(
            r"^(?:ExecStart=\S*/)?counterpoise (.*?)(?: &)?$", text, re.MULTILINE
        ):
            yield path.name, line.replace('"', "").split()


@pytest.mark.parametrize(("where", "words"), list(command_lines()))
def test_the_recipes_use_options_that_there_are(where, words):
    assert words[0] in COMMANDS
    command = {"balancer": balancer.command, "worker": worker.command}.get(words[0])
    if command is not None:
        known = {option for each in command.params for option in each.opts}
        assert {word for word in words[1:] if word.startswith("--")} <= known


def test_the_balancer_is_found_by_its_services_name():
    service = documents(DEPLOY / "kubernetes" / "balancer.yaml")[1]
    workers = documents(DEPLOY / "kubernetes" / "workers.yaml")[0]
    container = workers["spec"]["template"]["spec"]["containers"][0]
    found = {each["name"]: each["value"] for each in container["env"]}["COUNTERPOISE_BALANCER"]
    assert found == f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_a_worker_has_the_time_to_drain():
    pod = next(pods(DEPLOY / "kubernetes" / "workers.yaml"))
    words = pod["containers"][0]["args"]
    assert float(words[words.index("--drain") + 1]) < pod["terminationGracePeriodSeconds"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_units(path, tmp_path):
    # A template is checked as one of its instances; the program is another on this machine.
    copy = tmp_path / path.name.replace("@.", "@1.")
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True
    )
    wrong = [line for line in done.stderr.splitlines() if path.stem.rstrip("@") in line]
    assert not wrong


def test_bash_takes_the_scripts():
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm" / "train.sbatch")], check=True)


def test_the_container_runs_without_rights():
    lines = Path(DEPLOY / "container" / "Containerfile").read_text().splitlines()
    last = lines[max(n for n, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001" in last
    assert last[-1] == 'ENTRYPOINT ["counterpoise"]'
