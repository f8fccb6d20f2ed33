"""What the page may change, and who may use it."""

import json
import urllib.error
import urllib.request

import pytest
from conftest import open_page, severe, wait
from daemon import Daemon
from selenium.webdriver.common.by import By

KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """A daemon whose page may change things without a key."""
    daemon = Daemon(tmp_path_factory.mktemp("open"), OPENJET_ADMIN_ON_LOOPBACK="true")
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
