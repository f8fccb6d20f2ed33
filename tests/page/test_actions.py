"""What the page may change, and who may use it."""

import json
import pathlib
import shutil
import threading
import urllib.error
import urllib.request

import pytest
from conftest import open_page, severe, wait
from daemon import Daemon
from selenium.webdriver.common.by import By

OTHER = pathlib.Path(__file__).parents[2] / "engine/tests/fixtures/models/toy-equal-heads.gguf"
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """A daemon whose page may change things without a key."""
    folder = tmp_path_factory.mktemp("open")
    shutil.copy(OTHER, folder / "other.gguf")
    daemon = Daemon(folder, OPENJET_ADMIN_ON_LOOPBACK="true", OPENJET_MODEL_PATHS=f'["{folder}"]')
    try:
        yield daemon.start()
        daemon.stop()
    finally:
        daemon.kill()


def note(page):
    return page.find_element(By.CSS_SELECTOR, "[data-figure=action]").text


def press(page, words):
    """Presses a button, and again where it asks to be sure."""
    button = page.find_element(By.XPATH, f"//button[text()='{words}']")
    wait(page, lambda _: button.is_enabled())
    button.click()
    if "Press again" in button.text:
        button.click()


def set_agents(page, count):
    box = page.find_element(By.ID, "agent-count")
    box.clear()
    box.send_keys(str(count))
    press(page, "Set")


def test_agents_are_set_from_the_page(browser, open_server):
    page = open_page(browser, open_server)
    for count in (6, 2, 4):
        set_agents(page, count)
        wait(page, lambda p: note(p) == f"✓ {count} agents")
        assert len(open_server.get("/slots")) == count
        wait(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".card")) == count)
    assert not severe(browser)
    set_agents(page, 9999)
    wait(page, lambda p: note(p).startswith("✕ 9999 agents are not possible here"))
    assert all("409" in entry["message"] for entry in severe(browser))


def post(server, tokens):
    """A text; the status of its answer."""
    request = urllib.request.Request(
        server.url + "/v1/completions",
        data=json.dumps({"prompt": "x", "max_tokens": tokens, "ignore_eos": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_request_is_ended_from_the_page(browser, open_server):
    page, ended = open_page(browser, open_server), []
    asking = threading.Thread(target=lambda: ended.append(post(open_server, 30_000)))
    asking.start()
    press(page, "End its request")
    wait(page, lambda p: note(p) == "✓ the request of agent 0 was ended")
    asking.join(60)
    assert ended and ended[0] >= 400
    wait(page, lambda p: "ended by the server's operator" in p.find_element(By.CSS_SELECTOR, "tr[data-finish=failed]").text)
    assert not severe(browser)


def test_requests_are_refused_while_it_drains(browser, open_server):
    page = open_page(browser, open_server)
    press(page, "Drain: take no new requests")
    wait(page, lambda p: note(p).startswith("✓ no new requests are taken"))
    wait(page, lambda p: "no new requests" in p.find_element(By.CSS_SELECTOR, ".health").text)
    assert post(open_server, 2) == 503
    press(page, "Take requests again")
    wait(page, lambda p: note(p) == "✓ requests are taken again")
    assert post(open_server, 2) == 200
    assert not severe(browser)


def test_a_model_is_loaded_once_its_plan_was_seen(browser, open_server):
    page = open_page(browser, open_server)
    press(page, "List the models")
    wait(page, lambda p: p.find_elements(By.ID, "models"))
    page.find_element(By.CSS_SELECTOR, "#models option[value=other]").click()
    assert not page.find_elements(By.XPATH, "//button[text()='Load it']")
    press(page, "Show its plan")
    wait(page, lambda p: p.find_elements(By.CSS_SELECTOR, "[data-figure=plan]"))
    plan = page.find_element(By.CSS_SELECTOR, "[data-figure=plan]").text
    assert "parameters" in plan and "The CPU runs it" in plan, plan
    press(page, "Load it")
    wait(page, lambda p: note(p).endswith(" serves"))
    wait(page, lambda p: p.find_element(By.CSS_SELECTOR, "[data-figure=file]").text.endswith("other.gguf"))
    assert post(open_server, 2) == 200
    assert not severe(browser)


def test_a_key_is_asked_for_and_a_wrong_one_refused(browser, tmp_path):
    (tmp_path / "key").write_text(KEY)
    daemon = Daemon(tmp_path, OPENJET_ADMIN_KEY=str(tmp_path / "key"))
    try:
        page = open_page(browser, daemon.start())
        box = page.find_element(By.ID, "admin-key")
        assert not page.find_element(By.XPATH, "//button[text()='Set']").is_enabled()
        box.send_keys("another-key-of-some-length")
        set_agents(page, 2)
        wait(page, lambda p: note(p).startswith("✕ the admin key is not the right one"))
        box.clear()
        box.send_keys(KEY)
        set_agents(page, 2)
        wait(page, lambda p: note(p) == "✓ 2 agents")
        assert len(daemon.get("/slots")) == 2
        assert all("401" in entry["message"] for entry in severe(browser))
        daemon.stop()
    finally:
        daemon.kill()
        browser.get_log("browser")


def test_a_page_of_another_site_changes_nothing(open_server):
    request = urllib.request.Request(
        open_server.url + "/control/v1/agents",
        data=json.dumps({"count": 1}).encode(),
        headers={"Content-Type": "application/json", "Origin": "http://elsewhere.example"},
        method="PUT",
    )
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=10)
    assert error.value.code == 403
    assert len(open_server.get("/slots")) == 4
