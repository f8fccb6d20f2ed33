"""The control tool against a running daemon.

OPENJETCTL names the program.
"""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time


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


def test_models_are_listed_and_changed_while_it_serves(server, client):
    models = json.loads(openjetctl(server, "--json", "models").stdout)
    assert models[0]["id"] == "openjet-tiny" and models[0]["loaded"]
    try:
        done = openjetctl(server, "load", "openjet-tiny", "--agents", "2", "--ctx", "4096")
        assert done.returncode == 0 and "openjet-tiny serves" in done.stdout, done.stderr
        assert len(json.loads(openjetctl(server, "--json", "agents").stdout)) == 2
        refused = openjetctl(server, "load", "nothing")
        assert refused.returncode == 1 and "there is no model nothing" in refused.stderr
        assert openjetctl(server, "unload").returncode == 0
        assert "no model is loaded" in openjetctl(server, "status").stdout
    finally:
        assert openjetctl(server, "load", "openjet-tiny", "--agents", "4").returncode == 0
    client.completions.create(model="any", prompt="x", max_tokens=2)


def test_a_drain_and_its_end(server):
    done = openjetctl(server, "--json", "drain")
    assert json.loads(done.stdout) == {"on": True, "requests": 0}
    assert "draining" in openjetctl(server, "doctor").stdout
    assert openjetctl(server, "drain", "--off").returncode == 0
    assert "state     ready" in openjetctl(server, "status").stdout


def test_events_metrics_and_the_log(server, client):
    words = [os.environ["OPENJETCTL"], "--socket", server.control, "--json", "events", "--count", "2"]
    events = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines = []
    while events.poll() is None:
        # Asked again until it listens.
        assert openjetctl(server, "agents", "kick", "0").stdout == "agent 0 serves no request\n"
        time.sleep(0.2)
    lines = events.stdout.read().splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["POST /v1/agents/0/kick"] * 2
    client.completions.create(model="any", prompt="x", max_tokens=2)
    samples = json.loads(openjetctl(server, "--json", "metrics", "generated_tokens").stdout)
    assert any(sample["name"] == "openjet_generated_tokens_total" and sample["value"] > 0 for sample in samples)
    assert "openjet_ready 1\n" in openjetctl(server, "metrics").stdout
    assert openjetctl(server, "log", "level", "debug").stdout == "debug\n"
    assert openjetctl(server, "log", "level", "info").stdout == "info\n"


def test_the_doctor_finds_nothing_bad_in_what_works(server):
    done = openjetctl(server, "--json", "doctor")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    for what in ("control", "daemon", "state", "API"):
        assert findings[what]["state"] == "good", findings


def test_top_prints_objects_for_programs(server):
    one = openjetctl(server, "--json", "top", "--once")
    assert one.returncode == 0 and one.stdout.count("\n") == 1, one.stderr
    assert json.loads(one.stdout)["engine"]["agents"][0]["id"] == 0
    refused = openjetctl(server, "top", "--once")
    assert refused.returncode == 1 and "--json" in refused.stderr
    words = [os.environ["OPENJETCTL"], "--socket", server.control, "--json", "top", "--run", "1"]
    top = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    looks = []
    while len(looks) < 200 and not any(agent["state"] == "decode" for look in looks for agent in look["engine"]["agents"]):
        looks.append(json.loads(top.stdout.readline()))
    assert len(looks) < 200 and looks[-1]["run"][0].startswith("agent 0:"), looks[-1]
    # A reader that leaves ends it.
    top.stdout.close()
    assert top.wait(20) == 0


def test_top_shows_agents_at_work_in_a_terminal(server):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [os.environ["OPENJETCTL"], "--socket", server.control, "top", "--run", "2", "--no-color"]
    top = subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, env=os.environ | {"TERM": "xterm-256color"})
    os.close(follower)
    seen, end = b"", time.monotonic() + 60
    try:
        while not (b"writing" in seen and b"flatten" in seen) and time.monotonic() < end:
            if select.select([leader], [], [], 0.5)[0]:
                seen += os.read(leader, 65536)
        assert b"openjet-tiny" in seen and b"tok/s" in seen, seen[-2000:]
        # What agent 1 begins with. Words stand apart: unchanged cells, blanks too, are not drawn.
        assert b"writing" in seen and b"flatten" in seen, seen[-2000:]
        # No colour is set: only positions, weight and resets.
        assert b"\x1b[38;" not in seen and b"\x1b[32m" not in seen
        os.write(leader, b"q")
        assert top.wait(20) == 0
    finally:
        top.kill()
        os.close(leader)
