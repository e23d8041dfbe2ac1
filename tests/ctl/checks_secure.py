"""Bridges and links over TLS."""

import json
import shutil

from authority import Authority
from checks_bridges import Mosquitto, bridge_of, configured, connected, received
from checks_linking import clusters, is_settled, taking, text_of
from node import Node, free_port, until


def replace(path, source):
    """Gives a file the content of another one."""
    shutil.copyfile(source, path)


def bridge_over_tls(_):
    """a bridge over TLS refuses a wrong authority and a wrong name, shows its own certificate, and reads new files at each connection"""
    node = Node()
    known, strange = (Authority(node.directory, name) for name in ("known", "strange"))
    certificate, key = known.issue("server")
    own, wrong = known.issue("site", "clientAuth"), strange.issue("site", "clientAuth")
    client = ["--cafile", known.file, "--cert", own[0], "--key", own[1]]
    other = Mosquitto(f"cafile {known.file}", f"certfile {certificate}", f"keyfile {key}", "require_certificate true", client=client)
    # mosquitto reads them as another user.
    node.directory.chmod(0o755)
    for path in node.directory.iterdir():
        path.chmod(0o644)
    try:
        other.start()
        authority, shown, secret = (str(node.directory / name) for name in ("ca", "own.crt", "own.key"))
        replace(authority, strange.file)
        replace(shown, wrong[0])
        replace(secret, wrong[1])
        bridge = {"address": f"127.0.0.1:{other.port}", "topics": "a/# out 1", "backoff_min": "100ms", "backoff_max": "300ms", "tls": True,
                  "tls_ca": authority, "tls_certificate": shown, "tls_key": secret}
        plain = {"address": bridge["address"], "topics": "b/# out 1", "backoff_min": "100ms", "backoff_max": "300ms"}
        node.start(*configured(node, {"name": "plant", **bridge}, {"name": "named", **bridge, "tls_server_name": "elsewhere.example.com"},
                               {"name": "plain", **plain}))
        error = lambda name: str((bridge_of(node, name) or {}).get("last_error"))  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
        until(lambda: "an authority that is not known here: set tls_ca" in error("plant"), "the authority is wrong")
        replace(authority, known.file)
        until(lambda: "does not accept the client's certificate (tls_certificate)" in error("plant"), "the own certificate is wrong")
        replace(secret, own[1])
        until(lambda: "tls_certificate: " in error("plant"), "certificate and key belong together")
        replace(shown, own[0])
        until(lambda: connected(node, "plant"), "the bridge is connected")
        there = other.subscriber("there", "a/#")
        node.publish("a/large", "x" * 100_000, "-q", "1")
        node.publish("a/b", "1", "-q", "1")
        lines = received(there, 2)
        assert [line.split()[0] for line in lines] == ["a/large", "a/b"] and len(lines[0]) > 100_000, [line[:60] for line in lines]
        assert "not for elsewhere.example.com" in error("named") and "set tls_server_name" in error("named"), error("named")
        assert not connected(node, "named") and not connected(node, "plain"), node.text("bridges")
    finally:
        node.close()
        other.close()


def link_over_tls(_):
    """a link over TLS refuses a wrong authority, shows its own certificate, and takes messages"""
    with clusters(2) as pair:
        a, b = pair.nodes
        known, strange = (Authority(pair.directory, name) for name in ("known", "strange"))
        certificate, key = known.issue("server")
        own = known.issue("a", "clientAuth")
        port, authority = free_port(), str(pair.directory / "ca")
        replace(authority, strange.file)
        listener = {"address": f"127.0.0.1:{port}", "tls_certificate": certificate, "tls_key": key, "tls_client": "required", "tls_client_ca": known.file}
        # A listener on the command line would replace this one.
        (b.directory / "meridian.toml").write_text("\n".join(
            [f"[[{section}]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
             for section, values in [("listener", {"address": f"127.0.0.1:{b.mqtt}"}), ("listener", listener), ("cluster_link", pair.link(1, 0))]]))
        b.without_listen = True
        b.start("--config", str(b.directory / "meridian.toml"))
        secure = {"topics": "#", "tls": True, "tls_ca": authority}
        for more in ({}, {"tls_certificate": own[0], "tls_key": own[1]}):
            pair.start(0, {**pair.link(0, 1, **secure, **more), "address": f"127.0.0.1:{port}"})
            error = lambda: str(taking(a, "b").get("last_error"))  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
            if not more:
                until(lambda: "an authority that is not known here: set tls_ca" in error(), "the authority is wrong")
                replace(authority, known.file)
                until(lambda: "wants a certificate from the client: set tls_certificate and tls_key" in error(), "a certificate is wanted")
                a.stop()
        here = a.subscriber("here", "t/#", qos=1)
        until(lambda: is_settled(a, "b", 1), "the filter is subscribed at the other cluster")
        b.publish("t/1", "hello", "-q", "1")
        assert text_of(received(here, 1)) == ["t/1 hello"]


