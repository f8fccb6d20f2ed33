"""Every agent on a real task, wherever a large model is loaded: it must mend a program so that its test passes.

    python tests/agents/real.py URL [AGENT ...]

`cargo xtask test --only agents` has installed the agents; OPENJET_AGENTS and OPENJET_AIDER name other places.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from programs import AGENTS, Run, start

PROGRAM = '''"""Intervals of whole numbers."""


def merge(intervals):
    """Joins intervals (start, end), both ends within, that overlap or touch: [(1, 3), (4, 6)] is [(1, 6)]."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged
'''

TEST = """import unittest

from intervals import merge


class Merge(unittest.TestCase):
    def test_merge(self):
        self.assertEqual(merge([]), [])
        self.assertEqual(merge([(4, 6), (1, 3)]), [(1, 6)])
        self.assertEqual(merge([(1, 9), (2, 3)]), [(1, 9)])
        self.assertEqual(merge([(1, 2), (2, 5), (7, 8)]), [(1, 5), (7, 8)])
"""

PROMPT = "`python3 -m unittest` fails in this folder. Mend intervals.py, leave the test as it is, and run the test again."

LIMIT_S = 900


def passes(folder):
    (folder / "test_intervals.py").write_text(TEST)
    done = subprocess.run([sys.executable, "-m", "unittest"], cwd=folder, capture_output=True, timeout=60)
    return done.returncode == 0


def attempt(name, url, model):
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=pathlib.Path.home()) as folder:
        run = Run(url, model, pathlib.Path(folder) / "work", pathlib.Path(folder) / "home")
        (run.work / "intervals.py").write_text(PROGRAM)
        assert not passes(run.work), "the task is done before it is begun"
        began = time.monotonic()
        try:
            done = start(name, run, PROMPT, LIMIT_S)
        except subprocess.TimeoutExpired:
            return False, f"not done after {LIMIT_S} s"
        said = (done.stdout + done.stderr).strip().splitlines()
        ok = done.returncode == 0 and passes(run.work)
        return ok, f"status {done.returncode} after {time.monotonic() - began:.0f} s" + ("" if ok else f": {said[-5:]}")


def main():
    tools = pathlib.Path(__file__).resolve().parents[2] / ".tools"
    os.environ.setdefault("OPENJET_AGENTS", str(tools / "agents"))
    os.environ.setdefault("OPENJET_AIDER", str(tools / "aider" / "bin"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="where the daemon listens, as http://127.0.0.1:18080")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"{', '.join(AGENTS)}; all of them without it")
    options = parser.parse_args()
    url = options.url.rstrip("/")
    with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    failed = 0
    for name in options.agents or AGENTS:
        ok, note = attempt(name, url, model)
        failed += not ok
        print(f"{name:<9} {'mended it' if ok else 'FAILED'}, {note}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
