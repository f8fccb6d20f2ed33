"""Clients for Node: each script in node/ talks to the daemon and fails where something is wrong. OPENJET_NODE names the folder
with their packages."""

import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPTS = sorted((pathlib.Path(__file__).parent / "node").glob("*.mjs"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script(server, script):
    folder = os.environ.get("OPENJET_NODE")
    if not folder:
        pytest.skip("no Node on this machine")
    # Packages are looked for beside the script.
    copy = shutil.copy(script, folder)
    words = ["node", copy]
    done = subprocess.run(words, env={**os.environ, "OPENJET_URL": server.url}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
