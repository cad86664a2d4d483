# SPDX-License-Identifier: Apache-2.0
"""metrics.file of the daemons: Prometheus' text format, for the textfile
collector of node_exporter."""
import json
import os
import re
import signal
import subprocess
import time

import pytest
import trio as support
from trio import SOURCE, Job

parser = pytest.importorskip("prometheus_client.parser")

PREFIXES = {"sched": "psched_", "ps0": "psserver_", "node0": "psagent_"}
INTERVAL = "metrics.interval=100ms"


@pytest.fixture
def files(tmp):
    folder = tmp / "metrics"
    folder.mkdir()
    return {name: folder / f"{name}.prom" for name in PREFIXES}


def start(trio, files):
    return trio(servers=1, agents=1, **{
        option: [f"metrics.file={files[name]}", INTERVAL]
        for option, name in (("options", "sched"), ("server_options", "ps0"),
                             ("agent_options", "node0"))})


def read(path):
    """Samples by name and by the labels of their own."""
    found = {}
    for family in parser.text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            own = tuple(v for k, v in sorted(sample.labels.items())
                        if k not in ("cluster", "node"))
            found[(sample.name, *own)] = sample.value
    return found


def test_files_have_the_figures_of_the_daemons(trio, files):
    t = start(trio, files)
    with Job(t, 2) as job:
        key = job.key("w", "float32", 1000)
        job.tell(f"rounds count 7 1 0 {key}")
        support.wait_for(lambda: read(files["ps0"]).get(
            ("psserver_rounds_total",)) == 7, "7 rounds in the server's file")
        support.wait_for(lambda: read(files["node0"]).get(
            ("psagent_rounds_total",)) == 7, "7 rounds in the agent's file")
        server = read(files["ps0"])
        assert server[("psserver_push_bytes_total",)] == 7 * 4000
        assert server[("psserver_store_bytes",)] == 4000
        assert server[("psserver_serving",)] == 1
        agent = read(files["node0"])
        assert agent[("psagent_sessions",)] == 2
        assert agent[("psagent_push_bytes_total",)] == 7 * 4000
        support.wait_for(lambda: read(files["sched"]).get(
            ("psched_jobs",)) == 1, "the job in the scheduler's file")
        sched = read(files["sched"])
        for what in ("psched_servers", "psched_agents"):
            assert sched[(what, "active")] == 1
            assert sched[(what, "gone")] == 0
    support.wait_for(lambda: read(files["sched"])[("psched_jobs",)] == 0,
                     "the end of the job in the scheduler's file")


def test_names_and_labels_follow_the_conventions(trio, files):
    """Files of several daemons are collected together: no two have a sample in
    common, nor one name with two texts of help."""
    start(trio, files)
    seen = set()
    for name, prefix in PREFIXES.items():
        text = files[name].read_text()
        assert files[name].stat().st_mode & 0o777 == 0o644
        for family in parser.text_string_to_metric_families(text):
            assert family.name.startswith(prefix), family
            assert family.name not in seen
            seen.add(family.name)
            assert family.documentation.endswith("."), family
            for sample in family.samples:
                assert sample.labels["cluster"] == "default"
                if name != "sched":
                    assert sample.labels["node"] == name
                assert sample.name.endswith("_total") == \
                    (family.type == "counter"), sample


def test_page_and_rules_name_the_metrics_that_exist(trio, files):
    start(trio, files)
    exist = set()
    for path in files.values():
        for family in parser.text_string_to_metric_families(path.read_text()):
            total = "_total" * (family.type == "counter")
            exist.add((family.name + total, family.type, family.documentation))
    page = (SOURCE / "docs/monitoring.md").read_text()
    rows = set()
    for prefix, name, kind, text in re.findall(
            r"^\| (.+) \| `(\w+)` \| (\w+) \| (.+) \|$", page, re.M):
        text = re.sub(r" Labels?: `.*\.$", "", text)
        for p in (PREFIXES.values() if prefix == "all" else
                  [word + "_" for word in re.findall(r"`(\w+)`", prefix)]):
            rows.add((p + name, kind, text))
    assert rows == exist
    rules = SOURCE / "conf/prometheus-rules.yaml"
    used = set(re.findall(r"\b(?:psched|psserver|psagent)_\w+",
                          rules.read_text()))
    assert used and used <= {name for name, _, _ in exist}
    board = json.loads((SOURCE / "conf/grafana-dashboard.json").read_text())
    known = {name for name, _, _ in exist}
    for text in expressions(board):
        names = set(re.findall(r"\bps[a-z]+_\w+", text))
        assert names and names <= known, text


