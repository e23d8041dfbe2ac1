//! Options of other tools that do nothing here, and what to use instead.

/// Where an option is known but not supported: what to say.
pub type Advice = (&'static [&'static str], &'static str);

const QUIC: &str = "QUIC is not spoken: use a TCP listener";
const QOE: &str = "use --json; the summary has the percentiles";

pub const EMQTT: &[Advice] = &[
    (
        &["--ciphers", "--signature-algs", "--keyex-algs"],
        "TLS chooses for itself; --ssl-version says which one",
    ),
    (&["--quic", "--load-qst"], QUIC),
    (&["-Q", "--qoe", "--qoelog"], QOE),
    (&["-d", "--dist"], "there is no Erlang distribution here; leave it out"),
    (
        &["--topics-payload"],
        "use a group for each topic in a scenario (--scenario FILE), or one `pub` for each",
    ),
    (&["--log_to"], "use --quiet for no lines while running"),
];

pub const MQTTX: &[Advice] = &[
    (&["--alpn"], "nothing is asked for by ALPN; leave it out"),
    (&["-wh", "--ws-headers"], "the upgrade has no headers of its own; use -u and -P"),
    (&["--split"], "a publisher sends one message; use -m or --file-read"),
    (&["-am", "--authentication-method"], "enhanced authentication is not spoken; use -u and -P"),
    (&["-s", "--stdin", "-M", "--multiline", "-lm", "--line-mode"], "standard input is not read; use -m"),
    (
        &["--rcv-max", "--receive-maximum", "--maximum-packet-size", "--topic-alias-maximum"],
        "these limits are not announced; leave it out",
    ),
    (
        &["--req-response-info", "--no-req-problem-info", "-Cup", "--conn-user-properties"],
        "CONNECT has no such properties; leave it out",
    ),
    (
        &[
            "-pf",
            "--payload-format-indicator",
            "-e",
            "--message-expiry-interval",
            "-ta",
            "--topic-alias",
            "-cd",
            "--correlation-data",
            "-si",
            "--subscription-identifier",
        ],
        "MQTT 5.0 properties of messages are not set; `meridian pub` sets them",
    ),
    (&["-d", "--dup"], "DUP is set on what is sent again only; leave it out"),
    (
        &["-nl", "--no_local", "-rap", "--retain-as-published", "-rh", "--retain-handling"],
        "a subscription has a QoS only; `meridian sub` has the rest",
    ),
    (
        &["-up", "--user-properties", "-ct", "--content-type", "-rt", "--response-topic"],
        "MQTT 5.0 properties of messages are not set; `meridian pub` sets them",
    ),
    (
        &["-Wt", "--will-topic", "-Wm", "--will-message"],
        "clients have no Will here; `meridian sub --help` has one",
    ),
    (&["-v", "--verbose"], "messages are not printed; `meridian sub` does that"),
    (&["--debug", "-so", "--save-options", "-lo", "--load-options"], "leave it out"),
];

/// The refusal of the first word that is such an option, in any of its spellings.
pub fn refuse(words: &[String], table: &[Advice]) -> Option<String> {
    for word in words {
        let name = word.split('=').next().unwrap_or(word);
        for (names, advice) in table {
            if names.contains(&name) {
                return Some(format!("error: {name} is not supported: {advice}"));
            }
        }
    }
    None
}
