# SPDX-License-Identifier: Apache-2.0
"""pslaunch: environment of workers, reports of failures, and no process left
behind, whichever dies. Where daemons do not matter, workers get a socket
without a listener."""
import array
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import trio as support
import wire
from launched import (FAMILY, SHELL, Running, argv, await_nothing, children_of,
                      kill_at_once, launch, marked, stat_of)
from trio import limit, wait_for, wait_ready

ALONE = ("--socket", "/nonexistent/agent.sock")
PRIVATE = ("--private", "-s", "2", "--nodes", "2")


def own_processes(running):
    """The three processes of pslaunch: front, guard, supervisor."""
    own = [running.process.pid]
    for _ in range(2):
        below = children_of(own[-1])
        assert len(below) == 1
        own += below
    return own


def polite(code, forever=False):
    """A worker that waits for TERM and ends with `code`, or does not care.
    Shells would do, but a trap can miss a signal that comes before `wait`."""
    return ("/usr/bin/python3", "-S", "-u", "-c", f"""
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
rank = os.environ["RANK"]
print("ready", rank)
open(os.environ.get("MEET", "/tmp") + "/ready-" + rank, "w").close()
while True:
    signal.sigwait({{signal.SIGTERM}})
    print("asked", rank)
    if not {forever}:
        os._exit({code})
""")


# ---------------------------------------------------------------------- usage

@pytest.mark.parametrize("words", [
    (), ("true",), ("-n", "0", "true"), ("-n", "two", "true"), ("-n", "2"),
    ("-n", "2", "--launcher", "carrier-pigeon", "true"),
    ("-n", "2", "--nodes", "3", "true"), ("-n", "2", "--bogus", "true"),
    ("-n", "2", "--grace", "10", "true"),
    ("-n", "2", "--mode", "dist_later", "true"),
    ("-n", "2", "--env", "=x", "true"),
    ("-n", "2", "--private", "-s", "0", "--nodes", "2", "true")])
def test_wrong_usage_is_2(words):
    code, out, err = launch(*words)
    assert code == 2 and out == "" and "pslaunch" in err


@pytest.mark.parametrize("words, want", [
    (("-np", "2", "true"), "no option -np here; instead: -n N"),
    (("-n", "2", "-hostfile", "h", "true"),
     "no option -hostfile here; instead: --hostfile FILE"),
    (("-n", "2", "--launchr", "ssh", "true"),
     "no option --launchr; did you mean --launcher?"),
    (("-n", "2", "--envworker=A=1", "true"),
     "no option --envworker; did you mean --env-worker?"),
    (("-n", "2", "--out", "x", "true"),
     "--out is short for several options: --output, --output-dir"),
    (("-n", "2", "--grace"), "--grace needs a value"),
    (("-n",), "-n needs a value"),
    (("-n", "2", "--private=yes", "true"),
     "--private=yes: this option takes no value"),
    (("-n", "2", "--env", "NOT_SET", "true"),
     "--env NOT_SET: this variable is not set here; set it, give "
     "NOT_SET=VALUE, or leave it out"),
    (("-n", "2", "--env-server", "NOT_SET", "true"),
     "--env-server NOT_SET: this variable is not set here"),
    (("-n", "2", "-Q", "true"), "no option -Q; pslaunch --help lists all"),
    (("-n", "2", "-H", "a,b", "true"),
     "-H: a,b: No such file or directory; a list such as h1:4,h2:4 goes with "
     "--hosts"),
    (("-n", "2", "--hosts", "a,,b", "true"), "--hosts: a host has no name"),
    (("-n", "2", "--hosts", "a", "--launcher", "local", "true"),
     "the launcher local is for this host alone"),
    (("-n", "2", "--launcher", "ssh", "true"), "the launcher ssh needs hosts"),
    (("-n", "2", "--hosts", "a", "--tls", "off", "true"),
     "say --insecure-network"),
    (("-n", "2", "--hosts", "a", "--tls", "on", "--insecure-network", "true"),
     "--tls on encrypts what --insecure-network leaves plain"),
    (("-n", "2", "--socket", "/x/agent.sock", "--tls", "on", "true"),
     "would use the agent at /x/agent.sock; say --private"),
    (("-n", "2", "--tls", "yes", "true"), "--tls: 'yes' is not a known word; write auto, on or off"),
    (("-n", "2", "--hosts", "a,b", "--nodes", "2", "true"),
     "--nodes plays nodes on this host"),
    (("-n", "4", "--hosts", "a:1,b:2", "true"), "slots for 3 workers"),
    (("-n", "2", "-s", "0", "--hosts", "a,b", "--insecure-network", "true"),
     "-s 0 starts no server, which needs one host for all workers, not 2"),
    (("-n", "2", "--sync-dst-dir", "/tmp/x", "true"), "nothing is copied"),
    (("-n", "2", "--launcher", "pigeon", "true"), "--launcher: 'pigeon' is no launcher; write auto, local, ssh, mpi, slurm"),
    (("-n", "2", "--bogus", "true"), "no option --bogus")], ids=" ".join)
def test_wrong_usage_names_the_remedy(words, want):
    """Options of other launchers are named as they were written."""
    code, _, err = launch(*words)
    assert code == 2 and err.startswith("pslaunch: ") and want in err


