"""Every figure on the page is the daemon's own, while four agents work."""

import threading
import time

import pytest
from feed import Reader
from figures import READ, agent, page as whole

AGENTS = 4

QUESTIONS = [
    "Write a Python function `add` that returns the sum of two numbers.",
    "Write a class for a stack with push and pop.",
    "Read the file main.py and say what it does.",
    "Write a test for a function that sorts a list.",
]


class Work:
    """Conversations that are written until they are told to end: more of them than there are agents, so that some wait."""

    def __init__(self, client, conversations):
        self.over = False
        self.threads = [threading.Thread(target=self.one, args=(client, i), daemon=True) for i in range(conversations)]
        for thread in self.threads:
            thread.start()

    def one(self, client, number):
        system = {"role": "system", "content": "You are a careful programmer. Answer in short sentences. " * 20}
        stream = client.chat.completions.create(
            model="any",
            messages=[system, {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
            max_tokens=4000,
            stream=True,
            extra_headers={"X-Session-Id": f"agent-{number}"},
            extra_body={"ignore_eos": True},
        )
        for _ in stream:
            if self.over:
                break
        stream.close()

    def end(self):
        self.over = True
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def states(server):
    """What the daemon told, by the number of the message, as it comes."""
    states, reader, over = {}, Reader(server), threading.Event()

    def read():
        while not over.is_set():
            state = reader.next()
            states[reader.number] = state

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield states
    over.set()
    thread.join(10)
    reader.close()


def compare(page, states):
    """The page's figures and the daemon's at the same moment."""
    shown = page.execute_script(READ)
    end = time.monotonic() + 5
    while shown["number"] not in states and time.monotonic() < end:
        time.sleep(0.02)
    state = states[shown["number"]]
    # The box to try the model is the page's own, and so is what it did last.
    own = {name: text for name, text in shown["page"].items() if name not in ("chat", "action")}
    assert own == whole(state)
    cards = [{**card, "tail": card["tail"].strip()} for card in shown["cards"]]
    expected = [agent(status) for status in state["daemon"]["engine"]["agents"]]
    assert cards == [{**card, "tail": card["tail"].strip()} for card in expected]
    return state


def test_every_figure_is_the_daemons_own_while_four_agents_work(page, server, client, states):
    work = Work(client, AGENTS + 2)
    try:
        seen = []
        end = time.monotonic() + 60
        while len([state for state in seen if state == ["decode"] * AGENTS]) < 5 and time.monotonic() < end:
            engine = compare(page, states)["daemon"]["engine"]
            seen.append([status["state"] for status in engine["agents"]])
            time.sleep(0.15)
        assert seen.count(["decode"] * AGENTS) >= 5, seen
        assert engine["queued"] == 2 and len(engine["queue"]) == 2
        assert all(status["tokens_per_second_now"] > 0 for status in engine["agents"])
        assert all(status["task"] in QUESTIONS for status in engine["agents"])
        assert any(len(part["agents"]) == AGENTS for part in engine["pool"]), "they share the beginning of their prompts"
    finally:
        work.end()
    # At rest the same figures stand behind the other doors.
    for _ in range(100):
        if all(status["state"] == "idle" for status in server.get("/slots")):
            break
        time.sleep(0.1)
    time.sleep(0.6)
    state = compare(page, states)
    assert state["daemon"]["engine"]["agents"] == server.get("/slots")
    assert sum(part["pages"] for part in state["daemon"]["engine"]["pool"]) == (
        state["daemon"]["engine"]["pages_total"] - state["daemon"]["engine"]["pages_free"]
    )
