"""A daemon that tests start on the shipped model. OPENJETD names the program."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

START_LIMIT_S = 60
STOP_LIMIT_S = 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Daemon:
    """A daemon that can be started, stopped and asked."""

    def __init__(self, folder, *options, **variables):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.control = str(folder / "control.sock")
        address = ["--listen", f"127.0.0.1:{self.port}", "--control", self.control]
        self.words = [os.environ["OPENJETD"], *address, "--backend", "cpu", *options]
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENJET")} | variables
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.words, env=self.environment)
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            status = self.process.poll()
            assert status is None, f"openjetd ended with status {status} before it was ready"
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.05)
        pytest.fail(f"openjetd was not ready after {START_LIMIT_S} s")

    def stop(self):
        """Asks it to end, which it must do cleanly."""
        self.process.terminate()
        assert self.process.wait(timeout=STOP_LIMIT_S) == 0, "openjetd did not end cleanly"

    def pause(self):
        """Lets it do nothing, with its connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)
