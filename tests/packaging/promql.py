"""Parser for the subset of PromQL in the dashboard and the alert rules. Returns the selectors of an expression, or raises
Malformed. It needs no `promtool`."""

import dataclasses
import re

TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+)
    |(?P<number>(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|Inf|NaN)(?![\w:]))
    |(?P<name>[a-zA-Z_:][\w:]*)
    |(?P<variable>\$\w+|\$\{\w+\})
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^(){}\[\],=<>:])""",
    re.VERBOSE,
)
FUNCTIONS = {
    "abs": 1, "absent": 1, "ceil": 1, "changes": 1, "clamp_max": 2, "clamp_min": 2, "delta": 1, "deriv": 1, "floor": 1,
    "histogram_quantile": 2, "idelta": 1, "increase": 1, "irate": 1, "label_replace": 5, "max_over_time": 1,
    "min_over_time": 1, "avg_over_time": 1, "sum_over_time": 1, "predict_linear": 2, "rate": 1, "resets": 1, "round": 1,
    "scalar": 1, "sort": 1, "sort_desc": 1, "time": 0, "timestamp": 1, "vector": 1,
}  # fmt: skip
RANGES = {"changes", "delta", "deriv", "idelta", "increase", "irate", "predict_linear", "rate", "resets"}
AGGREGATIONS = {"sum": 1, "avg": 1, "min": 1, "max": 1, "count": 1, "topk": 2, "bottomk": 2, "quantile": 2}
COMPARISONS = {"==", "!=", "<", ">", "<=", ">="}
PRECEDENCE = [{"or"}, {"and", "unless"}, COMPARISONS, {"+", "-"}, {"*", "/", "%"}, {"^"}]


class Malformed(Exception):
    """Syntax error in an expression."""


@dataclasses.dataclass
class Selector:
    metric: str
    # (label, operator, value)
    matchers: list
    # Labels that an aggregation above it groups by; None where nothing groups.
    grouped: list = dataclasses.field(default_factory=list)
    range: bool = False


class Parser:
    """One expression. `selectors` is complete after `parse`."""

    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text):
            match = TOKEN.match(text, at)
            if not match:
                raise Malformed(f"unexpected {text[at:at + 20]!r}")
            if match.lastgroup:
                self.tokens.append((match.lastgroup, match.group()))
            at = match.end()
        self.at = 0
        self.selectors = []

    def parse(self):
        self.binary(0)
        if self.at != len(self.tokens):
            raise Malformed(f"unexpected {self.tokens[self.at][1]!r}")
        return self.selectors

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end")

    def take(self, *wanted):
        kind, text = self.peek()
        if wanted and text not in wanted and kind not in wanted:
            raise Malformed(f"expected {' or '.join(wanted)}, found {text!r}")
        self.at += 1
        return text

    def took(self, text):
        if self.peek()[1] == text:
            self.at += 1
            return True
        return False

    def binary(self, level):
        if level == len(PRECEDENCE):
            return self.unary()
        kind = self.binary(level + 1)
        while self.peek()[1] in PRECEDENCE[level] and self.peek()[0] in ("sign", "name"):
            self.take()
            if self.peek()[1] == "bool":
                self.take()
            if self.peek()[1] in ("on", "ignoring"):
                self.take()
                self.labels()
                if self.peek()[1] in ("group_left", "group_right"):
                    self.take()
                    if self.peek()[1] == "(":
                        self.labels()
            other = self.binary(level + 1)
            if "range" in (kind, other):
                raise Malformed("a range of samples cannot be an operand")
            kind = "vector"
        return kind

    def unary(self):
        if self.peek()[1] in ("-", "+"):
            self.take()
        kind = self.primary()
        if self.took("["):
            self.take("duration", "variable")
            subquery = self.took(":")
            if subquery and self.peek()[0] == "duration":
                self.take()
            self.take("]")
            kind = "range"
        if self.took("offset"):
            self.take("duration")
        return kind

    def primary(self):
        kind, text = self.peek()
        if kind in ("number", "text"):
            self.take()
            return "scalar"
        if self.took("("):
            inner = self.binary(0)
            self.take(")")
            return inner
        if kind != "name" and text != "{":
            raise Malformed(f"expected an expression, found {text!r}")
        if kind == "name":
            self.take()
            if text in AGGREGATIONS:
                return self.aggregation(text)
            if self.peek()[1] == "(":
                return self.call(text)
        self.selectors.append(Selector(text if kind == "name" else "", self.matchers()))
        return "vector"

    def labels(self):
        self.take("(")
        names = []
        while not self.took(")"):
            names.append(self.take("name"))
            if not self.took(","):
                self.take(")")
                break
        return names

    def arguments(self, name, count):
        self.take("(")
        kinds = []
        while not self.took(")"):
            kinds.append(self.binary(0))
            if not self.took(","):
                self.take(")")
                break
        if len(kinds) != count:
            raise Malformed(f"{name} takes {count} arguments, not {len(kinds)}")
        return kinds

    def aggregation(self, name):
        before = len(self.selectors)
        grouping = None
        if self.peek()[1] in ("by", "without"):
            grouping = (self.take(), self.labels())
        self.arguments(name, AGGREGATIONS[name])
        if grouping is None and self.peek()[1] in ("by", "without"):
            grouping = (self.take(), self.labels())
        if grouping:
            for selector in self.selectors[before:]:
                selector.grouped.extend(grouping[1])
        return "vector"

    def call(self, name):
        if name not in FUNCTIONS:
            raise Malformed(f"no function {name}")
        before = len(self.selectors)
        kinds = self.arguments(name, FUNCTIONS[name])
        if name in RANGES and "range" not in kinds:
            raise Malformed(f"{name} takes a range, as in {name}(x[5m])")
        if name not in RANGES and not name.endswith("_over_time") and "range" in kinds:
            raise Malformed(f"{name} takes no range")
        for selector in self.selectors[before:]:
            selector.range = selector.range or name in ("rate", "irate", "increase")
        return "vector"

    def matchers(self):
        found = []
        if not self.took("{"):
            return found
        while not self.took("}"):
            label = self.take("name")
            operator = self.take("=", "!=", "=~", "!~")
            value = self.take("text")[1:-1]
            if "~" in operator:
                try:
                    re.compile(value)
                except re.error as error:
                    raise Malformed(f"{label}{operator}{value!r}: {error}") from error
            found.append((label, operator, value))
            if not self.took(","):
                self.take("}")
                break
        return found


def selectors(text):
    """The selectors of an expression; raises Malformed."""
    return Parser(text).parse()
