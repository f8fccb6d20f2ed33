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


def test_bench(server, tmp_path):
    agents = len(json.loads(openjetctl(server, "--json", "agents").stdout))
    result, plot = tmp_path / "a.json", tmp_path / "a.svg"
    url = str(server.url)
    words = [os.environ["OPENJETCTL"], "--socket", server.control, "bench", "--url", url, "--quick", "--agents", "1,2"]
    words += ["--tokens", "16", "--long", "128", "--commit", "abc", "--save", str(result), "--plot", str(plot)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "total tok/s" in done.stdout and "commit abc" in done.stdout
    report = json.loads(result.read_text())
    settings = {(d["agents"], d["context"], d["drafts"]) for d in report["decode"]}
    assert {(1, 64, 0), (2, 64, 0), (1, 64, 2), (2, 64, 2), (2, 128, 2)} <= settings
    assert all(d["total_tok_s"]["median"] > 0 and d["step_ms"]["median"] > 0 for d in report["decode"])
    plain = next(d for d in report["decode"] if d["drafts"] == 0)
    assert (plain["tokens_per_step"]["median"], plain["offered"]) == (1, [])
    # Prompts of earlier runs are not found again, follow-ups are.
    assert report["prompts"][0]["tokens"] == 128
    assert all(f["computed"]["max"] < 128 for f in report["follow_ups"])
    assert report["beside"][0]["longest_gap_ms"]["median"] > 0
    assert "<polyline" in plot.read_text()
    assert len(json.loads(openjetctl(server, "--json", "agents").stdout)) == agents
    same = openjetctl(server, "bench", "--compare", str(result), str(result))
    assert same.returncode == 0 and "1.000" in same.stdout, same.stderr
    nobody = openjetctl(server, "bench", "--url", "http://127.0.0.1:1")
    assert nobody.returncode == 3 and "--url" in nobody.stderr
