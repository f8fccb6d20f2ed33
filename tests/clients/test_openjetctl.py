"""The control tool against a running daemon.

OPENJETCTL names the program.
"""

import json
import os
import subprocess


def openjetctl(server, *words):
    words = [os.environ["OPENJETCTL"], "--socket", server.control, *words]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_status_and_agents(server, client):
    client.completions.create(model="any", prompt="def add(a, b):", max_tokens=8)
    status = json.loads(openjetctl(server, "--json", "status").stdout)
    assert status["health"]["state"] == "ready"
    assert status["engine"]["tokens_generated"] >= 8
    shown = openjetctl(server, "status")
    assert shown.returncode == 0, shown.stderr
    assert "state     ready" in shown.stdout
    agents = json.loads(openjetctl(server, "--json", "agents").stdout)
    assert [agent["id"] for agent in agents] == list(range(len(agents)))


def test_agents_are_set(server):
    before = len(json.loads(openjetctl(server, "--json", "agents").stdout))
    try:
        done = openjetctl(server, "agents", "set", "6")
        assert (done.returncode, done.stdout) == (0, "6 agents\n"), done.stderr
        assert len(json.loads(openjetctl(server, "--json", "agents").stdout)) == 6
        refused = openjetctl(server, "agents", "set", "1000")
        assert refused.returncode == 1
        assert "1000" in refused.stderr
    finally:
        openjetctl(server, "agents", "set", str(before))
