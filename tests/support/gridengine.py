# SPDX-License-Identifier: Apache-2.0
"""A Grid Engine of one host, with files and ports of the test alone. It needs
root. The two names of its host play two hosts."""
import os
import pathlib
import shutil
import socket
import subprocess

from trio import clean_env, die_with_parent, limit, reserve_port, wait_for

PROGRAMS = pathlib.Path("/usr/lib/gridengine")
SHARE = pathlib.Path("/usr/share/gridengine")
NAMES = (socket.gethostname(), "localhost")
ENDLESS = ("rt", "cpu", "fsize", "data", "stack", "core", "rss", "vmem")


def missing():
    if os.getuid() != 0:
        return "Grid Engine is started by root"
    if not (PROGRAMS / "sge_qmaster").exists() or \
            not (PROGRAMS / "sge_execd").exists():
        return "there is no Grid Engine"
    return None


def changed(text, **values):
    """A configuration with other values of some names."""
    lines = []
    for line in text.splitlines():
        name = line.split()[0] if line.split() else ""
        lines.append(f"{name} {values[name]}" if name in values else line)
    return "\n".join(lines) + "\n"


class GridEngine:
    """`env` has the variables of the clients. Processes of its jobs have `mark`
    in their environment, as PSKV_MARK. `inside`: a command in front of the
    daemons and clients, such as that of a host."""

    def __init__(self, tmp, mark, inside=()):
        self.mark = mark
        self.inside = list(inside)
        self.tmp = pathlib.Path(tmp)
        self.root = self.tmp / "root"
        self.processes = []
        reserved = [reserve_port("0.0.0.0") for _ in range(2)]
        ports = [s.getsockname()[1] for s in reserved]
        self.env = clean_env(
            SGE_ROOT=self.root, SGE_CELL="default", SGE_ND="1",
            SGE_QMASTER_PORT=ports[0], SGE_EXECD_PORT=ports[1],
            PATH=f"{PROGRAMS}:{os.environ['PATH']}")
        self.host = socket.gethostname()
        self.write_files()
        self.start("sge_qmaster")
        wait_for(lambda: self.run("qconf", "-sh")[0] == 0, "sge_qmaster",
                 step=0.2)
        self.set_up()
        self.start("sge_execd")
        wait_for(lambda: f"main.q@{self.host}" in self.run("qstat", "-f")[1]
                 and "lx-" in self.run("qhost")[1].splitlines()[-1],
                 "sge_execd", step=0.2)
        for one in reserved:
            one.close()

    def write_files(self):
        common = self.root / "default" / "common"
        common.mkdir(parents=True)
        for name in ("db", "qmaster", "execd", "jobs"):
            (self.tmp / name).mkdir()
        arch = subprocess.run([SHARE / "util" / "arch"], check=True, text=True,
                              capture_output=True).stdout.strip()
        (self.root / "util").symlink_to(SHARE / "util")
        for name in ("bin", "lib", "utilbin"):
            (self.root / name).mkdir()
            (self.root / name / arch).symlink_to(PROGRAMS)
        (common / "bootstrap").write_text(changed(
            (SHARE / "default-bootstrap").read_text(), admin_user="none",
            spooling_params=self.tmp / "db", binary_path=PROGRAMS,
            qmaster_spool_dir=self.tmp / "qmaster"))
        (common / "sge_request").write_text(f"-v PSKV_MARK={self.mark}\n")
        (common / "act_qmaster").write_text(f"{self.host}\n")
        (common / "host_aliases").write_text(
            f"{self.host} localhost\n")
        (self.tmp / "configuration").write_text(changed(
            (SHARE / "default-configuration").read_text(), min_uid=0, min_gid=0,
            execd_spool_dir=self.tmp / "execd"))
        util = SHARE / "util" / "resources"
        self.spool("spoolinit", "berkeleydb", "libspoolb", self.tmp / "db",
                   "init")
        self.spool("spooldefaults", "configuration",
                   self.tmp / "configuration")
        self.spool("spooldefaults", "complexes", util / "centry")
        self.spool("spooldefaults", "usersets", util / "usersets")
        self.spool("spooldefaults", "managers", "root")

    def spool(self, program, *words):
        subprocess.run([PROGRAMS / program, *words], check=True, env=self.env,
                       stdout=subprocess.DEVNULL)

    def set_up(self):
        """A submit host, a scheduler that does not wait, and a queue."""
        assert self.run("qconf", "-as", self.host)[0] == 0
        self.run("qconf", "-ah", self.host)
        self.configure("-Msconf", changed(
            self.run("qconf", "-ssconf")[1], schedule_interval="0:0:1",
            flush_submit_sec=1, flush_finish_sec=1,
            job_load_adjustments="NONE"))
        self.configure("-Ap", "pe_name pskv\nslots 8\nuser_lists NONE\n"
                       "xuser_lists NONE\nstart_proc_args NONE\n"
                       "stop_proc_args NONE\nallocation_rule $round_robin\n"
                       "control_slaves TRUE\njob_is_first_task FALSE\n"
                       "urgency_slots min\naccounting_summary FALSE\n"
                       "qsort_args NONE\n")
        words = {"qname": "main.q", "hostlist": self.host, "seq_no": 0,
                 "load_thresholds": "NONE", "suspend_thresholds": "NONE",
                 "nsuspend": 1, "suspend_interval": "00:05:00", "priority": 0,
                 "min_cpu_interval": "00:05:00", "processors": "UNDEFINED",
                 "qtype": "BATCH INTERACTIVE", "ckpt_list": "NONE",
                 "pe_list": "pskv", "rerun": "FALSE", "slots": 8,
                 # Another engine has jobs of the same numbers.
                 "tmpdir": self.tmp / "jobs", "shell": "/bin/sh", "prolog": "NONE",
                 "epilog": "NONE", "shell_start_mode": "posix_compliant",
                 "starter_method": "NONE", "suspend_method": "NONE",
                 "resume_method": "NONE", "terminate_method": "NONE",
                 "notify": "00:00:60", "owner_list": "NONE",
                 "user_lists": "NONE", "xuser_lists": "NONE",
                 "subordinate_list": "NONE", "complex_values": "NONE",
                 "projects": "NONE", "xprojects": "NONE", "calendar": "NONE",
                 "initial_state": "default"}
        words |= {f"{kind}_{name}": "INFINITY" for name in ENDLESS
                  for kind in "sh"}
        self.configure("-Aq", "".join(f"{k} {v}\n" for k, v in words.items()))

    def configure(self, option, text):
        path = self.tmp / "change"
        path.write_text(text)
        code, out = self.run("qconf", option, path)
        assert code == 0, out

    def run(self, *words):
        done = subprocess.run([*self.inside, *words], capture_output=True,
                              text=True, env=self.env, check=False,
                              stdin=subprocess.DEVNULL, timeout=limit(60))
        return done.returncode, done.stdout + done.stderr

    def start(self, name):
        log = open(self.tmp / f"{name}.log", "wb")
        self.processes.append(subprocess.Popen(
            [*self.inside, PROGRAMS / name], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env=self.env, preexec_fn=die_with_parent))

    def close(self):
        self.run("qdel", "-u", "*")
        for process in reversed(self.processes):
            # Files of the master go away, so it need not write them.
            if process.args[-1] == PROGRAMS / "sge_qmaster":
                process.kill()
            process.terminate()
            process.wait()
        shutil.rmtree(self.root, ignore_errors=True)
