# SPDX-License-Identifier: Apache-2.0
"""Training scalars, from kv.report() to psctl and the metrics of psched."""
import json
import re
import subprocess
import urllib.request

import pytest

from trio import need_program, wait_for

parser = pytest.importorskip("prometheus_client.parser")

HTTP = "metrics.listen=127.0.0.1:0"
REPORTER = """
    kv = pskv.create('dist_sync')
    w = np.zeros(1000, 'f4')
    kv.init('w', w)
    for i in range(5):
        kv.pushpull('w', w + 1, out=w)
    kv.report('loss', 0.5 + kv.rank)
    kv.report(step=70, accuracy=.25, **{'grad/norm': float('inf')})
    print('reported', flush=True)
    sys.stdin.readline()
    kv.report('loss', 0.25)
    kv.close()
"""


def scalars(t, job="digits"):
    """Scalars of a job as psctl has them, by name."""
    for row in t.ask("jobs")["jobs"]:
        if row["name"] == job:
            return {s["name"]: s for s in row["scalars"]}
    return {}


def go_on(one):
    for process in one.processes.values():
        process.stdin.write("\n")
        process.stdin.flush()


def reporting(trio, job, workers=2, agents=2, **more):
    t = trio(servers=1, agents=agents, **more)
    one = job(t, workers, "digits")
    one.python(REPORTER)
    for rank in range(workers):
        assert one.line(rank) == "reported"
    return t, one


def test_tools_show_the_last_values_over_all_ranks(trio, job):
    t, one = reporting(trio, job)
    found = wait_for(lambda: len(scalars(t)) == 3 and
                     all(s["ranks"] == 2 for s in scalars(t).values()) and
                     scalars(t), "three scalars of two ranks")
    assert list(found) == ["loss", "accuracy", "grad/norm"] or \
        set(found) == {"loss", "accuracy", "grad/norm"}
    loss = found["loss"]
    assert (loss["min"], loss["mean"], loss["max"]) == (0.5, 1.0, 1.5)
    assert (loss["step"], loss["nonfinite"]) == (5, 0)
    assert found["accuracy"]["step"] == 70
    assert found["grad/norm"]["max"] == "Infinity"
    assert found["grad/norm"]["nonfinite"] == 2
    code, out, err = t.psctl("top", "-b", "-n", "1")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["JOB", "SCALAR", "MEAN", "MIN", "MAX", "RANKS", "STEP",
            "AGE"] in lines
    assert next(x for x in lines if x[:2] == ["digits", "loss"])[2:7] == \
        ["1", "0.5", "1.5", "2", "5"]
    go_on(one)
    one.wait_all()
    # The last value of each rank outlives the job.
    wait_for(lambda: scalars(t)["loss"]["max"] == 0.25, "the last values")
    # psched hears of the end of a rank later than of its values.
    wait_for(lambda: [j["phase"] for j in t.ask("jobs")["jobs"]] == ["ended"],
             "the end of the job")
    code, out, _ = t.psctl("top", "-b", "-n", "1")
    assert code == 0 and "SCALAR" not in out


def page(t):
    where = re.search(r"metrics by HTTP address (\S+)", t.sched.text()).group(1)
    with urllib.request.urlopen(f"http://{where}/metrics") as answer:
        return answer.read().decode()


def test_metrics_have_minimum_mean_and_maximum(trio, job):
    t, one = reporting(trio, job, options=[HTTP])

    def samples(name):
        return {(s.labels["name"], s.labels.get("stat")): s
                for f in parser.text_string_to_metric_families(page(t))
                for s in f.samples if s.name == name}

    def complete():
        found = samples("psched_job_scalar")
        return ("loss", "max") in found and ("grad/norm", "max") in found and \
            found[("loss", "min")].value == 0.5 and \
            found[("loss", "max")].value == 1.5 and found

    found = wait_for(complete, "the scalars in the metrics")
    assert found[("loss", "min")].value == 0.5
    assert found[("loss", "mean")].value == 1
    assert found[("loss", "mean")].labels["job"] == "digits"
    assert found[("grad/norm", "max")].value == float("inf")
    assert samples("psched_job_scalar_step")[("loss", None)].value == 5
    assert "psched_job_scalars_omitted{" in page(t)
    go_on(one)
    one.wait_all()


def test_promtool_accepts_metrics_of_scalars(trio, job):
    promtool = need_program("promtool", "prometheus")
    t, one = reporting(trio, job, options=[HTTP])
    wait_for(lambda: "psched_job_scalar{" in page(t), "the scalars")
    subprocess.run([promtool, "check", "metrics"], check=True, text=True,
                   input=page(t), capture_output=True)
    go_on(one)
    one.wait_all()


def test_names_beyond_the_limit_are_errors(trio, job):
    """Also if each rank has few: the names of a job are counted."""
    t = trio(servers=1, agents=2)
    one = job(t, 2, "digits")
    one.python("""
        kv = pskv.create('dist_sync')
        def fails(*args, **more):
            try:
                kv.report(*args, **more)
            except pskv.Error as e:
                return str(e)
            return None
        if kv.rank == 0:
            for i in range(32):
                kv.report('s%d' % i, i)
            print(fails('more', 1), flush=True)
            print(fails('a b', 1), flush=True)
        kv.barrier()
        if kv.rank == 0:
            # Those that wait leave with the ends of others.
            before = kv.stats()['ops']
            while kv.stats()['ops'] < before + 9:
                kv.report('s0', 1)
        kv.barrier()
        if kv.rank == 1:
            kv.report('other', 1)
            text = None
            while text is None:
                kv.dispatch()
                text = fails('s3', 1)
            print(text, flush=True)
        kv.barrier()
        kv.close()
    """)
    outs = one.wait_all()
    assert "scalar 'more': this worker reports 32 others" in outs[0]
    assert "scalar 'a b': a name has 1 to 63 characters" in outs[0]
    assert "an earlier report failed: scalar 'other' of job digits is " \
        "refused: a job has at most 32 scalars" in outs[1]
    t.daemons["node1"].await_log("scalar 'other' of job digits is refused")


def test_misuse_of_report(trio, job):
    t = trio(servers=1, agents=1)
    one = job(t, 1, "digits")
    one.python("""
        kv = pskv.create('dist_sync')
        for args, more in ((('loss',), {}), ((None, 1), {}),
                           ((), {'step': -1, 'loss': 1}),
                           (('lo\\0ss', 1), {})):
            try:
                kv.report(*args, **more)
                print('taken', args, more)
            except ValueError:
                pass
        kv.report()
        kv.report('step', 1)
        kv.report('name', 2, step=3)
        kv.close()
        try:
            kv.report('loss', 1)
        except pskv.Error as e:
            print(e)
    """)
    assert one.wait_all() == ["the store is closed\n"]
    wait_for(lambda: scalars(t).get("name", {}).get("step") == 3,
             "the scalars of the job")
    assert json.loads(t.psctl("-w", "json", "jobs")[1])["jobs"][0][
        "scalars"][0]["name"] == "step"
