"""The daemon and a client for it, for all tests."""

import openai
import pytest

from daemon import Daemon


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A daemon that runs for all tests and must end cleanly after them. What a request leaves open is not drawn."""
    daemon = Daemon(tmp_path_factory.mktemp("openjetd"), OPENJET_TEMPERATURE="0")
    try:
        yield daemon.start()
        daemon.stop()
    finally:
        daemon.kill()


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
