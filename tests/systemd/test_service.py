"""The package and its service under a real systemd, in the order of a service's life."""

import json
import pathlib
import subprocess

import pytest

PACKAGING = pathlib.Path(__file__).parents[2] / "packaging"
CONFIG = "/etc/openjet/openjet.toml"
RESTARTS = '$(systemctl show --value -p NRestarts openjet)'
COUNT = {"model": "any", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "temperature": 1, "seed": 1}

# Asks for a long answer as a stream, runs a command after its first line, and wants a whole answer and a command that succeeds.
WHILE_STREAMING = """
import json, subprocess, sys, urllib.request
request = urllib.request.Request('http://127.0.0.1:18080/v1/chat/completions', sys.argv[1].encode())
request.add_header('Content-Type', 'application/json')
answer = urllib.request.urlopen(request, timeout=60)
first = answer.readline()
command = subprocess.Popen(sys.argv[2:])
rest = answer.read()
assert b'[DONE]' in rest, rest[-300:]
assert command.wait(60) == 0
"""

# Stops one thread of a process, as a device that hangs would, until the process is killed.
STOP_THREAD = """
import ctypes, os, pathlib, sys
tasks = pathlib.Path(f'/proc/{sys.argv[1]}/task')
thread = next(int(task.name) for task in tasks.iterdir() if (task / 'comm').read_text().strip() == 'engine')
PTRACE_ATTACH, WALL = 16, 0x40000000
assert ctypes.CDLL(None).ptrace(PTRACE_ATTACH, thread, 0, 0) == 0
# It has stopped; it is gone.
os.waitpid(thread, WALL)
os.waitpid(thread, WALL)
"""


def while_streaming(machine, *command):
    machine.run("/usr/bin/python3", "-c", WHILE_STREAMING, json.dumps(COUNT | {"stream": True}), *command)


def status(machine):
    return json.loads(machine.ctl("--json", "status").stdout)


def test_the_package_installs_and_starts_nothing(machine):
    machine.run("dpkg", "--install", "/opt/openjet.deb")
    assert machine.show("ActiveState") == "inactive"
    assert "openjet" in machine.run("id", "-Gn", "openjet").stdout
    assert machine.run("stat", "-c", "%U:%a", "/var/lib/openjet").stdout.strip() == "openjet:750"
    content = machine.run("dpkg-deb", "--contents", "/opt/openjet.deb").stdout
    for page in ("man1/openjetctl-load.1.gz", "man8/openjetd.8.gz", "completions/openjetctl", "_openjetctl", "openjetctl.fish"):
        assert page in content, content


@pytest.mark.parametrize("unit", ["openjet.service", "openjet.socket", "openjet-control.socket", "openjet-suspend.service"])
def test_the_units_have_no_mistakes(machine, unit):
    done = machine.run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", unit, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()


