"""The service of docs/http-auth.md with a node and with clients that it accepts or refuses."""

import contextlib
import pathlib
import re
import socket
import subprocess
import sys
import textwrap
import time

from checks_node import free_port, get, serving
from checks_packages import ROOT, run

PAGE = ROOT / "docs/http-auth.md"


@contextlib.contextmanager
def service(directory, port):
    """Runs the service of the page on this port, once it accepts connections."""
    source = re.search(r"^    # service\.py\n((?:    .*\n|\n)+)", PAGE.read_text(), re.MULTILINE).group(0)
    source = textwrap.dedent(source)
    assert "8090" in source
    path = pathlib.Path(directory) / "service.py"
    path.write_text(source.replace("8090", str(port)))
    process = subprocess.Popen([sys.executable, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the service does not start"
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)


def total(url, name, *labels):
    """The sum of the series of a metric that have all of these labels."""
    lines = get(f"{url}/metrics")[2].splitlines()
    found = [line for line in lines if line.startswith(name + "{") and all(label in line for label in labels)]
    assert found, f"no {name} with {labels}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def the_page_about_http_services_holds(binary, mosquitto_pub, mosquitto_sub):
    """The service of docs/http-auth.md decides on logins and access; without it the node refuses clients and counts the failures."""
    asked = free_port()
    base = f"http://127.0.0.1:{asked}"
    # Without a cache, the end of the service has an effect at once.
    settings = [f"http_auth.url={base}/auth", f"http_acl.url={base}/acl", "http_auth.cache_ttl_allow=0s", "http_acl.timeout=1s"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    with serving(binary, *arguments) as (port, url, directory), service(directory, asked) as process:

        def publish(topic, password="s3cret", **options):
            words = ["-p", port, "-V", "5", "-i", "p", "-u", "alice", "-P", password, "-q", "1", "-t", topic, "-m", "hello"]
            return run(mosquitto_pub, *words, **options)

        words = ["-p", port, "-V", "5", "-i", "s", "-u", "alice", "-P", "s3cret", "-t", "users/alice/#", "-C", "1", "-W", "60"]
        words = [mosquitto_sub, *map(str, words)]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as subscriber:
            while not re.search("^meridian_subscriptions_added_total [1-9]", get(f"{url}/metrics")[2], re.MULTILINE):
                assert subscriber.poll() is None, "the subscriber has ended"
                time.sleep(0.05)
            publish("users/alice/a")
            assert subscriber.communicate(timeout=60)[0] == "hello\n"
        wrong = publish("users/alice/a", "wrong", fails=True)
        assert "user name or password" in (wrong.stdout + wrong.stderr).lower(), wrong
        denied = publish("users/bob/a", fails=None)
        assert "ot authori" in denied.stdout + denied.stderr, denied
        refused = run(mosquitto_sub, "-p", port, "-V", "5", "-u", "alice", "-P", "s3cret", "-t", "#", "-W", "20", fails=None)
        assert "denied" in refused.stderr, refused
        assert total(url, "meridian_http_service_answers_total", 'service="http_auth"', 'result="deny"') == 1
        assert total(url, "meridian_http_service_answers_total", 'service="http_acl"', 'result="deny"') == 2
        assert total(url, "meridian_http_service_failures_total") == 0

        process.kill()
        process.wait(timeout=10)
        publish("users/alice/a", fails=True)
        assert total(url, "meridian_http_service_failures_total", 'service="http_auth"', 'reason="connect"') >= 1
        assert total(url, "meridian_authentications_total", 'result="failed"') >= 1


CHECKS = [the_page_about_http_services_holds]
