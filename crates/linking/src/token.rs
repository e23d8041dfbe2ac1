//! Link tokens: the password that a link shows to the other cluster.
//!
//! A token proves knowledge of the link's secret without sending it. It names both clusters, and is valid for a few
//! minutes around its time. Somebody who sees a token can use it for that time: TLS hides it.

use std::fmt;
use std::time::Duration;

use ring::hmac;

/// Longest difference between the clocks of two clusters.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(600);
/// Minimum number of bytes of a secret.
pub const SECRET_MIN: usize = 16;

const VERSION: &str = "v1";
const CONTEXT: &str = "meridian-link-v1";
/// Number of random bytes.
const NONCE: usize = 16;
const MAC: usize = 32;

/// Names of the clusters of a connection: the one that connects, and the one that accepts.
#[derive(Clone, Copy, Debug)]
pub struct Parties<'a> {
    pub from: &'a str,
    pub to: &'a str,
}

/// Reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The text is no token.
    Form,
    /// The token was made with another secret, or for other names.
    Secret,
    /// The time of the token minus the time here, in milliseconds.
    Clock { difference_ms: i64 },
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("the password is no link token; connect with a cluster link of Meridian"),
            Self::Secret => f.write_str(
                "the secret or a name differs; give both clusters the same secret file, and each the name of the other",
            ),
            Self::Clock { difference_ms } => {
                let seconds = difference_ms.unsigned_abs() / 1000;
                let direction = if *difference_ms < 0 { "behind" } else { "ahead of" };
                write!(
                    f,
                    "the clock differs by {seconds} s: the other cluster is {direction} this one; set the clocks by NTP"
                )
            }
        }
    }
}

impl std::error::Error for TokenError {}

/// Makes a token. `now_ms` is the time since 1970 in milliseconds.
pub fn make(parties: Parties<'_>, secret: &[u8], now_ms: u64, nonce: [u8; NONCE]) -> String {
    let (ms, nonce) = (now_ms.to_string(), hex(&nonce));
    let mac = hmac::sign(&key(secret), &signed(parties, &ms, &nonce));
    format!("{VERSION}.{ms}.{nonce}.{}", hex(mac.as_ref()))
}

/// Checks a token.
///
/// # Errors
/// [`TokenError`]. The clock is compared only after the secret, which is compared in constant time.
pub fn verify(token: &[u8], parties: Parties<'_>, secret: &[u8], now_ms: u64) -> Result<(), TokenError> {
    let token = std::str::from_utf8(token).map_err(|_| TokenError::Form)?;
    let mut parts = token.split('.');
    let mut part = || parts.next().ok_or(TokenError::Form);
    let (version, ms, nonce, mac) = (part()?, part()?, part()?, part()?);
    if version != VERSION || parts.next().is_some() || nonce.len() != 2 * NONCE || unhex(nonce).is_none() {
        return Err(TokenError::Form);
    }
    if ms.is_empty() || !ms.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TokenError::Form);
    }
    let made_ms: u64 = ms.parse().map_err(|_| TokenError::Form)?;
    let mac = unhex(mac).filter(|mac| mac.len() == MAC).ok_or(TokenError::Form)?;
    hmac::verify(&key(secret), &signed(parties, ms, nonce), &mac).map_err(|_| TokenError::Secret)?;
    if made_ms.abs_diff(now_ms) > CLOCK_TOLERANCE.as_millis() as u64 {
        let difference_ms = i128::from(made_ms) - i128::from(now_ms);
        return Err(TokenError::Clock { difference_ms: i64::try_from(difference_ms).unwrap_or(i64::MAX) });
    }
    Ok(())
}

fn key(secret: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, secret)
}

/// The signed text. No name has a U+0000, so two texts with different parts differ.
fn signed(Parties { from, to }: Parties<'_>, ms: &str, nonce: &str) -> Vec<u8> {
    [CONTEXT, from, to, ms, nonce].join("\0").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    rest.is_empty().then_some(())?;
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTIES: Parties<'_> = Parties { from: "south", to: "north" };
    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW: u64 = 1_790_000_000_000;

    /// The form is part of the interface between clusters of different versions. Computed with Python's `hmac`.
    #[test]
    fn a_token_has_this_form() {
        let token = make(PARTIES, SECRET, NOW, [7; NONCE]);
        assert_eq!(token, GOLDEN);
        assert_eq!(verify(GOLDEN.as_bytes(), PARTIES, SECRET, NOW), Ok(()));
    }

    #[test]
    fn a_token_is_valid_for_its_clusters_and_secret_only() {
        let token = make(PARTIES, SECRET, NOW, [7; NONCE]);
        let check = |parties, secret: &[u8]| verify(token.as_bytes(), parties, secret, NOW);
        assert_eq!(check(Parties { from: "north", to: "south" }, SECRET), Err(TokenError::Secret));
        assert_eq!(check(Parties { from: "south", to: "east" }, SECRET), Err(TokenError::Secret));
        assert_eq!(check(PARTIES, &SECRET[1..]), Err(TokenError::Secret));
        for at in 3..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[at] = if changed[at] == b'1' { b'2' } else { b'1' };
            assert!(verify(&changed, PARTIES, SECRET, NOW).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn clocks_may_differ_by_some_minutes() {
        let tolerance = CLOCK_TOLERANCE.as_millis() as u64;
        let check = |now_ms| verify(GOLDEN.as_bytes(), PARTIES, SECRET, now_ms);
        assert_eq!((check(NOW + tolerance), check(NOW - tolerance)), (Ok(()), Ok(())));
        let late = check(NOW + tolerance + 300_000).expect_err("too late");
        assert_eq!(
            late.to_string(),
            "the clock differs by 900 s: the other cluster is behind this one; set the clocks by NTP"
        );
        let early = check(NOW - tolerance - 1000).expect_err("too early");
        assert_eq!(early, TokenError::Clock { difference_ms: 601_000 });
        assert!(matches!(check(0), Err(TokenError::Clock { .. })));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let nonce = "07".repeat(NONCE);
        let mac = "00".repeat(MAC);
        for text in [
            String::new(),
            "secret".to_owned(),
            format!("v2.1.{nonce}.{mac}"),
            format!("v1.+1.{nonce}.{mac}"),
            format!("v1..{nonce}.{mac}"),
            format!("v1.99999999999999999999999.{nonce}.{mac}"),
            format!("v1.1.{}.{mac}", "zz".repeat(NONCE)),
            format!("v1.1.07.{mac}"),
            format!("v1.1.{nonce}.{mac}0"),
            format!("v1.1.{nonce}.00"),
            format!("v1.1.{nonce}.{mac}.x"),
            format!("v1.1.{nonce}.\u{e9}{mac}"),
        ] {
            assert_eq!(verify(text.as_bytes(), PARTIES, SECRET, 1), Err(TokenError::Form), "{text}");
        }
        assert_eq!(verify(b"v1.\xff", PARTIES, SECRET, 1), Err(TokenError::Form));
    }

    const GOLDEN: &str = "v1.1790000000000.07070707070707070707070707070707.8230ca14ae3682f18933a409a6b3725e6ae306347415dc5dbb07bdb85f4a8d31";
}