# Long options of launchers that are not installed where tests run, and those of
# one letter that all of them have.
FOREIGN = """
--cluster --worker-cores --worker-memory --server-cores --server-memory
--jobname --log-file --host-ip --hdfs-tempdir --host-file --sge-log-dir
--auto-file-cache --files --archives --yarn-app-classpath --yarn-app-dir
--mesos-master --ship-libcxx --slurm-worker-nodes --slurm-server-nodes
--kube-namespace --kube-worker-image --kube-server-image
--kube-worker-template --kube-server-template --local-num-attempt
-np --num-proc --check-build --disable-cache --start-timeout
--network-interfaces --output-filename --verbose --config-file -p --ssh-port
-i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms --cache-capacity
--hierarchical-allreduce --hierarchical-allgather --torus-allreduce --autotune
--autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np
--max-np --slots-per-host --elastic-timeout --reset-limit
--blacklist-cooldown-range --timeline-filename --timeline-mark-cycles
--no-stall-check --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-threads-disable --mpi-args --tcp
--binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds
--log-with-timestamp --host-discovery-script --gloo --mpi --jsrun
--nnodes --nproc-per-node --nproc_per_node --rdzv-backend --rdzv-endpoint
--rdzv-id --rdzv-conf --standalone --max-restarts --monitor-interval
--start-method --role -m --module --no-python --run-path --log-dir -r
--redirects -t --tee --node-rank --master-addr --master-port --local-addr
-N --npernode --host -host --hostfile -hostfile -machinefile -x --mca -mca
--wdir -wdir --oversubscribe --allow-run-as-root --tag-output
--timestamp-output --report-bindings --map-by --bind-to --rank-by
--display-map --timeout -ppn -genv -bind-to -iface -f -l
--ntasks --ntasks-per-node --gres --partition --time --mem --cpus-per-task
--nodelist --job-name
""".split()


def test_options_of_other_launchers_have_a_remedy():
    """All that are known are taken, or refused with what to do instead. Those
    of torchrun are as the installed one lists them."""
    words = list(FOREIGN)
    torchrun = shutil.which("torchrun")
    if torchrun is not None:
        done = subprocess.run([torchrun, "--help"], capture_output=True,
                              text=True, check=False, timeout=limit(60))
        words += re.findall(r"^ *(--[a-z][-_a-z]+)", done.stdout, re.M)
        assert "--rdzv_conf" in words, done
    lost = []
    for word in words:
        _, _, err = launch("-n", "1", "--dry-run", word)
        if f"no option {word} here; " not in err and \
                f"{word} needs a value" not in err and err != "":
            lost.append((word, err))
    assert not lost


@pytest.mark.parametrize("size", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                  "SLURM_STEP_NUM_TASKS"])
def test_no_job_for_each_task_of_another_launcher(size):
    """One task alone, and a script of sbatch, are well."""
    code, out, err = launch("-n", "1", "--dry-run", "true", env={size: "4"})
    assert code == 2 and out == ""
    assert "started this 4 times" in err and f"unset {size}" in err
    for alone in ({size: "1"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}):
        assert launch("-n", "1", "--dry-run", "true", env=alone)[0] == 0


def test_help_and_version():
    code, out, _ = launch("--help")
    assert code == 0
    for word in ("-n", "-s", "--nodes", "--env", "--output-dir", "--grace",
                 "--hosts", "--hostfile", "--launcher",
                 "--on-loss", "--keep-going", "--dry-run"):
        assert word in out
    assert launch("--version")[1].startswith("pslaunch ")


def test_help_fits_on_a_screen_and_names_each_option():
    _, out, _ = launch("--help")
    lines = out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 79
    code, every, _ = launch("help", "all")
    assert code == 0 and launch("help") == (0, out, "")
    options = set(re.findall(r"--[a-z][a-z0-9-]+", out))
    # Each has a line of its own there, with what it is for.
    heads = re.findall(r"^  (?:-., |    )(--[a-z][a-z0-9-]+)\b", every, re.M)
    assert set(heads) == options and len(heads) == len(options)
    assert max(map(len, every.splitlines())) <= 79


def test_help_of_a_group_and_of_an_option():
    _, out, _ = launch("help", "failures")
    assert out.startswith("failures\n") and "--grace TIME " in out
    assert "--hosts" not in out
    _, one, _ = launch("help", "grace")
    assert "--grace TIME" in one and "--keep-going" not in one
    assert launch("help", "--grace")[1] == one
    assert "--num-workers" in launch("help", "-n")[1]
    code, out, err = launch("help", "grease")
    assert code == 2 and out == "" and "no such group or option" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_each_option(shell):
    options = set(re.findall(r"--([a-z][a-z0-9-]+)", launch("--help")[1]))
    code, out, _ = launch("completion", shell)
    assert code == 0
    found = set(re.findall(r" -l ([a-z0-9-]+)" if shell == "fish" else
                           r"--([a-z][a-z0-9-]+)", out))
    assert found == options
    if shell != "zsh":
        assert launch("completion", "csh")[0] == 2


def test_an_option_without_a_value_is_refused():
    code, _, err = launch("-n", "1", "--name", "", "true")
    assert code == 2 and err == \
        "pslaunch: --name: the value is empty; leave the option out\n"


def test_dry_run_starts_nothing(tmp):
    touched = tmp / "touched"
    code, out, _ = launch("-n", "3", "-s", "2", "--private", "--dry-run",
                          "touch", str(touched))
    assert code == 0 and not touched.exists()
    assert "2 psserver" in out and out.count("touched") == 3


def test_a_command_of_many_words_is_whole(tmp):
    """Options of ssh that a user adds, and a folder with many quotes."""
    options = " ".join(f"-o Option={i}" for i in range(100))
    folder = "/" + 250 * "'"
    code, out, err = launch(
        "-n", "1", "--hosts", "a", "--sync-dst-dir", folder, "--dry-run",
        "true", env={"PSKV_SSH": f"ssh {options}"})
    assert code == 0, err
    line = next(one for one in out.split("\n") if one.startswith("  ssh "))
    words = shlex.split(line)
    assert words[1:201] == options.split() and "--supervise" in words[-1]
    copy = next(one for one in out.split("\n") if " rsync " in one)
    assert any(word.endswith(f"a:{folder}/") or f"a:{folder}" in word
               for word in shlex.split(copy)), shlex.split(copy)