def bridge_over_websocket(_):
    """a bridge carries messages both ways by WebSocket, with TLS and without, also large ones, and names a wrong path"""
    far, near = Node(), Node()
    known = Authority(far.directory, "known")
    certificate, key = known.issue("server")
    plain, secure, over_tls = free_port(), free_port(), free_port()
    try:
        listeners = [{"address": f"127.0.0.1:{far.mqtt}"}, {"address": f"127.0.0.1:{plain}", "transport": "websocket", "websocket_path": "/broker"},
                     {"address": f"127.0.0.1:{secure}", "transport": "websocket", "tls_certificate": certificate, "tls_key": key},
                     {"address": f"127.0.0.1:{over_tls}", "tls_certificate": certificate, "tls_key": key}]
        (far.directory / "meridian.toml").write_text("\n".join(
            "[[listener]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) for values in listeners))
        far.without_listen = True
        far.start("--config", str(far.directory / "meridian.toml"))
        quick = {"transport": "websocket", "backoff_min": "100ms", "backoff_max": "300ms"}
        near.start(*configured(
            near,
            {"name": "plain", "address": f"127.0.0.1:{plain}", "websocket_path": "/broker", "topics": "a/# both 2", **quick},
            {"name": "secure", "address": f"127.0.0.1:{secure}", "tls": True, "tls_ca": known.file, "topics": "b/# both 2", **quick},
            {"name": "wrong", "address": f"127.0.0.1:{plain}", "topics": "c/# out 2", **quick},
            {"name": "mqtt", "address": f"127.0.0.1:{far.mqtt}", "topics": "d/# out 2", **quick},
            {"name": "clear", "address": f"127.0.0.1:{over_tls}", "topics": "e/# out 2", "backoff_min": "100ms", "backoff_max": "300ms"}))
        for name in ("plain", "secure"):
            until(lambda name=name: connected(near, name), f"{name} is connected")
        for source, target, client_id in ((near, far, "there"), (far, near, "here")):
            subscriber = target.subscriber(client_id, "a/#", "b/#", qos=2)
            for topic in ("a/1", "b/1"):
                for payload in ("x", "y" * 100_000, "z"):
                    source.publish(topic, payload, "-q", "2")
            lines = [line.split() for line in received(subscriber, 6)]
            sizes = [(topic, len(payload) // 2) for topic, payload in lines]
            # Bridges carry their topics independently of each other.
            for topic in ("a/1", "b/1"):
                assert [size for size in sizes if size[0] == topic] == [(topic, 1), (topic, 100_000), (topic, 1)], sizes
        error = lambda name: str((bridge_of(near, name) or {}).get("last_error"))  # noqa: E731  pylint: disable=unnecessary-lambda-assignment
        assert "Meridian's is /mqtt" in error("wrong"), error("wrong")
        until(lambda: bridge_of(near, "mqtt")["failed_attempts"] > 0, "a port without WebSocket is no success")
        assert not connected(near, "mqtt")
        until(lambda: "speaks TLS; set tls = true" in error("clear"), "a port with TLS is named")
    finally:
        near.close()
        far.close()


CHECKS = [bridge_over_tls, link_over_tls, bridge_over_websocket]