def expressions(board):
    """All queries of a dashboard."""
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
        yield from (t["expr"] for t in panel["targets"])
    yield from (a["expr"] for a in board["annotations"]["list"])
    yield from (v["query"]["query"] for v in board["templating"]["list"]
                if v["type"] == "query")


def check_expression(promtool, text, folder):
    """Grafana fills in variables, and has functions of its own for them."""
    if text.startswith("label_values("):
        return
    path = folder / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": [
        {"record": "x", "expr": text.replace("$__rate_interval", "1m")}]}]}))
    subprocess.run([promtool, "check", "rules", path], check=True,
                   timeout=support.PATIENCE)


def test_promtool_accepts_metrics_rules_and_queries(trio, files, tmp):
    promtool = support.need_program("promtool", "prometheus")
    t = start(trio, files)
    with Job(t, 2) as job:
        key = job.key("w", "float32", 1000)
        job.tell(f"rounds count 7 1 0 {key}")
        support.wait_for(lambda: read(files["ps0"]).get(
            ("psserver_rounds_total",)) == 7, "7 rounds in the server's file")
        support.wait_for(lambda: read(files["sched"]).get(
            ("psched_jobs",)) == 1, "the job in the scheduler's file")
        for path in files.values():
            subprocess.run([promtool, "check", "metrics"], check=True,
                           stdin=path.open("rb"), timeout=support.PATIENCE)
    subprocess.run([promtool, "check", "rules",
                    SOURCE / "conf/prometheus-rules.yaml"], check=True,
                   timeout=support.PATIENCE)
    for text in expressions(json.loads(
            (SOURCE / "conf/grafana-dashboard.json").read_text())):
        check_expression(promtool, text, tmp)


def test_dashboard_has_panels_that_do_not_overlap():
    board = json.loads((SOURCE / "conf/grafana-dashboard.json").read_text())
    cells = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"])
               for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not own & cells, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        cells |= own
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_file_goes_with_its_daemon(trio, files):
    t = start(trio, files)
    for name, daemon in t.daemons.items():
        assert files[name].exists()
        daemon.stop(support.Deadline())
        assert not files[name].exists()


def test_a_file_that_cannot_be_written_is_reported_once(trio, tmp):
    """The daemon goes on, writes when it can, and reports the next failure."""
    folder = tmp / "none"
    path = folder / "ps.prom"
    t = trio(servers=1, agents=0,
             server_options=[f"metrics.file={path}", INTERVAL])
    line = f"metrics.file: cannot write {path}: No such file or directory"
    server = t.daemons["ps0"]
    server.await_log(line)
    for times in (1, 2):
        folder.mkdir()
        support.wait_for(path.exists, "the file")
        assert server.text().count(line) == times
        folder.rename(tmp / f"away{times}")
        if times == 1:
            support.wait_for(lambda: server.text().count(line) == 2,
                             "a second line")


def block(path, pipe):
    """Puts a pipe without a reader where the next file is written, and waits
    until it is."""
    def make_pipe():
        try:
            os.mkfifo(pipe)
        except FileExistsError:
            return False  # A write is in progress.
        return True

    support.wait_for(make_pipe, "a pipe", step=0)
    support.wait_for(lambda: time.time() - path.stat().st_mtime > 1,
                     "the end of writes")


def test_a_file_system_that_blocks_holds_up_no_job(trio, tmp):
    path = tmp / "ps.prom"
    pipe = tmp / "ps.prom.new"
    t = trio(servers=1, agents=1,
             server_options=[f"metrics.file={path}", INTERVAL])
    block(path, pipe)
    with Job(t, 2) as job:
        key = job.key("w", "float32", 1000)
        job.tell(f"rounds count 20 1 0 {key}")
        assert read(path)[("psserver_rounds_total",)] == 0
        pipe.read_text()
        support.wait_for(lambda: path.is_file() and read(path)[
            ("psserver_rounds_total",)] == 20, "20 rounds in the file")


def test_a_daemon_ends_while_its_file_is_written(trio, tmp):
    path = tmp / "ps.prom"
    pipe = tmp / "ps.prom.new"
    t = trio(servers=0, agents=0,
             options=[f"metrics.file={path}", INTERVAL])
    block(path, pipe)
    t.sched.process.send_signal(signal.SIGTERM)
    t.sched.await_log("stopped")
    pipe.read_text()
    assert t.sched.await_end(support.Deadline()) == 0
    assert not path.exists()
