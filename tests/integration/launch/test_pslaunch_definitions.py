# SPDX-License-Identifier: Apache-2.0
"""Definitions that pslaunch prints for Kubernetes and YARN: the golden files in
tests/golden/launch, and Kubernetes's own schemas, if they are installed
(./dev test --all does that). No cluster is here; runs with pods that are processes of
this host are in test_pslaunch_hosts.py."""
import json
import os
import pathlib
import subprocess

import pytest
import trio as support
from trio import SOURCE
import yaml
from launched import argv, launch
from places import write_program

GOLDEN = SOURCE / "tests" / "golden" / "launch"
VALIDATE = pathlib.Path(os.environ.get(
    "PSKV_TEST_KUBERNETES_VALIDATE",
    support.BUILD / "kubernetes/bin/kubernetes-validate"))
COMMAND = ("python3", "train.py", "--note", "it's \"5\" $HOME")
JOBS = {
    "k8s.yaml": (
        "-n", "4", "-s", "2", "--nodes", "2", "--name", "Fashion_MNIST",
        "--image", "registry.example/pskv:1", "--namespace", "team",
        "--cpus", "3", "--memory", "4GiB", "--launcher", "k8s"),
    "yarn.json": (
        "-n", "4", "-s", "2", "--name", "Fashion_MNIST", "--queue", "gpu",
        "--cpus", "3", "--memory", "512MiB", "--mode", "dist_async",
        "--env-server", "C=y", "--env", "A=one 'two'", "--insecure-network",
        "--launcher", "yarn"),
}


