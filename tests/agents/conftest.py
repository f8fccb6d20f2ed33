"""Daemons for the agents' tests."""

import contextlib

import pytest
from programs import Run

from daemon import Daemon


@pytest.fixture
def daemon(tmp_path):
    """Starts a daemon with options and settings from the environment, which must end cleanly."""
    with contextlib.ExitStack() as stack:

        def start(*options, **settings):
            daemon = Daemon(tmp_path, *options)
            daemon.environment |= {f"OPENJET_{name.upper()}": value for name, value in settings.items()}
            stack.callback(daemon.kill)
            daemon.start()
            stack.callback(daemon.stop)
            return daemon

        yield start


@pytest.fixture
def place(tmp_path):
    """A place for a run on a daemon, with a file to work on."""

    def place(daemon, **options):
        run = Run(daemon.url, "openjet-tiny", tmp_path / "work", tmp_path / "home", **options)
        (run.work / "calc.py").write_text("def add(a, b):\n    return a + b\n")
        return run

    return place
