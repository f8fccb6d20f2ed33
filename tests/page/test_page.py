"""The page in a real browser, on a real daemon."""

import os
import pathlib
import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from daemon import Daemon


def wait(browser, condition, seconds=20):
    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(condition)


def text(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector).text


def number(words):
    """The first number in a text, without the spaces between its digits."""
    return int(re.search(r"\d+", words.replace("\u202f", ""))[0])


@pytest.fixture
def page(browser, server):
    browser.set_window_size(1280, 1000)
    browser.get(server.url + "/")
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".link") and text(b, ".link") == "live")
    yield browser
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not severe, severe


def ask(page, question):
    box = page.find_element(By.ID, "question")
    box.send_keys(question)
    box.send_keys(Keys.ENTER)


def last_note(page):
    return page.find_elements(By.CSS_SELECTOR, ".turn .note")[-1].text


def test_every_agent_is_shown_with_the_daemons_own_figures(page, server, client):
    client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=20)
    agents = server.get("/slots")
    cards = page.find_elements(By.CSS_SELECTOR, ".card")
    assert len(cards) == len(agents) > 0

    def same(_):
        for card, agent in zip(cards, agents):
            used, limit = card.find_element(By.CSS_SELECTOR, ".bar .number").text.split(" of ")
            facts = dict(zip(*([e.text for e in card.find_elements(By.TAG_NAME, tag)] for tag in ("dt", "dd"))))
            shown = number(used), number(limit), number(facts["Written"])
            if shown != (agent["context_tokens"], agent["context_limit"], agent["generated_tokens"]):
                return False
        return True

    wait(page, same)
    assert any(agent["generated_tokens"] for agent in agents)


def test_the_page_loads_nothing_from_elsewhere(page, server):
    names = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(names) >= 4
    assert all(name.startswith(server.url) for name in names), names


def test_an_answer_is_streamed_with_its_speed(page):
    ask(page, "Write a Python function that adds two numbers.")
    wait(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".turn")) == 2)
    wait(page, lambda p: "tokens/s" in last_note(p), 60)
    answer = page.find_elements(By.CSS_SELECTOR, ".turn")[1]
    thoughts = answer.find_elements(By.CSS_SELECTOR, "details .text")
    written = answer.find_elements(By.CSS_SELECTOR, ".text")
    assert "".join(element.get_attribute("textContent") for element in thoughts + written).strip()


def test_stop_ends_an_answer(page, server):
    ask(page, "Count from one to ten thousand.")
    stop = page.find_element(By.XPATH, "//button[text()='Stop']")
    wait(page, lambda _: stop.is_enabled())
    stop.click()
    wait(page, lambda p: last_note(p) == "stopped")
    wait(page, lambda _: all(agent["state"] == "idle" for agent in server.get("/slots")))


def test_a_refusal_is_shown_in_the_daemons_words(page):
    box = page.find_element(By.ID, "question")
    # Typing that much would take minutes.
    page.execute_script(
        "arguments[0].value = 'word '.repeat(200000); arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", box
    )
    box.send_keys(Keys.ENTER)
    wait(page, lambda p: last_note(p).startswith("error: "))
    assert re.search(r"\d{5}", last_note(page)), last_note(page)
    # The browser itself reports the 400 as an error.
    assert all("400" in entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE")


def test_all_is_reached_by_keyboard(page):
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    seen = set()
    for _ in range(12):
        seen.add(page.switch_to.active_element.get_attribute("id") or page.switch_to.active_element.text)
        page.switch_to.active_element.send_keys(Keys.TAB)
    assert {"question", "Send", "Clear"} <= seen, seen


@pytest.mark.parametrize("width, height, scheme", [(360, 740, "light"), (1280, 900, "dark"), (3840, 2160, "light")])
def test_nothing_sticks_out_at_any_width(page, width, height, scheme):
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        assert page.execute_script("return document.scrollingElement.scrollWidth") <= width
        if folder := os.environ.get("OPENJET_SCREENSHOTS"):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            page.save_screenshot(f"{folder}/page-{width}-{scheme}.png")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_lost_daemon_is_noticed_and_found_again(browser, tmp_path):
    daemon = Daemon(tmp_path)
    try:
        daemon.start()
        browser.get(daemon.url + "/")
        wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".link") and text(b, ".link") == "live")
        daemon.stop()
        wait(browser, lambda b: "lost" in text(b, ".link"))
        daemon.start()
        wait(browser, lambda b: text(b, ".link") == "live")
        daemon.stop()
    finally:
        daemon.kill()
        # Connections that are refused are what this test is about.
        browser.get_log("browser")
