"""The page for everybody: screen readers, the keyboard, any screen, few colours."""

import os
import pathlib

import pytest
from conftest import screen, wait
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

SCREENS = [(360, 740), (1440, 1000), (3840, 2160)]


@pytest.fixture(scope="module")
def axe():
    folder = os.environ.get("OPENJET_NODE")
    if not folder:
        pytest.skip("no Node here to fetch axe-core with")
    return (pathlib.Path(folder) / "node_modules/axe-core/axe.min.js").read_text()


@pytest.fixture(scope="module")
def answered(server):
    """There is something to see."""
    import openai

    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    for i in range(4):
        asked = [{"role": "user", "content": "Write a Python function `add` that returns the sum of two numbers."}]
        client.chat.completions.create(model="any", messages=asked, max_tokens=60, extra_headers={"X-Session-Id": f"a-{i}"})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width, height", SCREENS)
def test_axe_finds_nothing_and_nothing_sticks_out(page, axe, answered, width, height, scheme):
    with screen(page, width, height, scheme):
        if folder := os.environ.get("OPENJET_SCREENSHOTS"):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            page.save_screenshot(f"{folder}/page-{width}-{scheme}.png")
        assert page.execute_script("return document.scrollingElement.scrollWidth") <= width
        page.execute_script(axe)
        found = page.execute_async_script(
            "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
            ".then(arguments[0], error => arguments[0]({violations: [String(error)]}))"
        )
        seen = [(rule["id"], [node["html"][:200] for node in rule["nodes"][:3]]) for rule in found["violations"]]
        assert not seen, seen
        assert len(found["passes"]) > 20


def test_all_is_reached_by_keyboard(page):
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    seen = set()
    for _ in range(30):
        active = page.switch_to.active_element
        seen.add(active.get_attribute("id") or active.get_attribute("class") or active.text)
        active.send_keys(Keys.TAB)
    assert {"ending", "words", "scroll", "turns", "question", "Send", "Clear", "tools"} <= seen, seen


def test_nothing_jumps_while_agents_work(page, server, client):
    wait(page, lambda p: p.find_elements(By.CSS_SELECTOR, ".card"))
    page.execute_script(
        "window.moved = []; new PerformanceObserver(list => list.getEntries().forEach(e => e.sources.forEach(s => {"
        " if (s.previousRect.y != s.currentRect.y) window.moved.push(s.node?.parentElement?.outerHTML ?? '?') })))"
        ".observe({type: 'layout-shift', buffered: false});"
    )
    for i in range(2):
        client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": f"Write {i} long sentences about a very long name" + "x" * 300}],
            max_tokens=80,
            extra_headers={"X-Session-Id": "s" * 200},
        )
    wait(page, lambda p: "s" * 200 in p.find_element(By.CSS_SELECTOR, ".card [data-figure=session]").text)
    assert page.execute_script("return window.moved") == []