def test_dry_run_shows_hosts_and_variables(tmp):
    """Placement of launch.py: servers first, then workers, hosts in a cycle."""
    hosts = tmp / "hosts"
    hosts.write_text("h1\nh2:2222\nh3\nh4\nh5\n")
    code, out, err = launch(
        "-n", "3", "-s", "3", "-H", str(hosts), "--launcher", "ssh",
        "--dry-run", "--sync-dst-dir", "/data/job", "--env", "A=one two",
        "--env-server", "B:2", "--env-worker", "C=3",
        "python3 train.py --kvstore dist_sync", env={"OMP_NUM_THREADS": "7",
                                                     "UNRELATED": "x"})
    assert code == 0, err
    blocks = dict(block.split(":\n", 1) for block in out.split("\nhost ")[1:])
    blocks = {host: text + "\n" for host, text in blocks.items()}
    assert list(blocks) == ["h1", "h2", "h3", "h4", "h5"]
    found = {host: [word for word in (
        "psched", "psserver 0", "psserver 1", "psserver 2", "psworker-agent 0",
        "psworker-agent 1", "psworker-agent 2", "rank 0", "rank 1", "rank 2")
        if f"\n  {word}" in "\n" + text] for host, text in blocks.items()}
    assert found == {"h1": ["psched", "psserver 0", "psworker-agent 0",
                            "rank 2"],
                     "h2": ["psserver 1"], "h3": ["psserver 2"],
                     "h4": ["psworker-agent 1", "rank 0"],
                     "h5": ["psworker-agent 2", "rank 1"]}
    assert "ssh -T -o BatchMode=yes -p 2222 h2 'exec sh -c" in blocks["h2"]
    assert "rsync" in blocks["h3"] and " h3:/data/job/" in blocks["h3"]
    for line in ("    'A=one two'", "    B=2"):
        assert f"{line}\n" in blocks["h2"]
    assert "C=3" not in blocks["h2"] and "B=2" not in blocks["h4"]
    for line in ("    RANK=0", "    WORLD_SIZE=3", "    LOCAL_WORLD_SIZE=1",
                 "    GROUP_RANK=1", "    MASTER_ADDR=h4",
                 "    DMLC_PS_ROOT_URI=h1", "    DMLC_JOB_CLUSTER=ssh",
                 "    'A=one two'", "    C=3"):
        assert f"{line}\n" in blocks["h4"], blocks["h4"]
    assert "  rank 0 on node 1: /bin/sh -c 'python3 train.py --kvstore " \
        "dist_sync'\n" in blocks["h4"]
    assert "UNRELATED" not in out


# --------------------------------------------------------------------- workers

def test_output_has_the_rank_in_front():
    code, out, err = launch(
        "-n", "4", *ALONE, *SHELL,
        "for i in $(seq 500); do echo out-$RANK-$i; done; "
        "echo err-$RANK >&2; printf 'no newline %s' $RANK")
    assert code == 0
    lines = out.split("\n")
    assert lines.pop() == ""
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] out-{rank}-{i}" for i in range(1, 501)] + \
            [f"[{rank}] no newline {rank}"]
        assert f"[{rank}] err-{rank}\n" in err
    assert len(lines) == 4 * 501


def test_long_lines_lose_nothing():
    code, out, _ = launch("-n", "1", *ALONE, "--output", "plain",
                          "/usr/bin/python3", "-c", "print('x' * 300000)")
    assert code == 0 and out.replace("\n", "") == "x" * 300000


def test_plain_output():
    code, out, _ = launch("-n", "2", *ALONE, "--output", "plain", "echo", "hi")
    assert code == 0 and out == "hi\nhi\n"


def test_environment_of_workers():
    code, out, _ = launch("-n", "4", "-s", "3", "--name", "jobname",
                          "--mode", "dist_ssp", *ALONE, "env", env={"PSKV_KEEP": "kept"})
    assert code == 0
    for rank in range(4):
        env = dict(line[4:].split("=", 1) for line in out.split("\n")
                   if line.startswith(f"[{rank}] "))
        want = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 0, "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": rank, "DMLC_RANK": rank,
                "DMLC_TASK_ID": rank, "DMLC_NUM_WORKER": 4,
                "DMLC_NUM_SERVER": 3, "DMLC_JOB_CLUSTER": "local",
                "PSKV_SOCKET": ALONE[1], "PSKV_JOB": "jobname",
                "PSKV_MODE": "dist_ssp",
                "PSKV_ON_LOSS": "fail", "PYTHONUNBUFFERED": 1,
                "PSKV_KEEP": "kept"}
        assert {k: env.get(k) for k in want} == \
            {k: str(v) for k, v in want.items()}
        assert "MASTER_ADDR" in env and "MASTER_PORT" in env


def test_jobs_have_ports_of_their_own_for_the_store_of_torch(tmp):
    """Rank 0 can listen on the port of its job while nobody else is given it.
    A port that is set is kept."""
    fifo = tmp / "fifo"
    os.mkfifo(fifo)
    words = ("-n", "1", *ALONE, "--output", "plain", "sh", "-c")
    with subprocess.Popen(
            argv(*words, 'echo $MASTER_PORT; read x <"$FIFO"'), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            env=support.clean_env(FIFO=fifo)) as first:
        port = int(first.stdout.readline())
        code, out, err = launch(*words, "echo $MASTER_PORT")
        assert code == 0 and int(out) != port, err
        with socket.socket() as s, pytest.raises(OSError):
            s.bind(("127.0.0.1", port))
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            s.listen()
        fifo.write_text("go\n")
    assert first.returncode == 0
    for variable, want in ("MASTER_PORT", "12345"), ("MASTER_ADDR", "29500"):
        code, out, _ = launch(*words, "echo $MASTER_PORT",
                              env={variable: "12345"})
        assert (code, out) == (0, want + "\n")


