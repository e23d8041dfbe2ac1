"""meridian top."""

import json
import signal

from node import BINARY, end, environment
from terminal import Terminal


def top(node, *flags, columns=80, rows=24, **more):
    given = environment(MERIDIAN_URL=node.url, **more)
    if node.token:
        given["MERIDIAN_TOKEN"] = node.token
    return Terminal([BINARY, "top", *flags], columns, rows, given)


def once(node):
    """top --once and --json: one screen, without a terminal"""
    text = node.run("top", "--once", "--interval", "1s").out
    for word in ("meridian", "TRAFFIC", "REACTORS", "BUSIEST PUBLISHERS", "SLOW SUBSCRIBERS", "DROPS", "QUEUES", "memory", "cpu"):
        assert word in text, f"{word}\n{text}"
    document = json.loads(node.run("top", "--json", "--interval", "1500ms").out)
    assert document["rates"]["seconds"] > 0.5, document["rates"]
    assert len(document["rates"]["workers"]) == 2 and document["node"]["state"] == "ready"


def without_a_terminal(node):
    """top without a terminal says what to do instead"""
    assert "--once" in node.run("top", code=2).err
    node.run("top", "--interval", "10ms", code=2)
    node.run("top", "--url", "http://127.0.0.1:1", code=2)
    node.run("top", "--once", "--url", "http://127.0.0.1:1", code=3)


def keys(node):
    """top: its screen at 80x24, its keys, and a restored terminal"""
    held = node.subscriber("watcher", "w/#")
    terminal = top(node, "--interval", "500ms")
    text = terminal.until("q quit")
    for word in ("Traffic", "Reactors", "every 500ms", node.url, "q quit"):
        assert word in text, f"{word}\n{text}"
    terminal.until("clients 1/")
    for _ in range(20):
        node.publish("w/1", "x" * 100)
    terminal.until("/s")
    terminal.press("+")
    terminal.until("every 1s")
    terminal.press("-")
    terminal.until("every 500ms")
    terminal.press("p")
    terminal.until("PAUSED")
    terminal.press("p")
    terminal.until_not("PAUSED")
    terminal.press("?")
    terminal.until("less often")
    terminal.press("?")
    terminal.until_not("less often")
    terminal.press("\t\t")
    terminal.until("Busiest publishers by messages")
    terminal.press("s")
    terminal.until("by bytes")
    terminal.press("z")
    terminal.until_not("Reactors")
    terminal.press("z")
    terminal.until("Reactors")
    # Up from the second row, then around to the last one.
    terminal.press("\x1b[A\x1b[A")
    terminal.until("for absent clients")
    assert terminal.screen.colours
    terminal.press("q")
    assert terminal.end() == 0 and terminal.restored(), terminal.screen.everything[-200:]
    terminal.close()
    end(held)


def sizes(node):
    """top: any size, down to 1x1"""
    terminal = top(node)
    terminal.until("Traffic")
    for columns, rows, word in ((40, 10, "Traffic"), (1, 1, ""), (200, 60, "Queues"), (20, 3, ""), (80, 24, "Traffic")):
        terminal.resize(columns, rows)
        terminal.until(word)
    terminal.press("\x03")
    assert terminal.end() == 0 and terminal.restored()
    terminal.close()


def signals_and_colours(node):
    """top: SIGTERM restores the terminal; NO_COLOR is respected; a dumb terminal is refused"""
    terminal = top(node, NO_COLOR="1")
    terminal.until("Traffic")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0 and terminal.restored()
    assert not terminal.screen.colours
    terminal.close()
    terminal = top(node, TERM="dumb")
    assert terminal.end() == 2 and "--once" in terminal.screen.everything
    terminal.close()


def away_and_back(node):
    """top: a stopped node is shown as lost, and returns after its restart"""
    terminal = top(node, "--interval", "500ms", columns=120)
    terminal.until("Traffic")
    node.stop()
    terminal.until("NO ANSWER")
    node.start()
    terminal.until_not("NO ANSWER", 20)
    terminal.press("q")
    assert terminal.end() == 0 and terminal.restored()
    terminal.close()


def a_closed_terminal_is_the_end(node):
    """top: ends when its terminal is closed, without a signal"""
    terminal = top(node, "--interval", "500ms")
    terminal.until("Traffic")
    terminal.hang_up()
    assert terminal.process.wait(10) == 0


def a_wrong_address_fills_no_screen(node):
    """top: an unreachable address ends at once, with exit code 3"""
    terminal = top(node, "--url", "http://127.0.0.1:1")
    assert terminal.end() == 3
    assert "\x1b[?1049h" not in terminal.screen.everything and "meridian start" in terminal.screen.everything
    terminal.close()


CHECKS = [once, without_a_terminal, keys, sizes, signals_and_colours, away_and_back, a_closed_terminal_is_the_end, a_wrong_address_fills_no_screen]
