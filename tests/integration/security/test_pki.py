# SPDX-License-Identifier: Apache-2.0
"""Certificates of psctl, judged by the command openssl."""
import json
import os
import re
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio as support


def psctl(*words, stdin=None, **options):
    done = subprocess.run([support.program("psctl"), *map(str, words)],
                          capture_output=True, text=True, check=False,
                          input=stdin, timeout=support.PATIENCE,
                          env=support.clean_env(), **options)
    return done.returncode, done.stdout, done.stderr


def openssl(*words):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True,
                          text=True, check=False, timeout=support.PATIENCE)
    return done.returncode, done.stdout + done.stderr


class Authority:
    """An authority in a folder, and the folders of its nodes beside it."""

    def __init__(self, path):
        self.path = path
        self.dir = path / "authority"

    def pki(self, *words):
        return psctl("--dir", self.dir, "pki", *words)

    def good(self, *words):
        code, out, err = self.pki(*words)
        assert code == 0 and err == "", err
        return out

    def issue(self, role, name, *words):
        node = self.path / name
        self.good("issue", role, name, "--out", node, *words)
        return node

    def rows(self):
        code, out, _ = psctl("-w", "json", "--dir", self.dir, "pki", "show")
        answer = json.loads(out)
        assert answer["schema"] == 1 and answer["cluster"] == "lab"
        return code, answer["certificates"]

    def verify(self, certificate, *words):
        code, out = openssl("verify", "-x509_strict", "-crl_check",
                            "-CAfile", self.dir / "ca.crt", "-CRLfile",
                            self.dir / "crl.pem", *words, certificate)
        return code == 0, out


@pytest.fixture
def authority(tmp):
    a = Authority(tmp)
    a.good("init", "--cluster", "lab")
    return a


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_have_the_modes_of_secrets(authority):
    node = authority.issue("agent", "n1")
    assert mode(authority.dir) == mode(node) == 0o700
    for path in (authority.dir / "ca.key", authority.dir / "index",
                 node / "agent.key"):
        assert mode(path) == 0o600, path
    for path in (authority.dir / "ca.crt", authority.dir / "crl.pem",
                 node / "ca.crt", node / "agent.crt", node / "crl.pem"):
        assert mode(path) == 0o644, path
    assert sorted(p.name for p in node.iterdir()) == [
        "agent.crt", "agent.key", "ca.crt", "crl.pem"]


@pytest.mark.parametrize("role", ["sched", "server", "agent", "ctl"])
def test_openssl_accepts_a_certificate_of_each_role(authority, role):
    node = authority.issue(role, "n1", "--host", "n1.lab", "--host", "fd00::1")
    for purpose in ("sslserver", "sslclient"):
        good, out = authority.verify(node / f"{role}.crt", "-purpose", purpose)
        assert good, out
    _, text = openssl("x509", "-in", node / f"{role}.crt", "-noout", "-text")
    assert f"URI:ps://lab/{role}/n1, DNS:n1.lab, IP Address:FD00:" in text
    _, certificate = openssl("x509", "-in", node / f"{role}.crt", "-noout",
                             "-pubkey")
    _, key = openssl("pkey", "-in", node / f"{role}.key", "-pubout")
    assert certificate == key


def test_names_of_any_printable_characters_stay_in_the_folder(authority):
    node = authority.path / "node"
    authority.good("issue", "agent", "../x/%2F", "--out", node)
    _, text = openssl("x509", "-in", node / "agent.crt", "-noout", "-text")
    assert "URI:ps://lab/agent/..%2Fx%2F%252F" in text
    assert not (authority.path / "x").exists()