def test_env_option_takes_one_word_and_keeps_it_whole():
    """Upstream's launcher took the command for more variables, and broke
    values with blanks or quotes."""
    code, out, _ = launch(
        "-n", "1", *ALONE, "--env", "A=one two 'three' \"four\" $RANK",
        "--env", "B:old:style", "--env", "PASSED",
        "--env-worker", "C=", "env", env={"PASSED": "through"})
    assert code == 0
    assert "[0] A=one two 'three' \"four\" $RANK\n" in out
    assert "[0] B=old:style\n" in out
    assert "[0] PASSED=through\n" in out and "[0] C=\n" in out


def test_a_command_may_be_one_quoted_string():
    """As for launch.py, a shell splits it."""
    code, out, _ = launch("-n", "1", *ALONE, "--output", "plain",
                          "echo  one 'two  three' $RANK")
    assert (code, out) == (0, "one two  three 0\n")


def test_options_of_launch_py_before_a_command(tmp):
    """All of them at once; those that change nothing here, too."""
    hosts = tmp / "hosts"
    hosts.write_text("172.30.0.172\n172.31.0.173\n")
    code, out, err = launch(
        "--num-workers", "2", "--num-servers=1", "--hostfile", str(hosts),
        "--launcher=ssh", "--sync-dst-dir", "/tmp/mxnet", "--env-server",
        "A:B", "--env-worker", "C:D", "--env", "HOME", "--p3", "--dry-run",
        "python", "train.py", "--kv-store", "dist_sync")
    assert code == 0, err
    assert out.count(": python train.py --kv-store dist_sync\n") == 2


def test_variables_of_servers_and_workers_are_apart(tmp):
    """--env is for both."""
    seen = tmp / "seen"
    folder = tmp / "bin"
    folder.mkdir()
    for name in ("psched", "psserver", "psworker-agent"):
        script = folder / name
        script.write_text(f"#!/bin/sh\necho {name} $A $B $C >>{seen}\n"
                          f"exec {support.program(name)} \"$@\"\n")
        script.chmod(0o755)
    code, out, err = launch(
        "-n", "1", "-s", "1", "--private", "--output", "plain", "--env", "A=1",
        "--env-server", "B:2", "--env-worker", "C=3", *SHELL,
        "echo worker $A $B $C", env={"PSKV_BINDIR": str(folder)})
    assert code == 0, err
    assert out == "worker 1 3\n"
    assert sorted(line.strip() for line in
                  seen.read_text().strip().split("\n")) == [
        "psched", "psserver 1 2", "psworker-agent"]


def test_standard_input_is_empty():
    code, out, _ = launch("-n", "2", *ALONE, "cat")
    assert (code, out) == (0, "")


def test_output_dir(tmp):
    where = tmp / "logs"
    code, out, _ = launch("-n", "3", *ALONE, "--output-dir", str(where),
                          *SHELL, "echo one $RANK; echo two $RANK >&2")
    assert code == 0 and out.count("one") == 3
    for rank in range(3):
        text = (where / f"rank-{rank}.log").read_text()
        assert sorted(text.split("\n")) == ["", f"one {rank}", f"two {rank}"]


def test_output_dir_follows_no_link(tmp):
    """A link or another name in a folder that others may write to leaves the
    file behind it as it is."""
    victim, where = tmp / "victim", tmp / "logs"
    victim.write_text("kept")
    where.mkdir()
    (where / "rank-0.log").symlink_to(victim)
    (where / "rank-1.log").hardlink_to(victim)
    (where / "rank-2.log").write_text("of a run before")
    code, out, err = launch("-n", "3", *ALONE, "--output-dir", str(where),
                            *SHELL, "echo one $RANK")
    assert code == 74 and out.count("one") == 3
    assert victim.read_text() == "kept"
    assert "rank-0.log: it is a symbolic link" in err
    assert "rank-1.log: it is not a file of this user with one name" in err
    assert (where / "rank-2.log").read_text() == "one 2\n"


# -------------------------------------------------------------------- failures

def test_code_of_the_first_failing_rank(tmp):
    """The others are ended, and do not hide the cause with their own codes."""
    code, out, err = launch(
        "-n", "4", *ALONE, *SHELL,
        "test $RANK != 2 && exec \"$@\"; "
        "until test -e $MEET/ready-0 -a -e $MEET/ready-1 -a "
        "-e $MEET/ready-3; do :; done; echo broken gradient >&2; exit 7",
        "bash", *polite(9), env={"MEET": str(tmp)})
    assert code == 7
    for rank in (0, 1, 3):
        assert f"[{rank}] asked {rank}\n" in out
    last = err.strip().split("\n")[-1]
    assert "rank 2" in last and socket.gethostname() in last and "7" in last
    assert "broken gradient" in err


def test_the_last_lines_of_the_failing_rank_are_whole():
    script = "for i in $(seq 100); do echo this is line $i >&2; done; exit 7"
    code, _, err = launch("-n", "1", *ALONE, *SHELL, script)
    assert code == 7
    last = err.split("rank 0 wrote last:\n")[1].split("pslaunch: ")[0]
    lines = last.strip().split("\n")
    assert len(lines) > 10
    assert lines == [f"this is line {i}"
                     for i in range(101 - len(lines), 101)]


def test_a_signal_is_128_and_its_number():
    code, _, err = launch("-n", "2", *ALONE, *SHELL,
                          "test $RANK = 1 && kill -SEGV $$; exec sleep 1000")
    assert code == 128 + signal.SIGSEGV
    assert "rank 1" in err and "signal 11" in err


def test_command_that_is_not_there():
    code, _, err = launch("-n", "2", *ALONE, "/no/such/program")
    assert code == 127 and "/no/such/program" in err