@pytest.mark.parametrize("unit", ["openjet.service", "openjet-suspend.service"])
def test_the_units_are_hardened(unit):
    words = ["systemd-analyze", "--no-pager", "security", "--offline=true", "--threshold=30", str(PACKAGING / unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_start_returns_when_it_serves(machine):
    machine.systemctl("start", "openjet")
    assert machine.show("ActiveState") == "active"
    assert machine.show("StatusText") == "serving openjet-tiny"
    assert json.loads(machine.ask("/health").stdout)


def test_it_runs_as_its_own_user_without_privileges(machine):
    fields = machine.run("cat", f"/proc/{machine.show('MainPID')}/status").stdout
    fields = dict(line.split(":\t", 1) for line in fields.splitlines() if ":\t" in line)
    user = machine.run("id", "-u", "openjet").stdout.strip()
    assert fields["Uid"].split() == [user] * 4
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_it_answers_and_the_journal_has_the_figures(machine):
    question = {"model": "any", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    answer = json.loads(machine.ask("/v1/chat/completions", json.dumps(question)).stdout)
    assert answer["usage"]["completion_tokens"] > 0
    entry = machine.entries("OPENJET_FINISH=" + answer["choices"][0]["finish_reason"])[-1]
    assert entry["OPENJET_TOKENS"] == str(answer["usage"]["completion_tokens"])
    assert f"prompt={answer['usage']['prompt_tokens']} " in entry["MESSAGE"]


def test_agents_are_set_while_one_answers(machine):
    while_streaming(machine, "openjetctl", "agents", "set", "6")
    assert len(json.loads(machine.ctl("--json", "agents").stdout)) == 6


def test_only_the_group_controls_it(machine):
    refused = machine.run("runuser", "-u", "nobody", "--", "openjetctl", "agents", "set", "2", check=False)
    assert refused.returncode == 3
    assert "sudo usermod -aG openjet" in refused.stderr
    machine.run("runuser", "-u", "nobody", "-g", "nogroup", "-G", "openjet", "--", "openjetctl", "agents", "set", "5")
    entry = machine.entries("OPENJET_TARGET=audit")[-1]
    nobody = machine.run("id", "-u", "nobody").stdout.strip()
    assert (entry["OPENJET_UID"], entry["OPENJET_ACTION"], entry["OPENJET_STATUS"]) == (nobody, "PUT /v1/agents", "200")


def test_settings_are_read_again(machine):
    machine.write(CONFIG, "agents = 3\n")
    machine.systemctl("reload", "openjet")
    machine.wait('test "$(openjetctl --json agents | grep -c context_limit)" = 3')
    machine.write(CONFIG, "agents = 4\nagnets = 2\n")
    machine.systemctl("reload", "openjet")
    machine.wait('systemctl show --value -p StatusText openjet | grep -q "did you mean .agents."')
    assert len(json.loads(machine.ctl("--json", "agents").stdout)) == 3
    assert machine.show("ActiveState") == "active"
    machine.write(CONFIG, "agents = 3\n")


def test_a_second_one_is_refused(machine):
    done = machine.run("openjetd", check=False)
    assert done.returncode != 0
    assert "18080" in done.stderr or "control.sock" in done.stderr, done.stderr


def test_a_crash_is_followed_by_a_new_start(machine):
    before = machine.show("MainPID")
    machine.run("kill", "-KILL", before)
    machine.wait(f'test "{RESTARTS}" = 1 && systemctl is-active --quiet openjet')
    assert machine.show("MainPID") != before
    assert json.loads(machine.ask("/health").stdout)


def test_an_engine_that_hangs_is_killed_and_started_again(machine):
    drop_in = "/run/systemd/system/openjet.service.d/test.conf"
    machine.write(drop_in, "[Service]\nWatchdogSec=2s\nRestartSec=100ms\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("restart", "openjet")
    # A watchdog that is fed only while requests come would bark now.
    machine.run("sleep", "3")
    assert machine.show("NRestarts") == "0"
    machine.run("/usr/bin/python3", "-c", STOP_THREAD, machine.show("MainPID"))
    machine.wait(f'test "{RESTARTS}" = 1 && systemctl is-active --quiet openjet')
    assert "Watchdog timeout" in machine.run("journalctl", "--no-pager", "--unit=openjet").stdout
    assert json.loads(machine.ask("/health").stdout)
    machine.run("rm", drop_in)
    machine.systemctl("daemon-reload")


def test_a_lost_gpu_is_told_and_the_service_starts_again(machine):
    machine.write(CONFIG, 'backend = "cuda"\ngpu = "emulated:lost:12"\nctx = 2048\ndraft = 0\n')
    machine.systemctl("restart", "openjet")
    # The answer ends with the reason; the daemon still tells it to who checks on it.
    program = (
        "import json, sys, urllib.error, urllib.request\n"
        "request = urllib.request.Request('http://127.0.0.1:18080/v1/completions', b'{\"prompt\": \"x\", \"max_tokens\": 99}')\n"
        "request.add_header('Content-Type', 'application/json')\n"
        "for question in (request, 'http://127.0.0.1:18080/health'):\n"
        "    try:\n"
        "        urllib.request.urlopen(question, timeout=60)\n"
        "        sys.exit('no failure')\n"
        "    except urllib.error.HTTPError as error:\n"
        "        text = error.read().decode()\n"
        "        assert error.code == 503 and 'the GPU is lost' in text, text\n"
    )
    machine.run("/usr/bin/python3", "-c", program)
    machine.wait(f'test "{RESTARTS}" = 1 && systemctl is-active --quiet openjet')
    assert "status=1/FAILURE" in machine.run("journalctl", "--no-pager", "--unit=openjet", "--lines=60").stdout
    assert json.loads(machine.ask("/health").stdout)["state"] == "ready"


def test_a_driver_that_is_not_there_yet_is_waited_for(machine):
    machine.systemctl("stop", "openjet")
    # None has so many.
    machine.write(CONFIG, 'backend = "cuda"\ngpu = "99"\ngpu_wait_s = 4\n')
    machine.systemctl("start", "--no-block", "openjet")
    machine.wait('systemctl show --value -p StatusText openjet | grep -q "waiting for the GPU.s driver, . s at most"')
    assert machine.show("ActiveState") == "activating"
    # In vain: it ends with the reason, and systemd tries again.
    machine.wait(f'test "{RESTARTS}" = 1')
    assert "status=1/FAILURE" in machine.run("journalctl", "--no-pager", "--unit=openjet", "--lines=20").stdout
    machine.systemctl("stop", "openjet")
    machine.write(CONFIG, "agents = 3\n")
    machine.systemctl("reset-failed", "openjet", check=False)


def test_a_model_that_it_may_not_read_is_explained(machine):
    machine.run("bash", "-c", "touch /root/x.gguf; chmod 600 /root/x.gguf")
    machine.write(CONFIG, 'model = "/root/x.gguf"\n')
    assert machine.systemctl("restart", "openjet", check=False).returncode != 0
    machine.systemctl("stop", "openjet")
    assert "sees no home folders" in machine.run("journalctl", "--no-pager", "--unit=openjet", "--lines=20").stdout
    machine.write(CONFIG, "agents = 3\n")
    # Unless systemd has forgotten it already.
    machine.systemctl("reset-failed", "openjet", check=False)


def test_sockets_start_it(machine):
    machine.systemctl("start", "openjet.socket", "openjet-control.socket")
    assert machine.show("ActiveState") == "inactive"
    assert machine.run("stat", "-c", "%U:%G:%a", "/run/openjet/control.sock").stdout.strip() == "openjet:openjet:660"
    # Whoever comes first waits until it serves.
    machine.ask("/v1/models")
    assert machine.show("ActiveState") == "active"
    assert status(machine)["health"]["state"] == "ready"
    machine.systemctl("restart", "openjet")
    assert status(machine)["listen"] == "127.0.0.1:18080"
    machine.systemctl("stop", "openjet.socket", "openjet-control.socket", "openjet")


def test_the_model_is_unloaded_while_the_machine_sleeps(machine):
    machine.systemctl("start", "openjet")
    # As sleep.target does, which nobody may start by hand: it wants the unit, and going back leaves it unneeded.
    machine.write("/run/systemd/system/nap.target", "[Unit]\nWants=openjet-suspend.service\nAfter=openjet-suspend.service\n")
    machine.systemctl("daemon-reload")
    machine.systemctl("start", "nap.target")
    assert status(machine)["health"]["state"] == "unloaded"
    machine.systemctl("stop", "nap.target")
    machine.wait("openjetctl status | grep -q '^state *ready'")


def test_an_upgrade_keeps_settings_and_goes_on(machine):
    before = machine.show("MainPID")
    machine.run("dpkg", "--install", "/opt/openjet-next.deb")
    assert machine.show("ActiveState") == "active"
    assert machine.show("MainPID") != before
    assert machine.run("cat", CONFIG).stdout == "agents = 3\n"
    assert len(json.loads(machine.ctl("--json", "agents").stdout)) == 3


def test_stop_lets_a_running_answer_end(machine):
    while_streaming(machine, "systemctl", "stop", "openjet")
    assert machine.show("ActiveState") == "inactive"
    assert machine.show("Result") == "success"
    assert machine.show("ExecMainStatus") == "0"


def test_removal_stops_it_and_purging_leaves_the_models(machine):
    machine.systemctl("start", "openjet")
    machine.run("bash", "-c", "mkdir -p /var/lib/openjet/conversations; touch /var/lib/openjet/models/mine.gguf")
    machine.run("dpkg", "--remove", "openjet")
    assert machine.systemctl("is-active", "openjet", check=False).stdout.strip() in ("inactive", "unknown")
    assert machine.run("cat", CONFIG).stdout == "agents = 3\n"
    machine.run("dpkg", "--purge", "openjet")
    left = machine.run("bash", "-c", "ls -d /etc/openjet /usr/bin/openjet* /var/lib/openjet/* 2>/dev/null", check=False).stdout
    assert left.split() == ["/var/lib/openjet/models"]
