# SPDX-License-Identifier: Apache-2.0
"""psctl explain: errors and lines of logs, by code or by the message itself."""
import json
import re
import shutil
import subprocess
import sys

import pytest
import trio as support
from trio import SOURCE, Job

sys.path.insert(0, str(SOURCE / "docs"))

import explain  # noqa: E402

ENTRIES = explain.read_all(SOURCE / "docs/troubleshooting.md",
                           SOURCE / "docs/troubleshooting-codes.txt",
                           SOURCE / "lib/base/err.def")


def psctl(*words):
    done = subprocess.run([support.program("psctl"), *words], text=True,
                          capture_output=True, check=False,
                          timeout=support.PATIENCE, env=support.clean_env())
    return done.returncode, done.stdout, done.stderr


def codes(*words):
    code, out, err = psctl("-w", "json", "explain", *words)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["schema"] == 1
    return [e["code"] for e in answer["explanations"]]


def test_every_entry_is_listed_and_found_by_its_code():
    _, out, _ = psctl("-w", "json", "explain")
    listed = json.loads(out)["explanations"]
    assert [(e["code"], e["text"]) for e in listed] == \
        [(e.code, e.text) for e in ENTRIES]
    assert len(set(e.code for e in ENTRIES if e.code)) == \
        sum(bool(e.code) for e in ENTRIES)
    _, table, _ = psctl("--no-headers", "explain")
    assert len(table.splitlines()) == len(ENTRIES)
    for e in [e for e in ENTRIES if e.code][::25]:
        assert codes(e.code) == [e.code]


def test_every_text_finds_its_entry():
    """As a program fills it in: the entry is among those shown, unless a text
    is part of several others."""
    for e in ENTRIES:
        if len(e.text.replace("...", "")) < 20:
            continue
        assert ps_fits(e, e.text.replace("...", "x17")), e.text
    for e in ENTRIES[::10]:
        if len(e.text.replace("...", "")) >= 20:
            filled = e.text.replace("...", "x17")
            assert e.code in codes(f"error psched: {filled} and more"), e.text


def ps_fits(e, line):
    return re.search(".*".join(map(re.escape, e.text.split("..."))), line)


@pytest.mark.parametrize("word", ["PSC_E_NOMEM", "psc_e_nomem", "PS_E_NOMEM",
                                  "NOMEM", "2"])
def test_errors_are_found_by_name_and_number(word):
    assert codes(word) == ["PSC_E_NOMEM"]


def test_codes_are_read_in_any_case():
    assert codes("PSKV-0007") == codes("pskv-7") == ["PSKV-0007"]


def test_a_real_message_is_explained(trio):
    """The error of a worker that finds no agent, and a line of a log."""
    code, out, _ = psctl("explain", "psc_open: no agent on the socket "
                         "'/run/pskv/agent.sock'")
    assert code == 0
    assert "cause       No psworker-agent listens there." in out
    assert "what to do  Start one on this node" in out
    t = trio(servers=0, agents=0, options=["security.insecure=true",
                                           "listen.address=127.0.0.1"])
    t.sched.await_log("security.insecure: ")
    line = next(x for x in t.sched.text().splitlines()
                if "security.insecure: " in x)
    code, out, _ = psctl("explain", line)
    assert code == 0 and "A reminder at each start." in out


def test_marked_lines_of_status_and_findings_are_explained(trio):
    """Of a cluster whose only server was killed, with a job that waits for a
    lost rank."""
    t = trio(servers=1, agents=1)
    job = Job(t, 2)
    job[1].kill()
    job[0].ask("start b barrier")
    support.wait_for(lambda: "has lost 1 of 2 ranks" in t.psctl("status")[1],
                     "the lost rank in psctl status")
    t.daemons["ps0"].process.kill()
    support.wait_for(lambda: "no active server" in t.psctl("status")[1],
                     "the lost server in psctl status")
    lines = [x for x in t.psctl("status")[1].splitlines()
             if x.lstrip().startswith("!")]
    lines += [x for x in t.psctl("doctor")[1].splitlines()
              if x.startswith(("problem", "note", "ok"))]
    assert len(lines) >= 4, lines
    for line in lines:
        code, out, err = psctl("explain", line)
        assert code == 0 and "what to do" in out, line + err
    job[0].kill()


def test_lines_of_json_have_the_code(tmp_path):
    """Warnings and errors, if an entry explains them."""
    done = subprocess.run(
        [support.program("psched"), "-c", "/dev/null", "--log-format", "json",
         "-o", "listen.port=0", "-o", f"control.socket={tmp_path}/none/s"],
        capture_output=True, text=True, check=False, timeout=support.PATIENCE,
        env=support.clean_env())
    assert done.returncode != 0
    line = json.loads(done.stderr.splitlines()[-1])
    assert line["level"] == "error"
    entry = next(e for e in ENTRIES if e.code == line["code"])
    assert ps_fits(entry, line["msg"])


def test_unknown_codes_and_texts_are_refused():
    for word in ("PSKV-9999", "no text of any program is like this", "x"):
        code, out, err = psctl("explain", word)
        assert (code, out) == (1, "")
        assert "no such code or text; psctl explain lists them" in err


def test_page_of_the_manual_has_every_code(tmp_path):
    explain.write_man(ENTRIES, tmp_path / "page.scd")
    page = (tmp_path / "page.scd").read_text()
    for e in ENTRIES:
        assert e.code.replace("_", r"\_").replace("-", r"\-") in page
    if shutil.which("scdoc") is None:
        pytest.skip("scdoc is not installed")
    subprocess.run(["scdoc"], input=page, text=True, check=True,
                   stdout=subprocess.DEVNULL, timeout=support.PATIENCE)
