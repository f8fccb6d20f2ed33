"""A real systemd as PID 1 of namespaces of its own, with the packages at hand. Needs root.

OPENJET_DEB and OPENJET_DEB_NEXT name the packages.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).parent
BOOT_LIMIT_S = 60


def cgroup2():
    """Where the kernel's second control-group tree is mounted."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return pathlib.Path(place)
    pytest.fail("no cgroup2 file system is mounted")


class Machine:
    """Commands inside the namespaces."""

    def __init__(self, leader):
        self.leader = leader

    def run(self, *words, check=True, timeout=60):
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
        done = subprocess.run([*enter, *words], capture_output=True, text=True, env=environment, timeout=timeout)
        if check and done.returncode != 0:
            pytest.fail(f"`{' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{self.journal()}")
        return done

    def systemctl(self, *words, check=True, timeout=60):
        return self.run("systemctl", "--no-pager", *words, check=check, timeout=timeout)

    def show(self, name):
        """A property of the service."""
        return self.systemctl("show", "--value", "--property", name, "openjet").stdout.strip()

    def wait(self, condition, seconds=30):
        """Until a shell condition holds."""
        self.run("bash", "-c", f"for i in {{1..{seconds * 10}}}; do {condition} && exit 0; sleep 0.1; done; exit 1", timeout=seconds + 30)

    def write(self, path, text):
        self.run("bash", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "write", path, text)

    def ctl(self, *words, check=True):
        return self.run("openjetctl", *words, check=check)

    def entries(self, *matches):
        """What the journal has, field by field."""
        lines = self.run("journalctl", "--no-pager", "--output=json", "--unit=openjet", *matches).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def journal(self):
        return self.run("journalctl", "--no-pager", "--lines=40", check=False).stdout

    def ask(self, path, body=None, check=True):
        """What the API answers; the body is JSON."""
        program = (
            "import sys, urllib.request\n"
            "data = sys.argv[2].encode() if len(sys.argv) > 2 else None\n"
            "request = urllib.request.Request('http://127.0.0.1:18080' + sys.argv[1], data)\n"
            "request.add_header('Content-Type', 'application/json')\n"
            "print(urllib.request.urlopen(request, timeout=60).read().decode())\n"
        )
        words = ["/usr/bin/python3", "-c", program, path] + ([body] if body is not None else [])
        return self.run(*words, check=check)


@pytest.fixture(scope="session")
def machine():
    group = cgroup2() / f"openjet-test-{os.getpid()}"
    group.mkdir()
    work = tempfile.mkdtemp(prefix="openjet-systemd-")
    words = ["unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--net", "--fork", "--kill-child"]
    words += [str(HERE / "init.sh"), work, os.environ["OPENJET_DEB"], os.environ["OPENJET_DEB_NEXT"]]
    # The group is entered before the namespaces are made: it is then the root that systemd sees.
    shell = ["bash", "-c", 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"', "boot", str(group), *words]
    boot = subprocess.Popen(shell, stdin=subprocess.DEVNULL)
    try:
        yield Machine(leader(boot))
    finally:
        boot.kill()
        boot.wait()
        remove(group)
        os.rmdir(work)


def leader(boot):
    """Waits for systemd to be up; returns its process."""
    end = time.monotonic() + BOOT_LIMIT_S
    said = ""
    while time.monotonic() < end:
        assert boot.poll() is None, f"systemd ended with status {boot.returncode} while it started"
        children = pathlib.Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split()
        if children and pathlib.Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            done = Machine(children[0]).run("systemctl", "is-system-running", check=False)
            said = done.stdout + done.stderr
            if done.stdout.strip() in ("running", "degraded"):
                return children[0]
        time.sleep(0.1)
    pytest.fail(f"systemd was not up after {BOOT_LIMIT_S} s: {said}")


def remove(group):
    """Removes a control group and those in it, once their processes have ended."""
    end = time.monotonic() + 10
    while True:
        try:
            for folder, _, _ in os.walk(group, topdown=False):
                os.rmdir(folder)
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