def test_a_file_of_the_present_folder_that_is_no_command(tmp):
    """Both are there, and the system says that they are not."""
    (tmp / "train.py").write_text("print('hello')\n")
    (tmp / "train").write_text("#!/bin/sh\necho hello\n")
    (tmp / "train").chmod(0o755)
    for words, code, want in (
            (("train.py",), 127, "cannot run train.py: it is a Python script: "
             "write -- python3 train.py"),
            (("./train.py", "-v"), 126, "cannot run ./train.py: it is a Python "
             "script: write -- python3 ./train.py"),
            (("train",), 127, "cannot run train: it is in the present folder, "
             "which PATH does not have: write -- ./train")):
        done = subprocess.run(argv("-n", "1", *ALONE, *words), cwd=tmp,
                              capture_output=True, text=True, check=False,
                              timeout=limit(60), env=support.clean_env())
        assert done.returncode == code and want in done.stderr, done


def test_keep_going():
    code, out, _ = launch("-n", "3", *ALONE, "--keep-going", *SHELL,
                          "test $RANK = 0 && exit 5; "
                          "while test ! -e /proc/$PPID; do :; done; "
                          "echo done $RANK")
    assert code == 5 and "done 1" in out and "done 2" in out


def test_a_left_over_process_holds_up_nothing():
    """It keeps the pipe open, and is ended with the job."""
    with Running("-n", "2", *ALONE, *SHELL,
                 "setsid sleep 1000 & exit 0") as r:
        assert r.wait() == 0
        await_nothing(r.mark)


def test_daemons_that_cannot_start_are_69(tmp):
    """Tells which one, and leaves nothing."""
    with Running("-n", "1", "-s", "1", "--private", "true",
                 env={"PSKV_BINDIR": str(tmp)}) as r:
        assert r.wait() == 69
        r.await_text(b"psched", name="err")
        await_nothing(r.mark)


# --------------------------------------------------------------------- signals

def test_interrupt_once_is_a_request(tmp):
    with Running("-n", "2", *ALONE, *polite(0), env={"MEET": str(tmp)}) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        r.await_text(b"asked", 2)
        await_nothing(r.mark)


def test_the_exit_code_tells_the_signal(tmp):
    with Running("-n", "1", *ALONE, *polite(0), env={"MEET": str(tmp)}) as r:
        r.await_text(b"ready", 1)
        r.process.send_signal(signal.SIGTERM)
        assert r.wait() == 143
        r.await_text(b"asked", 1)
        await_nothing(r.mark)


def test_interrupt_twice_is_an_order(tmp):
    with Running("-n", "2", *ALONE, "--grace", "1000s", *polite(0, True),
                 env={"MEET": str(tmp)}) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        r.await_text(b"asked", 2)
        assert r.process.poll() is None
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        await_nothing(r.mark)


def test_grace_ends(tmp):
    with Running("-n", "2", *ALONE, "--grace", "2s", *polite(0, True),
                 env={"MEET": str(tmp)}) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGTERM)
        assert r.wait() >= 128
        r.await_text(b"asked", 2)
        await_nothing(r.mark)


@pytest.mark.parametrize("how", [ALONE, PRIVATE], ids=["alone", "private"])
@pytest.mark.parametrize("victim", range(3),
                         ids=["front", "guard", "supervisor"])
def test_killed_pslaunch_leaves_nothing(how, victim):
    """Neither workers, nor what they started in sessions of their own, nor
    daemons, whichever of the three processes is killed."""
    with Running("-n", "4", *how, *SHELL, FAMILY) as r:
        r.await_text(b"ready", 4)
        count = 3 + 4 * 4 + (5 if how is PRIVATE else 0)
        wait_for(lambda: len(marked(r.mark)) >= count, "the whole family")
        os.kill(own_processes(r)[victim], signal.SIGKILL)
        assert r.wait() == (-9 if victim == 0 else 137)
        await_nothing(r.mark)


def test_the_wait_for_ranks_that_ignore_a_request(tmp):
    """Nobody wonders for ten seconds what Ctrl-C is doing."""
    with Running("-n", "10", *ALONE, "--grace", "4s", *polite(0, True),
                 env={"MEET": str(tmp)}) as r:
        r.await_text(b"ready", 10)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        names = b", ".join(b"rank %d" % i for i in range(8)) + b" and 2 more"
        r.await_text(b"pslaunch: waiting for the end of " + names + b"; KILL "
                     b"comes in 3 s, or at once at another Ctrl-C (INT or "
                     b"TERM)\n", name="err")
        r.await_text(b"pslaunch: killed " + names + b", which had not ended "
                     b"4.0 s after TERM (--grace)\n", name="err")
        await_nothing(r.mark)


def test_the_wait_for_others_after_a_failure(tmp):
    """The same words, but nobody has pressed Ctrl-C."""
    with Running("-n", "2", *ALONE, "--grace", "4s", *SHELL,
                 "test $RANK = 0 && exec \"$@\"; "
                 "until test -e $MEET/ready-0; do :; done; exit 7",
                 "bash", *polite(0, True), env={"MEET": str(tmp)}) as r:
        assert r.wait() == 7
        r.await_text(b"pslaunch: waiting for the end of rank 0; KILL comes in "
                     b"3 s\n", name="err")
        r.await_text(b"pslaunch: killed rank 0, which", name="err")


@pytest.fixture(name="tight")
def tight_group():
    """A control group with 64 MiB of memory, as the command that enters it."""
    name = f"pskv-test-{os.getpid()}"
    for parent, limit, tasks in (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "cgroup.procs"),
            ("/sys/fs/cgroup", "memory.max", "cgroup.procs")):
        folder = Path(parent) / name
        try:
            folder.mkdir()
            (folder / limit).write_text(str(64 << 20))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield f"echo $$ >{folder / tasks}"
        wait_for(lambda folder=folder: (folder / tasks).read_text() == "",
                 "an empty control group")
        folder.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


GREEDY = ("python3 -S -c \"x = [bytearray(b'x' * (1 << 20)) for _ in "
          "range(1000)]\"")


@pytest.mark.parametrize("how, words", [
    ("exec ", "was killed by signal 9 (Killed)"),
    ("", "exited with code 137")], ids=["rank", "child"])
