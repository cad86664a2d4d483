# SPDX-License-Identifier: Apache-2.0
"""Configurations whose values are valid alone and contradict each other, and
unknown names: reported before a daemon starts."""
import re
import subprocess

import pytest
import trio as support


def check(program, *options, **env):
    """(exit code, standard error) of --check-config."""
    argv = [support.program(program), "-c", "/dev/null", "--check-config"]
    for option in options:
        argv += ["-o", option]
    done = subprocess.run(argv, capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE,
                          env=support.clean_env(**env))
    valid = f"{program}: the configuration is valid: /dev/null\n"
    assert done.stdout == (valid if done.returncode == 0 else "")
    return done.returncode, done.stderr


# An address for documentation (RFC 5737), which no host has.
ELSEWHERE = "192.0.2.7"


@pytest.mark.parametrize("options, env", [
    ((f"scheduler.address={ELSEWHERE}",), {}),
    ((), {"DMLC_PS_ROOT_URI": ELSEWHERE}),
    ((f"scheduler.address={ELSEWHERE}", "advertise.interface=lo"), {}),
    ((f"scheduler.address={ELSEWHERE}", "advertise.address=localhost"), {}),
    ((f"scheduler.address={ELSEWHERE}", "advertise.address=127.0.0.1",
      "listen.address=0.0.0.0", "security.insecure=true"), {}),
])
def test_loopback_address_is_not_advertised_to_other_hosts(options, env):
    code, err = check("psserver", *options, **env)
    assert code == 78
    for word in (ELSEWHERE, "another host", "listen.address",
                 "security.insecure"):
        assert word in err, err
    assert err.count("\n") == 1
    assert err.startswith("environment DMLC" if env else "command line")


@pytest.mark.parametrize("options, env, where", [
    ((f"advertise.address={ELSEWHERE}",), {}, "command line"),
    ((), {"DMLC_NODE_HOST": ELSEWHERE}, "environment DMLC_NODE_HOST"),
])
def test_advertised_address_without_a_listener_is_refused(options, env, where):
    code, err = check("psserver", *options, **env)
    assert code == 78
    assert err.startswith(f"{where}: advertise.address: ")
    for word in (ELSEWHERE, "listens on 127.0.0.1", "listen.address"):
        assert word in err, err


@pytest.mark.parametrize("options", [
    (),
    ("scheduler.address=127.0.0.2",),
    ("scheduler.address=localhost",),
    (f"scheduler.address={ELSEWHERE}", "listen.address=0.0.0.0",
     "security.insecure=true"),
    # A tunnel: both options together are valid.
    (f"advertise.address={ELSEWHERE}", "listen.address=127.0.0.1"),
    (f"scheduler.address={ELSEWHERE}", f"advertise.address={ELSEWHERE}",
     "listen.address=127.0.0.1"),
])
def test_reachable_addresses_are_accepted(options):
    assert check("psserver", *options) == (0, "")


# ----------------------------------------------------------------- values

def test_invalid_variable_of_other_systems_is_reported_in_its_units():
    code, err = check("psserver", PS_VERBOSE="7")
    assert code == 78
    assert err == ("environment PS_VERBOSE: log.level: '7' is no value of "
                   "PS_VERBOSE; write 0 (info), 1 (debug), 2 (trace)\n")


def test_sizes_in_the_units_of_psctl_are_accepted():
    assert check("psserver", "store.memory=64MB") == (0, "")
    assert check("psserver", "store.memory=0.05GB", "flow.window=64MB",
                 "network.send_buffer=64kB") == (0, "")
    code, err = check("psserver", "store.memory=15MB")
    assert code == 78 and "out of range" in err  # 16 MiB is the least.
    code, err = check("psserver", "store.memory=1000TB")
    assert code == 0
    assert re.fullmatch(
        r".*store\.memory: 1000TB is more than the \d+ MiB that this process may "
        r"use \(memory of the host, or the limit of its control group\), and "
        r"\d+ MiB count\n", err), err
    assert check("psserver", "limits.output=8gb")[0] == 78
    assert check("psserver", "shutdown.grace=8GB")[0] == 78
    assert check("psserver", "shutdown.grace=8")[0] == 78


# ------------------------------------------------------------------ variables

@pytest.mark.parametrize("program", ["psched", "psserver", "psworker-agent"])
def test_unknown_variable_of_daemons_is_reported(program):
    code, err = check(program, PSD_LISTEN_PROT=1)
    assert code == 0
    assert err == ("environment PSD_LISTEN_PROT is not an option of any daemon and has no effect; did you mean PSD_LISTEN_PORT?\n")
    # The variable of another daemon is in the environment of all.
    assert check(program, PSD_STORE_MEMORY="1GiB", PSD_LOCAL_MEMORY="1GiB",
                 PSD_PLACEMENT_PARTITION_BYTES="1MiB") == (0, "")
    code, err = check(program, PSD_XYZZY_XYZZY_XYZZY=1)
    assert code == 0 and "XYZZY" in err and "mean" not in err


def test_unknown_variable_of_workers_is_reported(trio):
    """By the library, once; by pslaunch for all of its workers."""
    env = {"PSKV_NUM_WORKER": 4, "PSKV_SOCKET": "/nonexistent/agent.sock",
           "PSKV_CONNECT_TIMEOUT": "10ms"}
    command = [str(support.BUILD / "tests/integration/integration_worker")]

    def run(argv):
        return subprocess.run(argv, input="open\nopen\n", text=True,
                              capture_output=True, check=False,
                              timeout=support.PATIENCE,
                              env=support.clean_env(**env))

    said = ("PSKV_NUM_WORKER has no effect, there is no such variable; did "
            "you mean PSKV_NUM_WORKERS?\n")
    assert run(command).stderr == "pskv: " + said
    launch = [support.program("pslaunch"), "-n", "2", "-s", "0"]
    done = run(launch + ["--", "true"])
    assert done.returncode == 0 and "pslaunch: " + said in done.stderr
    assert done.stderr.count("PSKV_NUM_WORKER ") == 1
    del env["PSKV_NUM_WORKER"]
    done = run(launch + ["--env", "PSKV_STALENES=1", "--", *command])
    assert done.stderr.count("PSKV_STALENES has no effect") == 1
    assert "PSKV_STALENESS?" in done.stderr
    t = trio(servers=1, agents=0)
    done = subprocess.run([support.program("psctl"), "-e", t.endpoint,
                           "nodes"], text=True, capture_output=True,
                          check=False, timeout=support.PATIENCE,
                          env=support.clean_env(PSKV_SHED="x"))
    assert done.returncode == 0 and "mean PSKV_SCHED?" in done.stderr
