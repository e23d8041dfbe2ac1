"""A program in a terminal: its screen and its keys. Supports only what meridian top uses."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

CONTROL = re.compile(r"\x1b(?:\[([?>=]?)([0-9;:]*)([@-~])|[()][A-B0-2]|[=>78cM])")


class Screen:
    """Cells of a terminal."""

    def __init__(self, columns, rows):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest, self.everything, self.colours = "", "", False
        self.row = self.column = 0
        self.resize(columns, rows)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]

    def feed(self, data):
        text = self.rest + self.decoder.decode(data)
        self.everything += text[len(self.rest):]
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = CONTROL.match(text, at)
                if not found:
                    if len(text) - at > 32:
                        raise AssertionError(f"unknown control sequence {text[at:at + 16]!r}")
                    break
                self.obey(found)
                at = found.end()
                continue
            self.put(text[at])
            at += 1
        self.rest = text[at:]

    def obey(self, found):
        private, numbers, verb = found.groups()
        if verb is None or private:
            return
        numbers = [int(n or 0) for n in re.split("[;:]", numbers)] if numbers else []
        if verb in "Hf":
            self.row = (numbers[0] if numbers else 1) - 1
            self.column = (numbers[1] if len(numbers) > 1 else 1) - 1
        elif verb == "J":
            self.resize(self.columns, self.rows)
        elif verb == "m" and any(30 <= n <= 37 or n == 38 or 90 <= n <= 97 for n in numbers):
            self.colours = True

    def put(self, char):
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row += 1
        elif 0 <= self.row < self.rows and 0 <= self.column < self.columns:
            self.cells[self.row][self.column] = char
            self.column += 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, command, columns=80, rows=24, environment=None):
        self.screen = Screen(columns, rows)
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True)
        # Kept open to read its settings after the process has ended.
        self.slave = slave

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        if ready:
            try:
                self.screen.feed(os.read(self.master, 65536))
            except OSError:
                return

    def until(self, word, seconds=10):
        """Reads until the screen has this word."""
        return self.wait(lambda text: word in text, f"{word!r}", seconds)

    def until_not(self, word, seconds=10):
        return self.wait(lambda text: word not in text, f"no {word!r}", seconds)

    def wait(self, holds, what, seconds):
        end = time.monotonic() + seconds
        while not holds(self.screen.text()):
            if time.monotonic() > end:
                raise AssertionError(f"{what} is not on the screen:\n{self.screen.text()}")
            self.read(0.1)
        return self.screen.text()

    def press(self, keys):
        os.write(self.master, keys.encode())

    def resize(self, columns, rows):
        self.screen.resize(columns, rows)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def end(self, seconds=10):
        """Waits for the end of the process and returns its exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if time.monotonic() > end:
                self.process.kill()
                raise AssertionError("it did not end")
            self.read(0.05)
        while select.select([self.master], [], [], 0)[0]:
            self.read(0)
        return self.process.returncode

    def restored(self):
        """True if the terminal has its initial state."""
        left = self.screen.everything.rfind("\x1b[?1049l") > self.screen.everything.rfind("\x1b[?1049h")
        shown = self.screen.everything.rfind("\x1b[?25h") > self.screen.everything.rfind("\x1b[?25l")
        return left and shown and termios.tcgetattr(self.slave) == self.before

    def hang_up(self):
        """Closes the terminal under the process."""
        os.close(self.master)
        os.close(self.slave)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()