def test_a_rank_killed_for_lack_of_memory(tight, how, words):
    """One that is killed later by its user is not said to be."""
    code, _, err = launch(
        "-n", "2", *ALONE, *SHELL,
        f"test $RANK = 0 && exec sleep 1000; {tight}; {how}{GREEDY}; exit $?")
    assert code == 137, err
    assert (f"{words}, by the kernel for lack of memory, which dmesg on that "
            "host shows") in err
    code, _, err = launch("-n", "1", *ALONE, *SHELL, "kill -KILL $$")
    assert code == 137 and "was killed by signal 9 (Killed)\n" in err


# A rank that stops processes above it: those of the list, 1 the supervisor, 2
# the guard, 3 the front; then it starts a family that would outlive it.
STOPPER = """
p=$PPID
for i in 1 2 3; do
  above[$i]=$p
  p=$(sed 's/.*) . //' /proc/$p/stat | cut -d' ' -f1)
done
for i in $STOP; do kill -STOP ${above[$i]}; done
""" + FAMILY


@pytest.mark.parametrize("stopped", ["1", "2", "1 2", "3 2 1", "1 2 3"])
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_stopped_pslaunch_ends_its_processes(stopped, how):
    """A rank that stops the processes above it outlives none of them."""
    with Running("-n", "1", *ALONE, *SHELL, STOPPER,
                 env={"STOP": stopped}) as r:
        front = r.process.pid
        wait_for(lambda: len(marked(r.mark)) >= 3 + 4, "the whole family")
        if "3" in stopped:
            wait_for(lambda: stat_of(front)[0] == "T", "the front stopped")
        if how == "kill":
            r.process.kill()
            assert r.wait() == -signal.SIGKILL
        else:
            r.process.send_signal(signal.SIGINT)
            if "3" in stopped:  # As `fg` does.
                r.process.send_signal(signal.SIGCONT)
            assert r.wait() == 130
        await_nothing(r.mark)


@pytest.mark.parametrize("how", [ALONE, PRIVATE], ids=["alone", "private"])
def test_all_three_killed_at_once(how):
    """No process is left to end grandchildren, but workers and daemons end by
    themselves."""
    with Running("-n", "4", *how, *SHELL, "echo ready; exec sleep 1000") as r:
        r.await_text(b"ready", 4)
        own = own_processes(r)
        # psched, two servers with a keeper each, two agents
        count = 3 + 4 + (7 if how is PRIVATE else 0)
        # A process within exec has no command line for a moment.
        wait_for(lambda: len(marked(r.mark)) == count, "everybody")
        kill_at_once(own)
        r.wait()
        await_nothing(r.mark)


def test_failing_rank_takes_the_family_along():
    with Running("-n", "3", *ALONE, *SHELL,
                 "test $RANK = 1 && exit 3\n" + FAMILY) as r:
        assert r.wait() == 3
        await_nothing(r.mark)


