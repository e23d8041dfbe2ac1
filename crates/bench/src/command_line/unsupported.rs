//! Options of other tools that this tool does not support, and alternatives.

/// Known but unsupported options, and the alternative.
pub type Advice = (&'static [&'static str], &'static str);

const QUIC: &str = "QUIC is not supported: use a TCP listener";
const QOELOG: &str = "there is no file with the times of each client; the result has their percentiles (--json, \
         --html)";

pub const EMQTT: &[Advice] = &[
    (
        &["--ciphers", "--signature-algs", "--keyex-algs"],
        "TLS chooses by itself; --ssl-version sets the version",
    ),
    (&["--quic", "--load-qst"], QUIC),
    (&["--qoelog"], QOELOG),
    (&["-d", "--dist"], "there is no Erlang distribution here; leave it out"),
    (
        &["--topics-payload"],
        "use a group for each topic in a scenario (--scenario FILE), or one `pub` for each",
    ),
    (&["--log_to"], "use --quiet for no lines while running"),
];

pub const MQTTX: &[Advice] = &[
    (&["--split"], "a publisher sends one message; use -m or --file-read"),
    (&["-am", "--authentication-method"], "enhanced authentication is not supported; use -u and -P"),
    (&["-s", "--stdin", "-M", "--multiline", "-lm", "--line-mode"], "standard input is not read; use -m"),
    (&["--topic-alias-maximum"], "Topic Aliases of the broker are not supported; leave it out"),
    (&["-si", "--subscription-identifier"], "a subscription has a QoS only; `meridian sub` has the rest"),
    (&["-d", "--dup"], "DUP is set on retransmissions only; leave it out"),
    (
        &["-nl", "--no_local", "-rap", "--retain-as-published", "-rh", "--retain-handling"],
        "a subscription has a QoS only; `meridian sub` has the rest",
    ),
    (&["-v", "--verbose"], "messages are not printed; `meridian sub` does that"),
    (&["--debug", "-so", "--save-options", "-lo", "--load-options"], "leave it out"),
];

/// Refuses the first unsupported option among the words, in any of its spellings.
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
