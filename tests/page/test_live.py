"""The WebSocket that feeds the page."""

import json
import time

import pytest
import websocket


def connect(server, **options):
    return websocket.create_connection(server.url.replace("http", "ws") + "/ws", timeout=10, **options)


def test_snapshots_come_five_times_a_second(server):
    socket = connect(server)
    socket.recv()
    start = time.monotonic()
    snapshots = [json.loads(socket.recv()) for _ in range(10)]
    took = time.monotonic() - start
    socket.close()
    assert 1.5 < took < 4, took
    assert all(len(snapshot["agents"]) == len(server.get("/slots")) for snapshot in snapshots)
    assert snapshots[-1]["health"] == {"state": "ready"}


def test_a_page_of_another_origin_is_refused(server):
    with pytest.raises(websocket.WebSocketBadStatusException) as error:
        connect(server, origin="http://elsewhere.example")
    assert error.value.status_code == 400


def test_a_reader_that_talks_is_left(server):
    socket = connect(server)
    socket.send("hello")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        code, _ = socket.recv_data(control_frame=True)
        if code == websocket.ABNF.OPCODE_CLOSE:
            return
    pytest.fail("it still gets snapshots")


def test_a_reader_that_stalls_gets_the_newest_snapshot_later(server, client):
    stalled = [connect(server) for _ in range(50)]
    before = json.loads(stalled[0].recv())["tokens_generated"]
    client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=30)
    fresh = connect(server)
    assert json.loads(fresh.recv())["tokens_generated"] > before
    for socket in [*stalled, fresh]:
        socket.close()
