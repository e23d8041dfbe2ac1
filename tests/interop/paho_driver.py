"""Paho Python as a driver; `client.py` describes the commands and events."""

import json
import socket
import sys
import threading

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

PORT = int(sys.argv[1])
clients = {}
output = threading.Lock()


def emit(event, client, **fields):
    with output:
        sys.stdout.write(json.dumps({"event": event, "client": client, **fields}) + "\n")
        sys.stdout.flush()


class Client:
    def __init__(self, name, command):
        self.name, self.version = name, command["version"]
        self.unacknowledged = threading.Semaphore(0)
        v5 = self.version == 5
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=command["id"],
            protocol=self.version,
            clean_session=None if v5 else command["clean"],
            # A reconnect of its own would hide what the broker did to the first connection.
            reconnect_on_failure=False,
        )
        self.paho.on_connect = self.on_connect
        self.paho.on_disconnect = self.on_disconnect
        self.paho.on_subscribe = self.on_subscribe
        self.paho.on_publish = lambda *_: self.unacknowledged.release()
        self.paho.on_message = self.on_message
        if will := command["will"]:
            self.paho.will_set(will["topic"], will["payload"], will["qos"], will["retain"])
        arguments = {}
        if v5:
            arguments["clean_start"] = command["clean"]
            if command["expiry"] is not None:
                arguments["properties"] = Properties(PacketTypes.CONNECT)
                arguments["properties"].SessionExpiryInterval = command["expiry"]
        self.paho.connect(command["host"], PORT, **arguments)
        self.paho.loop_start()

    def on_connect(self, _client, _data, flags, reason, _properties):
        if reason.is_failure:
            emit("error", self.name, text=f"CONNACK {reason}")
        else:
            emit("connected", self.name, session_present=flags.session_present)

    def on_disconnect(self, _client, _data, flags, reason, _properties):
        # Paho reads the Reason Code of a DISCONNECT only when properties follow it; else it says 0, which a broker
        # never sends.
        by_broker = flags.is_disconnect_packet_from_server
        emit("closed", self.name, reason=(reason.value or "unknown") if by_broker else None)

    def on_subscribe(self, _client, _data, _mid, reasons, _properties):
        emit("subscribed", self.name, reasons=[reason.value for reason in reasons])

    def on_message(self, _client, _data, message):
        properties = {}
        if message.properties is not None:
            said = message.properties.json()
            properties = {
                "content_type": said.get("ContentType"),
                "response_topic": said.get("ResponseTopic"),
                "correlation_data": bytes.fromhex(said["CorrelationData"]).decode()
                if "CorrelationData" in said
                else None,
                "message_expiry": said.get("MessageExpiryInterval"),
                "payload_format": said.get("PayloadFormatIndicator"),
                "user": [list(pair) for pair in said.get("UserProperty", [])],
                "identifiers": said.get("SubscriptionIdentifier", []),
            }
        emit(
            "message",
            self.name,
            topic=message.topic,
            payload=message.payload.decode(),
            qos=message.qos,
            retain=message.retain,
            properties=properties,
        )

    def subscribe(self, command):
        if self.version != 5:
            self.paho.subscribe(command["filter"], command["qos"])
            return
        properties = None
        if command["identifier"] is not None:
            properties = Properties(PacketTypes.SUBSCRIBE)
            properties.SubscriptionIdentifier = command["identifier"]
        options = SubscribeOptions(qos=command["qos"], noLocal=command["no_local"])
        self.paho.subscribe(command["filter"], options=options, properties=properties)

    def publish(self, command):
        properties = None
        if said := command["properties"]:
            properties = Properties(PacketTypes.PUBLISH)
            properties.ContentType = said["content_type"]
            properties.ResponseTopic = said["response_topic"]
            properties.CorrelationData = said["correlation_data"].encode()
            properties.MessageExpiryInterval = said["message_expiry"]
            properties.PayloadFormatIndicator = said["payload_format"]
            properties.UserProperty = [tuple(pair) for pair in said["user"]]
        for payload in command["payloads"]:
            self.paho.publish(command["topic"], payload, command["qos"], command["retain"], properties)
        for _ in command["payloads"]:
            self.unacknowledged.acquire()
        emit("published", self.name)

    def disconnect(self, _command):
        self.paho.disconnect()

    def abort(self, _command):
        # FIN without a DISCONNECT; the network loop finds the end of the stream and reports it.
        self.paho.socket().shutdown(socket.SHUT_RDWR)


for line in sys.stdin:
    command = json.loads(line)
    name = command["client"]
    try:
        if command["do"] == "connect":
            clients[name] = Client(name, command)
        elif command["do"] == "publish":
            # Waiting for acknowledgements must not hold up commands to other clients.
            threading.Thread(target=clients[name].publish, args=(command,), daemon=True).start()
        else:
            getattr(clients[name], command["do"])(command)
    except Exception as error:  # Whatever the library raises is the scenario's to judge.
        emit("error", name, text=repr(error))
