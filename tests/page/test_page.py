"""The page in a real browser, on a real daemon."""

import json
import re

from conftest import open_page, severe, wait
from daemon import Daemon
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys


def text(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector).text


def figure(browser, name):
    return text(browser, f"[data-figure={name}]")


def ask(page, question):
    box = page.find_element(By.ID, "question")
    box.send_keys(question)
    box.send_keys(Keys.ENTER)


def last_note(page):
    return page.find_elements(By.CSS_SELECTOR, ".turn > .note:last-child")[-1].text


def test_the_page_loads_nothing_from_elsewhere(page, server):
    names = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(names) >= 4
    assert all(name.startswith(server.url) for name in names), names


def test_something_is_painted_before_the_program_is_there(page):
    paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
    program = "return performance.getEntriesByType('resource').find(e => e.name.endsWith('.wasm')).responseEnd"
    first, loaded = page.execute_script(paint), page.execute_script(program)
    print(f"first contentful paint after {first:.0f} ms, the program loaded after {loaded:.0f} ms")
    assert 0 < first < 5000, (first, loaded)


def test_an_answer_is_streamed_with_its_speed(page):
    # The page asks for no limit; the model's answer to this is short.
    ask(page, "Write a Python function `add` that does this: Return the sum of two numbers.")
    wait(page, lambda p: "tokens/s" in figure(p, "chat") or last_note(p))
    wait(page, lambda p: "tokens/s" in last_note(p))
    assert figure(page, "chat") == ""
    answer = page.find_elements(By.CSS_SELECTOR, ".turn")[1]
    [thoughts] = answer.find_elements(By.TAG_NAME, "details")
    assert thoughts.get_attribute("open") is None
    assert thoughts.find_element(By.CSS_SELECTOR, ".text").get_attribute("textContent").strip()


def test_a_call_is_shown_and_takes_its_result(page):
    page.find_element(By.ID, "tools").click()
    ask(page, "Read the file main.py and say what it does.")
    wait(page, lambda p: "tokens/s" in last_note(p))
    name = text(page, ".turn .call strong")
    assert name and json.loads(text(page, ".turn .call pre"))
    assert text(page, "label[for=question]") == f"Result of {name}"
    calls = len(page.find_elements(By.CSS_SELECTOR, ".turn .call"))
    for _ in range(calls):
        ask(page, "print('hello')")
    wait(page, lambda p: len(p.find_elements(By.CSS_SELECTOR, ".turn")) == 3 + calls and "tokens/s" in last_note(p))
    assert text(page, ".turn[data-role=tool] .text") == "print('hello')"


def test_stop_ends_an_answer(page, server):
    # The model's answer to this has no end.
    ask(page, "Count from one to ten thousand.")
    stop = page.find_element(By.XPATH, "//button[text()='Stop']")
    wait(page, lambda _: stop.is_enabled())
    stop.click()
    wait(page, lambda p: last_note(p))
    assert last_note(page) == "stopped"
    wait(page, lambda _: all(agent["state"] == "idle" for agent in server.get("/slots")))


def test_a_refusal_is_shown_in_the_daemons_words_and_stands_in_the_log(browser, server):
    page = open_page(browser, server)
    box = page.find_element(By.ID, "question")
    # Typing that much would take minutes.
    page.execute_script(
        "arguments[0].value = 'word '.repeat(200000); arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", box
    )
    box.send_keys(Keys.ENTER)
    wait(page, lambda p: last_note(p).startswith("error: "))
    assert re.search(r"\d{5}", last_note(page)), last_note(page)
    reason = last_note(page).removeprefix("error: ")
    wait(page, lambda p: f"400: {reason}" in text(p, "tr[data-finish=refused] .why"))
    rows = len(page.find_elements(By.CSS_SELECTOR, ".log tbody tr"))
    page.find_element(By.CSS_SELECTOR, "#ending option[value=error]").click()
    errors = page.find_elements(By.CSS_SELECTOR, ".log tbody tr")
    assert 1 <= len(errors) < rows
    assert {row.get_attribute("data-finish") for row in errors} <= {"failed", "refused"}
    page.find_element(By.ID, "words").send_keys("no such words")
    wait(page, lambda p: figure(p, "shown").startswith("0 of "))
    # The browser itself reports the 400 as an error.
    assert all("400" in entry["message"] for entry in severe(browser))


def test_a_lost_daemon_is_noticed_and_found_again(browser, tmp_path):
    daemon = Daemon(tmp_path)
    try:
        open_page(browser, daemon.start())
        daemon.stop()
        wait(browser, lambda b: "lost" in text(b, ".link") and "old" in text(b, ".link"))
        old = figure(browser, "daemon")
        daemon.start()
        wait(browser, lambda b: "live" in text(b, ".link"))
        wait(browser, lambda b: figure(b, "daemon") != old)
        daemon.stop()
    finally:
        daemon.kill()
        # Connections that are refused are what this test is about.
        browser.get_log("browser")


def test_a_silent_daemon_is_said_to_be_old(browser, tmp_path):
    daemon = Daemon(tmp_path)
    try:
        open_page(browser, daemon.start())
        daemon.pause()
        wait(browser, lambda b: "no news" in text(b, ".link"))
        daemon.resume()
        wait(browser, lambda b: "live" in text(b, ".link"))
        daemon.stop()
        wait(browser, lambda b: "lost" in text(b, ".link"))
    finally:
        daemon.kill()
        browser.get_log("browser")
