"""What the daemon tells open pages, read as a page reads it."""

import json

import websocket


def apply(change, value):
    """A change as the daemon writes it (proto/src/patch.rs), made to a value; returns the new one."""
    [(kind, what)] = change.items()
    if kind == "=":
        return what
    if kind == ".":
        for name, inner in what.items():
            value[name] = apply(inner, value[name])
        return value
    gone, changed, added = what
    value = value[gone:]
    for place, inner in changed.items():
        value[int(place)] = apply(inner, value[int(place)])
    return value + added


class Reader:
    """One connection. `number` and `state` are those of its newest message."""

    def __init__(self, server, **options):
        self.socket = websocket.create_connection(server.url.replace("http", "ws") + "/ws", timeout=10, **options)
        self.number, self.state = None, None
        self.snapshots, self.first = 0, None

    def receive(self):
        """Takes in a message and doesn't tell."""
        message = json.loads(self.socket.recv())
        if "snapshot" in message:
            self.snapshots += 1
            self.first = self.first or message["snapshot"]["number"]
            self.number, self.state = message["snapshot"]["number"], message["snapshot"]["state"]
        else:
            assert message["update"]["number"] == self.number + 1
            self.number, self.state = self.number + 1, apply(message["update"]["change"], self.state)

    def next(self):
        """Takes in a message and tells so."""
        self.receive()
        self.socket.send(json.dumps({"seen": self.number}))
        return json.loads(json.dumps(self.state))

    def close(self):
        self.socket.close()
