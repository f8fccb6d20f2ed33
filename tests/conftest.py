"""Starts the daemon on the shipped model, and hands out clients for it.

OPENJETD names the program to test.
"""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

START_LIMIT_S = 60


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(url, process):
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        assert process.poll() is None, f"openjetd ended with status {process.returncode} before it was ready"
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.05)
    pytest.fail(f"openjetd was not ready after {START_LIMIT_S} s")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a daemon that runs for all tests and must end cleanly after them."""
    folder = tmp_path_factory.mktemp("openjetd")
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENJET")} | {"XDG_RUNTIME_DIR": str(folder)}
    process = subprocess.Popen(
        [os.environ["OPENJETD"], "--listen", f"127.0.0.1:{port}", "--control", str(folder / "control.sock"), "--backend", "cpu"],
        env=environment,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
        process.terminate()
        assert process.wait(timeout=30) == 0, "openjetd did not end cleanly"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0, timeout=60)
