"""The service under a real systemd."""

import json
import pathlib
import subprocess

PACKAGING = pathlib.Path(__file__).parents[2] / "packaging"


def test_the_unit_has_no_mistakes(machine):
    done = machine.run("systemd-analyze", "verify", "--recursive-errors=yes", "openjet.service", check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()


def test_the_unit_is_hardened():
    unit = PACKAGING / "openjet.service"
    words = ["systemd-analyze", "--no-pager", "security", "--offline=true", "--threshold=30", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_start_returns_when_it_serves(machine):
    machine.systemctl("start", "openjet")
    assert machine.show("ActiveState") == "active"
    assert json.loads(machine.ask("/health").stdout)


def test_it_runs_as_its_own_user_without_privileges(machine):
    status = machine.run("cat", f"/proc/{machine.show('MainPID')}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    user = machine.run("id", "-u", "openjet").stdout.strip()
    assert fields["Uid"].split() == [user] * 4
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_it_answers(machine):
    question = {"model": "any", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    answer = json.loads(machine.ask("/v1/chat/completions", json.dumps(question)).stdout)
    assert answer["usage"]["completion_tokens"] > 0


def test_the_control_tool_reaches_it(machine):
    done = machine.run("openjetctl", "--json", "status")
    assert json.loads(done.stdout)


def test_a_second_one_is_refused(machine):
    done = machine.run("openjetd", check=False)
    assert done.returncode != 0
    assert "18080" in done.stderr or "control.sock" in done.stderr, done.stderr


def test_a_crash_is_followed_by_a_new_start(machine):
    before = machine.show("MainPID")
    machine.run("kill", "-KILL", before)
    machine.run("bash", "-c", 'for i in {1..300}; do test "$(systemctl show --value -p NRestarts openjet)" = 1 && '
                'systemctl is-active --quiet openjet && exit 0; sleep 0.1; done; exit 1')
    assert machine.show("MainPID") != before
    assert json.loads(machine.ask("/health").stdout)


def test_stop_lets_a_running_answer_end(machine):
    question = {"model": "any", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "temperature": 1, "seed": 1}
    program = (
        "import json, subprocess, sys, time, urllib.request\n"
        "body = json.dumps(json.loads(sys.argv[1]) | {'stream': True}).encode()\n"
        "request = urllib.request.Request('http://127.0.0.1:18080/v1/chat/completions', body)\n"
        "request.add_header('Content-Type', 'application/json')\n"
        "answer = urllib.request.urlopen(request, timeout=60)\n"
        "first = answer.readline()\n"
        "stop = subprocess.Popen(['systemctl', 'stop', 'openjet'])\n"
        "rest = answer.read()\n"
        "assert b'[DONE]' in rest, rest[-300:]\n"
        "assert stop.wait(60) == 0\n"
    )
    machine.run("/usr/bin/python3", "-c", program, json.dumps(question))
    assert machine.show("ActiveState") == "inactive"
    assert machine.show("Result") == "success"
    assert machine.show("ExecMainStatus") == "0"