def define(name):
    """With no variable of this host that workers would get."""
    done = subprocess.run(argv(*JOBS[name], "--dry-run", *COMMAND),
                          capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", JOBS)
def test_definitions_are_the_golden_ones(name):
    """Write them again with PSKV_TEST_UPDATE=1, and read the difference."""
    out = define(name)
    if os.environ.get("PSKV_TEST_UPDATE") == "1":
        (GOLDEN / f"{name}.txt").write_text(out)
    assert out == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.skipif(not VALIDATE.exists(),
                    reason="there is no kubernetes-validate")
def test_pods_are_valid_by_the_schemas_of_kubernetes(tmp):
    path = tmp / "pods.yaml"
    path.write_text(define("k8s.yaml"))
    done = subprocess.run([VALIDATE, "--strict", path], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(define("k8s.yaml").replace("restartPolicy", "restart"))
    done = subprocess.run([VALIDATE, "--strict", path], capture_output=True,
                          text=True, check=False)
    assert done.returncode != 0


def test_pods_carry_no_secret_and_no_privilege():
    pods = list(yaml.safe_load_all(define("k8s.yaml")))
    assert [p["metadata"]["name"] for p in pods] == \
        ["fashion-mnist-0", "fashion-mnist-1"]
    for pod in pods:
        assert pod["kind"] == "Pod"
        spec = pod["spec"]
        assert spec["restartPolicy"] == "Never"
        assert spec["automountServiceAccountToken"] is False
        (one,) = spec["containers"]
        assert set(one) == {"name", "image", "command", "env", "resources"}
        assert one["resources"]["limits"] == {"memory": "4096Mi"}


def test_the_service_of_yarn_has_the_parts_of_the_job():
    """A container for each process; each worker has an agent beside it, and
    its number is its rank."""
    service = json.loads(define("yarn.json"))
    assert service["name"] == "fashion-mnist" and service["queue"] == "gpu"
    psched, psserver, worker = service["components"]
    assert [c["name"] for c in service["components"]] == \
        ["psched", "psserver", "worker"]
    assert [c["number_of_containers"] for c in service["components"]] == \
        [1, 2, 4]
    assert psserver["dependencies"] == ["psched"]
    assert worker["dependencies"] == ["psserver"]
    env = worker["configuration"]["env"]
    assert env["WORLD_SIZE"] == "4" and env["A"] == "one 'two'"
    assert env["PSKV_MODE"] == "dist_async" and "RANK" not in env
    assert env["DMLC_JOB_CLUSTER"] == "yarn" and "C" not in env
    assert psserver["configuration"]["env"]["C"] == "y"
    (script,) = worker["configuration"]["files"]
    assert worker["launch_command"].endswith(script["dest_file"])
    for one in service["components"]:
        assert "'" not in one["launch_command"]
        assert one["resource"] == {"cpus": 3, "memory": "512"}


def test_a_long_command_is_whole():
    """More than 64 KiB, as of a list of files."""
    long = "'" + 100_000 * "x"
    done = subprocess.run(
        argv(*JOBS["yarn.json"], "--dry-run", *COMMAND, long, "end"),
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    text = json.loads(done.stdout)["components"][2]["configuration"]["files"][
        0]["properties"]["content"]
    assert text.endswith(f" ''\\''{100_000 * 'x'}' 'end'"), text[-200:]


def test_the_script_of_a_worker_runs_its_command(tmp):
    """With the constants as the framework replaces them."""
    service = json.loads(define("yarn.json"))
    text = service["components"][2]["configuration"]["files"][0]["properties"][
        "content"]
    for name, value in {"COMPONENT_INSTANCE_NAME": "worker-3",
                        "COMPONENT_ID": "3", "PSCHED-0_IP": "10.0.0.7",
                        "CONTAINER_ID": "container_e03_1_0002_01_000001"
                        }.items():
        text = text.replace("${" + name + "}", value)
    assert "${" not in text
    write_program(tmp / "psworker-agent", 'echo "agent $*"')
    write_program(tmp / "python3",
                  'wait; echo "rank $RANK socket $PSKV_SOCKET"; '
                  'echo "args $*"')
    done = subprocess.run(
        ["/bin/sh", "-c", text], capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp}:{os.environ['PATH']}"})
    lines = done.stdout.splitlines()
    socket = "/tmp/pskv-container_e03_1_0002_01_000001.sock"
    assert f"rank 3 socket {socket}" in lines
    assert "args train.py --note it's \"5\" $HOME" in lines
    (agent,) = [one for one in lines if one.startswith("agent ")]
    assert "--sched 10.0.0.7:9091" in agent
    assert f"client.socket={socket}" in agent


def test_yarn_takes_the_service(tmp):
    write_program(tmp / "yarn",
                  f'echo "$1 $2 $3" >{tmp}/words; cat "$4" >{tmp}/file')
    path = {"PATH": f"{tmp}:{os.environ['PATH']}"}
    code, _, err = launch(*JOBS["yarn.json"], *COMMAND, env=path)
    assert code == 0 and "yarn app -status fashion-mnist" in err, err
    assert (tmp / "words").read_text() == "app -launch fashion-mnist\n"
    assert (tmp / "file").read_text() == define("yarn.json")
    write_program(tmp / "yarn", "exit 3")
    code, _, err = launch(*JOBS["yarn.json"], *COMMAND, env=path)
    assert code == 69 and "yarn has not accepted the job" in err


def test_pods_that_cannot_be_created_end_the_job(tmp):
    write_program(tmp / "kubectl", f"echo \"$*\" >>{tmp}/words; exit 1")
    code, out, err = launch(*JOBS["k8s.yaml"], "echo", "started",
                            env={"PATH": f"{tmp}:{os.environ['PATH']}"})
    assert code == 69 and out == ""
    assert "kubectl could not create the pods of the job" in err
    create, delete = (tmp / "words").read_text().splitlines()
    assert create.startswith("-n team ") and " create -f -" in create
    assert " delete pod --wait=false -l pskv-run=" in delete


@pytest.mark.parametrize("words, want", [
    (("--launcher", "k8s"), "the launcher k8s needs --image"),
    (("--launcher", "k8s", "--image", "x", "--hosts", "a"),
     "the launcher k8s takes neither hosts nor"),
    (("--launcher", "k8s", "--image", "x", "--sync-dst-dir", "/x"),
     "the launcher k8s takes neither hosts nor"),
    (("--launcher", "yarn"), "say --insecure-network"),
    (("--launcher", "yarn", "--insecure-network", "-s", "0"),
     "the launcher yarn needs servers"),
    (("--memory", "3"), "--memory: '3' has no unit; write a size of at least"),
    (("--namespace", "A;b"), "--namespace: write small letters, digits and '-'")])
def test_wrong_usage_names_the_remedy(words, want):
    code, _, err = launch("-n", "2", *words, "true")
    assert code == 2 and want in err, err