# Its first thread ends, another one has a child.
WITHOUT_MAIN = """
import ctypes, subprocess, threading
def state():
    return open("/proc/self/stat").read().rsplit(")", 1)[1].split()[0]
def run():
    while state() != "Z":
        pass
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("ready", flush=True)
    child.wait()
threading.Thread(target=run).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_offspring_without_a_main_thread_ends(tmp):
    """The system shows it as a zombie, though it runs."""
    (tmp / "main").write_text(WITHOUT_MAIN)
    with Running("-n", "1", *ALONE, *SHELL,
                 f"read x < <(setsid {sys.executable} {tmp}/main); echo $x; "
                 "exit 3") as r:
        assert r.wait() == 3
        r.await_text(b"ready")
        await_nothing(r.mark)


def test_children_from_before_stay(tmp):
    """Children that a script had before it became pslaunch do not belong to
    the job, nor do their orphans."""
    pids = tmp / "pids"
    done = subprocess.run(
        [*SHELL, 'sleep 1000 & echo $! >"$0"\n'
         '(sleep 1000 & echo $! >>"$0"; exec sleep 0) & wait $!\n'
         'exec "$@"', str(pids), *argv("-n", "1", *ALONE, "true")],
        stdin=subprocess.DEVNULL, env=support.clean_env(), check=False,
        timeout=limit(60))
    before = [int(pid) for pid in pids.read_text().split()]
    try:
        assert done.returncode == 0
        # Either may still be on its way to sleep.
        wait_for(lambda: [(stat_of(pid) or "-")[0] for pid in before] ==
                 ["S", "S"], "the children that were there before")
    finally:
        for pid in before:
            os.kill(pid, signal.SIGKILL)


# --------------------------------------------------------------- private trio

def test_twenty_starts_in_a_row(tmp):
    """Each starts, works through its own trio and ends without a word of
    warning, and nothing is left in the temporary folder."""
    worker = str(support.BUILD / "tests/integration/integration_worker")
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {worker}")
    seen = set()
    for _ in range(20):
        code, out, err = launch("-n", "4", *PRIVATE, *SHELL, script,
                                env={"TMPDIR": str(tmp)})
        assert code == 0, (out, err)
        lines = [line for line in err.split("\n")
                 if line and "this process was late" not in line]
        assert len(lines) == 1 and lines[0].startswith("pslaunch: job "), err
        results = {line.split(" ", 1)[1] for line in out.split("\n")
                   if " ok " in line and len(line.split()) == 3 and
                   len(line.split()[2]) == 16}
        assert len(results) == 1, out
        seen |= results
    assert len(seen) == 1
    assert list(tmp.iterdir()) == []


def test_workers_find_each_other(tmp):
    """Ranks of pslaunch are ranks of the job, spread over the nodes."""
    worker = str(support.BUILD / "tests/integration/integration_worker")
    code, out, err = launch("-n", "5", "--private", "-s", "1", "--nodes", "2",
                            *SHELL, f"printf 'open\\nclose\\n' | {worker}")
    assert code == 0, err
    opened = sorted(line for line in out.split("\n") if
                    len(line.split()) == 6)
    assert opened == ["[0] ok 0 5 0 3", "[1] ok 1 5 1 3", "[2] ok 2 5 2 3",
                      "[3] ok 3 5 0 2", "[4] ok 4 5 1 2"]


def test_a_private_trio_has_places_for_its_job():
    """More workers than an agent takes by default."""
    worker = str(support.BUILD / "tests/integration/integration_worker")
    code, out, err = launch("-n", "70", "--private", "-s", "1", *SHELL,
                            f"printf 'open\\nclose\\n' | {worker}",
                            seconds=120)
    assert code == 0, err
    assert out.count(" 70\n") == 70, out


def test_a_named_job_of_one_host_says_so():
    """Its name does not bring pslaunch of another host to it."""
    code, _, err = launch("-n", "1", "-s", "1", "--name", "named", "true")
    assert code == 0 and "on this host only" in err
    code, _, err = launch("-n", "1", "-s", "1", "--name", "named", "--private",
                          "true")
    assert code == 0 and "on this host only" not in err


def test_private_jobs_are_found(tmp):
    """By name, while they run: a second one of the same name has a suffix, and
    a name that a killed job has left is taken again."""
    env = {"XDG_RUNTIME_DIR": str(tmp)}
    jobs = tmp / "pskv/jobs"
    words = ("-n", "1", "-s", "1", "--private", "--name", "my job", *SHELL,
             "echo ready; exec sleep 1000")

    def status(*more):
        done = subprocess.run(
            [support.program("psctl"), *more, "status"], capture_output=True,
            text=True, check=False, timeout=limit(60),
            env=support.clean_env(PSKV_SCHED="127.0.0.1:1", **env))
        return done.returncode, done.stdout, done.stderr

    with Running(*words, env=env) as one:
        one.await_text(b"ready")
        two = Running(*words, env=env)
        two.await_text(b"ready")
        assert len(list(jobs.iterdir())) == 2
        assert jobs.stat().st_mode & 0o77 == 0
        code, _, err = status()
        assert code == 69, err
        lines = [line for line in err.split("\n") if "private  " in line]
        first = f"psctl -e unix:{jobs}/my_job status"
        assert len(lines) == 2 and any(line.endswith(first) for line in lines)
        code, out, err = status("-e", f"unix:{jobs}/my_job", "-w", "json")
        assert code == 0, err
        listed = {(j["name"], j["endpoint"])
                  for j in json.loads(out)["private_jobs"]}
        assert ("my_job", f"unix:{jobs}/my_job") in listed and len(listed) == 2
        code, out, err = status("-e", f"unix:{jobs}/my_job")
        assert code == 0 and out.count("private  job my_job") == 2, out
        kill_at_once(own_processes(one))
        one.wait()
        await_nothing(one.mark)
        with two:
            two.process.send_signal(signal.SIGTERM)
            assert two.wait() == 143
        assert [p.is_symlink() for p in jobs.iterdir()] == [True]
        assert "private" not in status()[2]
    with Running(*words, env=env) as three:
        three.await_text(b"ready")
        assert [p.name for p in jobs.iterdir()] == ["my_job"]
        assert "private  job my_job " in status()[2]
        three.process.send_signal(signal.SIGTERM)
        assert three.wait() == 143
    assert not list(jobs.iterdir())


def test_a_dead_worker_fails_the_job_for_all(tmp):
    """The default of pslaunch; and the code is that of the one that died."""
    worker = str(support.BUILD / "tests/integration/integration_worker")
    code, out, err = launch(
        "-n", "3", *PRIVATE, "--keep-going", *SHELL,
        f"if test $RANK = 1; then printf 'open\\nbarrier\\n' | {worker}; "
        f"exit 41; fi; printf 'open\\nbarrier\\nbarrier\\n' | {worker}")
    assert code == 41, (out, err)
    for rank in (0, 2):
        lines = [line for line in out.split("\n")
                 if line.startswith(f"[{rank}] err")]
        assert len(lines) == 1 and "rank 1" in lines[0], (out, err)


def test_the_remedy_of_a_lost_rank_is_named(tmp):
    """With --on-loss wait the others wait, and a line says what to do."""
    worker = str(support.BUILD / "tests/integration/integration_worker")
    code, _, err = launch(
        "-n", "2", *PRIVATE, "--keep-going", "--on-loss", "wait", *SHELL,
        f"if test $RANK = 1; then printf 'open\\nbarrier\\n' | {worker}; "
        f"kill -9 $$; fi; printf 'open\\nbarrier\\n' | {worker}")
    assert code == 137, err
    lines = [line for line in err.split("\n") if "rank 1 on" in line and
             "was killed by signal 9" in line and "the others wait" in line]
    assert len(lines) == 1, err
    assert "start it by hand" in lines[0] and "its own PSKV_RANK" in lines[0]


def test_a_running_agent_is_used(trio):
    t = trio(servers=1, agents=1)
    worker = str(support.BUILD / "tests/integration/integration_worker")
    code, out, err = launch("-n", "2", "-s", "1", "--socket", t.socket(0),
                            "--name", "guest", *SHELL,
                            f"printf 'open\\nbarrier\\nclose\\n' | {worker}")
    assert code == 0, err
    assert "[1] ok 1 2 1 2" in out
    assert any(j["name"] == "guest" for j in t.ask("jobs")["jobs"])
    t.await_empty()


def test_more_servers_than_the_cluster_has_are_named(trio):
    """Without -s, a job asks for as many servers as workers."""
    t = trio(servers=2, agents=1)
    worker = str(support.BUILD / "tests/integration/integration_worker")
    _, out, err = launch("-n", "4", "--socket", t.socket(0), *SHELL,
                         f"printf 'open\\n' | {worker}",
                         env={"PSKV_WAIT_NOTES": "200ms",
                              "PSKV_START_TIMEOUT": f"{limit(3):g}s"})
    for rank in range(4):
        assert re.search(rf"\[{rank}\] err .*have 2/4 servers", out), out
        assert re.search(rf"\[{rank}\] pskv: .*needs 4 servers, 2 are here: "
                         r"start more, or ask for fewer \(PSKV_NUM_SERVERS, "
                         r"pslaunch -s\)", err), err
    t.await_empty()


def test_two_launchers_do_not_share_a_job(trio):
    """The ranks of the second job get the place where the job of that name
    runs, and the first one continues."""
    t = trio(servers=1, agents=2)
    worker = str(support.BUILD / "tests/integration/integration_worker")
    with Running("-n", "2", "-s", "1", "--socket", t.socket(0), "--name",
                 "twice", *SHELL,
                 f"(echo open; sleep 1000) | {worker}") as first:
        first.await_text(b" ok", count=2)
        code, out, err = launch(
            "-n", "2", "-s", "1", "--socket", t.socket(1), "--name", "twice",
            *SHELL, f"set -o pipefail; echo open | {worker} | tee /dev/stderr |"
            " grep -q ok")
        assert code != 0, (out, err)
        assert "of job twice is taken by a worker on node0: the job runs " \
            "there; " in err, (out, err)
        assert "start this one under another name (pslaunch --name)" in err
        assert first.process.poll() is None
        jobs = t.ask("jobs")["jobs"]
        assert [j["name"] for j in jobs] == ["twice"], jobs
        assert jobs[0]["ranks_lost"] == 0, jobs


def test_reader_that_goes_away_ends_nothing_early():
    """A broken pipe behind pslaunch is not a failure of the job."""
    r, w = os.pipe()
    p = subprocess.Popen(argv("-n", "1", *ALONE, *SHELL,
                              "echo one; seq 100000; exit 6"),
                         stdin=subprocess.DEVNULL, stdout=w,
                         stderr=subprocess.PIPE, env=support.clean_env())
    os.close(w)
    wait_ready("output of the worker", [r])
    os.close(r)
    _, err = p.communicate(timeout=limit(60))
    assert p.returncode == 6, err


def test_output_that_is_not_read_holds_up_no_end():
    """Workers wait for the reader; a request to end does not."""
    p = subprocess.Popen(argv("-n", "2", *ALONE, *SHELL,
                              "while :; do seq 1000; seq 1000 >&2; done"),
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, env=support.clean_env())
    try:
        # Both pipes are full when nothing comes through any more.
        for pipe in (p.stdout, p.stderr):
            wait_for(lambda pipe=pipe: waiting_in(pipe) >= 65536 - 4096,
                     "a full pipe")
        p.send_signal(signal.SIGTERM)
        assert p.wait(limit(30)) == 143
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
        p.stderr.close()


def waiting_in(pipe):
    """Bytes that can be read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, count)
    return count[0]


