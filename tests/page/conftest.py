"""Chromium, driven by selenium."""

import contextlib

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(30)
    yield driver
    driver.quit()


def wait(browser, condition, seconds=60):
    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(condition)


def open_page(browser, server):
    """Opens the page and waits until it is live."""
    # A page whose daemon has ended still complains.
    browser.get("about:blank")
    browser.get_log("browser")
    browser.set_window_size(1280, 1000)
    browser.get(server.url + "/")
    wait(browser, lambda b: "live" in b.execute_script("return document.querySelector('.link')?.textContent ?? ''"))
    return browser


def severe(browser):
    """What the browser complains about."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def page(browser, server):
    """The page of the daemon that runs for all tests. The browser must have nothing to complain about."""
    yield open_page(browser, server)
    assert not severe(browser)


@contextlib.contextmanager
def screen(page, width, height, scheme):
    """The page on another screen."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
