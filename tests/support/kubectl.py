# SPDX-License-Identifier: Apache-2.0
"""A kubectl whose pods are processes of this host: no cluster is here. It keeps
their definitions in a folder, waits for their main processes, executes and
deletes; all else is an error. Kubelet starts the main processes.

    kubectl.py FOLDER MARK ARGUMENT..."""
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import yaml

VALUES = ("-n", "-f", "-c", "-l")


def parse(words):
    """(verb, names, options, command)"""
    command = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1:]
    names, options = [], {}
    words = iter(words)
    for word in words:
        if word in VALUES:
            options[word] = next(words)
        elif word.startswith("-"):
            name, _, value = word.partition("=")
            options[name] = value
        else:
            names.append(word)
    return names[0], names[1:], options, command


def environment(folder, mark, pod):
    """That of a container: nothing of the environment here."""
    address = f"127.0.0.{2 + int(pod.rsplit('-', 1)[1])}"
    definition = yaml.safe_load((folder / f"{pod}.yaml").read_text())
    env = {"PATH": os.environ["PATH"], "PSKV_MARK": mark,
           "TMPDIR": str(folder / pod)}
    for one in definition["spec"]["containers"][0]["env"]:
        assert one["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        env[one["name"]] = address
    return env


class Kubelet:
    """Starts the main processes of pods whose definitions come to the folder,
    from a process that is not below pslaunch."""

    def __init__(self, folder, mark):
        self.folder, self.mark = folder, mark
        self.mains = []
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.loop)
        self.thread.start()

    def loop(self):
        while not self.is_over.wait(0.05):
            for path in self.folder.glob("*.yaml"):
                if not path.with_suffix(".pid").exists():
                    self.start(path)

    def start(self, path):
        pod = yaml.safe_load(path.read_text())
        main = subprocess.Popen(
            pod["spec"]["containers"][0]["command"], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(self.folder, self.mark, path.stem))
        self.mains.append(main)
        path.with_suffix(".pid").write_text(str(main.pid))

    def close(self):
        self.is_over.set()
        self.thread.join()
        for main in self.mains:
            main.kill()
            main.wait()


def create(folder, options):
    assert options["-f"] == "-"
    for pod in yaml.safe_load_all(sys.stdin):
        name = pod["metadata"]["name"]
        (folder / name).mkdir()
        unfinished = folder / f"{name}.part"
        unfinished.write_text(yaml.safe_dump(pod))
        unfinished.rename(folder / f"{name}.yaml")
        print(f"pod/{name} created")


def await_pod(path, seconds):
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            sys.exit(f"kubectl: {path.stem} is not ready")
        time.sleep(0.05)


def delete(folder, options):
    label, value = options["-l"].split("=")
    for path in folder.glob("*.yaml"):
        pod = yaml.safe_load(path.read_text())
        if pod["metadata"]["labels"].get(label) == value:
            try:
                os.killpg(int(path.with_suffix(".pid").read_text()),
                          signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass


def main():
    folder, mark = pathlib.Path(sys.argv[1]), sys.argv[2]
    verb, names, options, command = parse(sys.argv[3:])
    if verb == "create":
        create(folder, options)
    elif verb == "wait":
        assert options["--for"] == "condition=Ready"
        await_pod(folder / f"{names[0].removeprefix('pod/')}.pid",
                  int(options["--timeout"].rstrip("s")))
    elif verb == "exec":
        assert "-i" in options and options["-c"] == "pskv"
        os.chdir(folder / names[0])
        os.execvpe(command[0], command, environment(folder, mark, names[0]))
    elif verb == "delete":
        assert names == ["pod"]
        delete(folder, options)
    else:
        sys.exit(f"kubectl: {verb}: not known here")


if __name__ == "__main__":
    main()