def test_slow_reader_gets_everything():
    """More than pipe and buffer hold, read when the job has long ended."""
    p = subprocess.Popen(argv("-n", "2", *ALONE, *SHELL, "seq 200000"),
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         env=support.clean_env())
    # Small writes fill a pipe before its capacity in bytes is reached.
    before = [0]

    def full():
        before.append(waiting_in(p.stdout))
        return before[-1] >= 16384 and before[-1] == before[-2]

    wait_for(full, "a full pipe", step=0.5)
    out, _ = p.communicate(timeout=limit(60))
    assert p.returncode == 0
    for rank in range(2):
        own = [line for line in out.decode().split("\n")
               if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {i}" for i in range(1, 200001)]


# ------------------------------------------------------------------ supervisor

EVIL = "\x1b]0;title\x07\nrm -rf"
SHOWN = r"\x1b]0;title\x07\x0arm -rf"


@pytest.mark.parametrize("hello, then, want", [
    ({"version": EVIL}, b"", f"host h1 has pslaunch {SHOWN}, and this is "),
    ({}, wire.message("launch_failed", text=EVIL),
     "host h1: ?]0;title??rm -rf\n"),
    ({"dir": "/tmp/" + EVIL}, b"", "lost the host h1: "),
    ({"address": "h1 -o x"}, b"", "lost the host h1: ")],
    ids=["version", "failed", "dir", "address"])
def test_texts_of_a_host_reach_no_terminal_as_they_are(tmp, hello, then, want):
    """A program in place of ssh plays a host that is not to be trusted."""
    version = launch("--version")[1].split()[1]
    fields = {"version": version, "address": "", "dir": "/tmp",
              "sched_port": 1, "store_port": 2, **hello}
    (tmp / "said").write_bytes(wire.message("launch_hello", **fields) + then)
    fake = tmp / "fake"
    fake.write_text(f"#!/bin/sh\ncat {tmp}/said\nexec cat >/dev/null\n")
    fake.chmod(0o755)
    code, _, err = launch("-n", "1", "-s", "1", "--hosts", "h1",
                          "--start-timeout", "3s", "true",
                          env={"PSKV_SSH": fake})
    assert code == 69 and want in err, err
    assert "\x1b" not in err and "\nrm" not in err

@pytest.mark.parametrize("data", [
    b"", b"x" * 64, b"\0" * 64, bytes(range(256)) * 16,
    # A prefix of launch_finish, whose header is cut or none.
    bytes([1, 129, 0, 0, 1, 0, 0, 0]) + bytes(8),
    bytes([1, 129, 0, 0, 1, 0, 0, 0]) + bytes(8) + b"\xff"],
    ids=["end", "letters", "zeros", "all", "cut", "header"])
def test_a_supervisor_ends_at_bytes_that_are_no_message(tmp, data):
    done = subprocess.run(
        argv("--supervise"), input=data, capture_output=True, check=False,
        timeout=limit(30), env=support.clean_env(TMPDIR=tmp))
    assert done.returncode == 0 and list(tmp.iterdir()) == []
