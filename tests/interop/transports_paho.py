"""Paho over one transport: SCHEME PORT CA [CERTIFICATE KEY]. Exits 0 when a message came through."""

import sys
import threading

import paho.mqtt.client as paho

scheme, port, ca, *own = sys.argv[1:]
came, trouble = threading.Event(), []
client = paho.Client(
    paho.CallbackAPIVersion.VERSION2,
    protocol=5,
    transport="websockets" if scheme in ("ws", "wss") else "tcp",
    reconnect_on_failure=False,
)
if scheme in ("ws", "wss"):
    client.ws_set_options(path="/mqtt")
if scheme in ("mqtts", "wss"):
    client.tls_set(ca_certs=ca, certfile=own[0] if own else None, keyfile=own[1] if own else None)


def end(why):
    trouble.append(str(why))
    came.set()


topic = f"transport/paho/{scheme}/{port}"
client.on_connect = lambda c, _data, _flags, reason, _properties: end(reason) if reason.is_failure else c.subscribe(topic, 1)
client.on_subscribe = lambda c, *_: c.publish(topic, "through", 1)
client.on_message = lambda *_: came.set()
client.on_disconnect = lambda _client, _data, _flags, reason, _properties: end(f"closed: {reason}")
client.connect("localhost", int(port))
client.loop_start()
if not came.wait(20):
    sys.exit("no message within 20 s")
if trouble:
    sys.exit(trouble[0])
