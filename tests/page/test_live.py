"""The WebSocket that feeds the page."""

import json
import time

import pytest
import websocket

from feed import Reader


def memory(server):
    """Bytes that the daemon has in use."""
    with open(f"/proc/{server.process.pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def test_a_snapshot_comes_first_and_then_five_changes_a_second(server):
    reader = Reader(server)
    reader.next()
    start = time.monotonic()
    states = [reader.next() for _ in range(10)]
    took = time.monotonic() - start
    reader.close()
    assert 1.5 < took < 4, took
    assert reader.snapshots == 1
    assert all(len(state["daemon"]["engine"]["agents"]) == len(server.get("/slots")) for state in states)
    assert states[-1]["daemon"]["health"] == {"state": "ready"}


def test_all_readers_are_told_the_same(server):
    one, two = Reader(server), Reader(server)
    seen = {}
    for _ in range(10):
        state = one.next()
        seen[one.number] = state
    both = 0
    for _ in range(10):
        state = two.next()
        both += two.number in seen
        assert seen.get(two.number, state) == state
    assert both >= 3
    one.close()
    two.close()


def test_a_page_of_another_origin_is_refused(server):
    with pytest.raises(websocket.WebSocketBadStatusException) as error:
        Reader(server, origin="http://elsewhere.example")
    assert error.value.status_code == 403


def test_a_reader_that_talks_is_left(server):
    reader = Reader(server)
    reader.socket.send("hello")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        code, data = reader.socket.recv_data(control_frame=True)
        if code == websocket.ABNF.OPCODE_CLOSE:
            assert int.from_bytes(data[:2]) == 1008 and b"seen" in data
            return
    pytest.fail("it is still told things")


def test_a_hundred_readers_half_of_them_stalled_cost_no_memory(server, client):
    stalled = [Reader(server) for _ in range(50)]
    readers = [Reader(server) for _ in range(50)]
    for reader in stalled + readers:
        reader.receive()
    for reader in readers:
        reader.socket.send(json.dumps({"seen": reader.number}))
    client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=30)
    before = memory(server)
    written = stalled[0].state["daemon"]["engine"]["tokens_generated"]
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for reader in readers:
            reader.next()
    assert memory(server) - before < 4 << 20
    assert all(reader.number - reader.first >= 10 for reader in readers)
    # Who was stalled has a few old messages to take in, and the newest state after that.
    for reader in stalled[:5]:
        for _ in range(5):
            reader.next()
        assert reader.snapshots == 2
        assert reader.state["daemon"]["engine"]["tokens_generated"] >= written + 30
    for reader in stalled + readers:
        reader.close()
