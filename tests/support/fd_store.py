# SPDX-License-Identifier: Apache-2.0
"""Store of descriptors for a daemon, as that of a service manager with
FileDescriptorStoreMax=1: the daemon sends its state memory to NOTIFY_SOCKET, and
the next process of its name gets it (sd_notify(3), sd_listen_fds(3))."""
import array
import contextlib
import os
import socket
import threading


class FdStore:
    def __init__(self, path):
        self.path = str(path)
        self.fd = -1
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.closing = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.closing:
            self.socket.recv(1, socket.MSG_PEEK)
            self.take_in()

    def take_in(self):
        """Reads what has been sent, also by a process that has ended since."""
        with self.lock, contextlib.suppress(BlockingIOError):
            while True:
                text, extra, _, _ = self.socket.recvmsg(
                    4096, 1024, socket.MSG_DONTWAIT)
                fds = array.array("i")
                for level, kind, data in extra:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        fds.frombytes(data[:len(data) // 4 * 4])
                if b"FDSTORE" in text and self.fd >= 0:
                    os.close(self.fd)
                    self.fd = -1
                if b"FDSTORE=1" in text and b"FDNAME=pskv-state" in text:
                    self.fd = fds.pop(0)
                for fd in fds:
                    os.close(fd)

    def command(self, argv):
        """Command of the next process, and its variables and descriptors."""
        self.take_in()
        env = {"NOTIFY_SOCKET": self.path, "FDSTORE": "1"}
        if self.fd < 0:
            return argv, env, []
        env |= {"LISTEN_FDS": "1", "LISTEN_FDNAMES": "pskv-state"}
        return (["bash", "-c", f'exec 3<&{self.fd} {self.fd}<&-; LISTEN_PID=$$ '
                 'exec "$@"', "bash", *argv], env, [self.fd])

    def close(self):
        self.closing = True
        self.socket.sendto(b"END=1", self.path)
        self.thread.join()
        if self.fd >= 0:
            os.close(self.fd)
        self.socket.close()