@pytest.mark.parametrize("words, text", [
    (("issue", "worker", "n1"), "a role is sched, server, agent or ctl"),
    (("issue", "agent", "a b"), "1 to 64 printable ASCII"),
    (("issue", "agent", ""), "1 to 64 printable ASCII"),
    (("issue", "agent", "x" * 65), "1 to 64 printable ASCII"),
    (("issue", "agent", "n\u00fc"), "1 to 64 printable ASCII"),
    (("issue", "agent"), "give issue ROLE NAME"),
    (("issue", "agent", "n1", "--host", "a b"), "--host"),
    (("issue", "agent", "n1", "--days", "0"), "--days"),
    (("issue", "agent", "n1", "--owner", "no such user"), "--owner"),
    (("init", "--cluster", "a b", "--force"), "name of a cluster"),
    (("revoke",), "give revoke NAME|SERIAL"),
    (("sign",), "give init, issue ROLE NAME"),
    ((), "give init, issue ROLE NAME")])
def test_wrong_words_are_usage_errors(authority, words, text):
    folder = ("--out", authority.path / "node") if words[:1] != ("init",) else ()
    code, out, err = authority.pki(*words, *folder)
    assert code == 2 and out == "" and text in err
    assert not (authority.path / "node").exists()
    assert authority.rows() == (0, [])


def test_existing_files_stay_without_force(authority):
    before = (authority.dir / "ca.key").read_bytes()
    code, _, err = authority.pki("init", "--cluster", "lab")
    assert code == 1 and "has an authority already" in err
    assert (authority.dir / "ca.key").read_bytes() == before
    node = authority.issue("agent", "n1")
    key = (node / "agent.key").read_bytes()
    code, _, err = authority.pki("issue", "agent", "n2", "--out", node)
    assert code == 1 and "agent.crt exists already" in err
    code, _, err = authority.pki("issue", "agent", "n1", "--out",
                                 authority.path / "else")
    assert code == 1 and "agent n1 has a certificate" in err
    assert (node / "agent.key").read_bytes() == key
    authority.good("issue", "server", "n1", "--out", node)
    authority.good("issue", "agent", "n1", "--out", node, "--force")
    assert (node / "agent.key").read_bytes() != key
    other = Authority(authority.path / "other")
    other.path.mkdir()
    other.good("init", "--cluster", "lab")
    code, _, err = other.pki("issue", "ctl", "anna", "--out", node)
    assert code == 1 and "ca.crt is that of another authority" in err
    assert not (node / "ctl.crt").exists()


def test_renewal_keeps_identity_and_hosts_and_changes_the_key(authority):
    node = authority.issue("server", "ps0", "--host", "ps0.lab", "--days", "3")
    key = (node / "server.key").read_bytes()
    authority.good("renew", "server", "ps0", "--out", node)
    assert (node / "server.key").read_bytes() != key
    assert authority.verify(node / "server.crt")[0]
    code, (old, new) = authority.rows()
    assert code == 0
    assert (old["state"], new["state"]) == ("replaced", "valid")
    assert (old["days_left"], new["days_left"]) == (3, 365)
    assert old["identity"] == new["identity"] == "ps://lab/server/ps0"
    assert old["hosts"] == new["hosts"] == ["ps0.lab"]
    code, _, err = authority.pki("renew", "agent", "n1", "--directory", node)
    assert code == 1 and "agent n1 has no certificate" in err
    authority.issue("server", "ps1")
    code, _, err = authority.pki("renew", "server", "ps1", "--out", node)
    assert code == 1 and "is not the certificate of server ps1" in err


def test_revoked_certificates_are_on_the_list(authority):
    first, second = authority.issue("agent", "n1"), authority.issue("agent",
                                                                    "n2")
    assert "1 certificate revoked" in authority.good("revoke", "n1", "--out",
                                                     second)
    assert (second / "crl.pem").read_bytes() == \
        (authority.dir / "crl.pem").read_bytes()
    good, out = authority.verify(first / "agent.crt")
    assert not good and "certificate revoked" in out
    assert authority.verify(second / "agent.crt")[0]
    _, rows = authority.rows()
    assert [r["state"] for r in rows] == ["revoked", "valid"]
    assert rows[0]["revoked_at"] > rows[0]["not_before"]
    _, text = openssl("crl", "-in", authority.dir / "crl.pem", "-CAfile",
                      authority.dir / "ca.crt", "-noout", "-text")
    assert "verify OK" in text
    assert f"Serial Number: {rows[0]['serial'].upper()}" in text
    assert "1 certificate revoked" in authority.good("revoke",
                                                     rows[1]["serial"])
    assert not authority.verify(second / "agent.crt")[0]
    code, _, err = authority.pki("revoke", "n3")
    assert code == 1 and "no certificate has that name" in err
    code, _, err = authority.pki("renew", "agent", "n1", "--out", first)
    assert code == 1 and "not revoked" in err
    authority.good("issue", "agent", "n1", "--out", first, "--force")
    assert authority.verify(first / "agent.crt")[0]


