"""Prometheus' own checker on what it is to scrape. OPENJET_PROMTOOL names the program."""

import os
import subprocess
import urllib.request


def test_promtool_finds_nothing_to_say(server, client):
    client.completions.create(model="any", prompt="def add(a, b):", max_tokens=8)
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as answer:
        metrics = answer.read()
    assert b'openjet_inter_token_seconds_bucket{agent="' in metrics
    words = [os.environ["OPENJET_PROMTOOL"], "check", "metrics"]
    done = subprocess.run(words, input=metrics, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