def test_certificates_that_end_soon_are_marked(authority):
    code, out, _ = authority.pki("show")
    assert code == 0
    assert re.search(r"^authority +lab +[0-9a-f]{32} .* valid$", out, re.M)
    index = authority.dir / "index"
    authority.issue("agent", "n1", "--days", "90")
    authority.issue("server", "ps0", "--days", "90")
    # 65 days and 91 days later.
    lines = index.read_text().splitlines()
    for number, days in ((1, 65), (2, 91)):
        fields = lines[number].split(" ")
        for k in (3, 4):
            fields[k] = str(int(fields[k]) - days * 86400)
        lines[number] = " ".join(fields)
    index.write_text("\n".join(lines) + "\n")
    code, out, _ = authority.pki("show")
    assert code == 3
    assert re.search(r"^agent +n1 .* 25  EXPIRING$", out, re.M), out
    assert re.search(r"^server +ps0 .* 0  EXPIRED$", out, re.M), out
    code, out, _ = authority.pki("--no-headers", "show")
    assert "SERIAL" not in out


def test_concurrent_runs_lose_no_certificate(authority):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: authority.issue("agent", f"n{n}"), range(16)))
    _, rows = authority.rows()
    assert {r["name"] for r in rows} == {f"n{n}" for n in range(16)}
    assert len({r["serial"] for r in rows}) == 16


def test_open_secrets_and_damage_are_refused(authority):
    node = authority.path / "node"
    issue = ("issue", "agent", "n1", "--out", node)
    (authority.dir / "ca.key").chmod(0o640)
    code, _, err = authority.pki(*issue)
    assert code == 77 and "others may access" in err
    (authority.dir / "ca.key").chmod(0o600)
    authority.dir.chmod(0o770)
    code, _, err = authority.pki(*issue)
    assert code == 77 and "others may write" in err
    authority.dir.chmod(0o700)
    index = (authority.dir / "index").read_text()
    (authority.dir / "index").write_text(index + "x\n")
    code, _, err = authority.pki(*issue)
    assert code == 1 and "index, line 2 is damaged" in err
    (authority.dir / "index").write_text("x\n")
    code, _, err = authority.pki(*issue)
    assert code == 1 and "not an index" in err
    (authority.dir / "index").unlink()
    code, _, err = authority.pki(*issue)
    assert code == 1 and "has no index" in err
    (authority.dir / "index").write_text(index)
    (authority.dir / "ca.key").write_text("x\n")
    code, _, err = authority.pki(*issue)
    assert code == 1 and "cannot read the authority's key" in err
    code, _, err = psctl("--dir", authority.path, "pki", "show")
    assert code == 1 and "psctl pki init" in err
    code, _, err = psctl("--dir", authority.path / "none", "pki", "show")
    assert code == 1 and "cannot open the folder" in err
    assert not node.exists()


def test_files_that_are_none_are_refused(authority):
    node = authority.issue("agent", "n1")
    (node / "agent.crt").unlink()
    os.mkfifo(node / "agent.crt")
    code, _, err = authority.pki("renew", "agent", "n1", "--out", node)
    assert code == 1
    assert f"{node}/agent.crt is not a regular file; remove it" in err


def test_remains_of_an_interrupted_run_do_no_harm(authority):
    node = authority.path / "n1"
    node.mkdir()
    (node / ".agent.key.new").write_text("half")
    os.symlink("/etc/passwd", node / ".agent.crt.new")
    authority.issue("agent", "n1")
    assert authority.verify(node / "agent.crt")[0]
    assert not list(node.glob(".*"))
