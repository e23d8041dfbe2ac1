//! Token in its compact form (RFC 7515, 7.1).

use base64ct::{Base64UrlUnpadded, Encoding};
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::refusal::Refusal;
use crate::json;

/// Maximum size of a token in bytes.
pub const TOKEN_MAX: usize = 16 << 10;
/// Maximum size of a `kid` in bytes.
const KID_MAX: usize = 256;

/// Parsed token, not verified yet.
#[derive(Debug)]
pub struct Token<'a> {
    pub algorithm: Algorithm,
    pub key_id: Option<Box<str>>,
    /// Signed part: header and payload as they were sent.
    pub signed: &'a str,
    pub signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> Token<'a> {
    /// Returns whether the bytes can only be meant as a token: three parts in the base64url alphabet, the first of
    /// which begins with `{`.
    pub fn resembles(bytes: &[u8]) -> bool {
        // `{` is 'e' and two bits of the next character, both set.
        let object = matches!(bytes, [b'e', b'w'..=b'z' | b'0'..=b'9' | b'-' | b'_', ..]);
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        object && bytes.iter().all(is_allowed) && bytes.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// # Errors
    /// The text is not a token, is too long, or asks for an unknown extension.
    pub fn parse(text: &'a str) -> Result<Self, Refusal> {
        if text.len() > TOKEN_MAX {
            return Err(Refusal::TooLong { len: text.len(), max: TOKEN_MAX });
        }
        let parts = Refusal::Malformed("it does not have three parts");
        let (signed, signature) = text.rsplit_once('.').ok_or(parts.clone())?;
        let (header, payload) = signed.split_once('.').ok_or(parts.clone())?;
        if payload.contains('.') {
            return Err(parts);
        }
        let header =
            object(header).ok_or(Refusal::Malformed("the header is not a JSON object in base64url"))?;
        // Critical extensions must be understood, and none is (RFC 7515, 4.1.11).
        if header.contains_key("crit") {
            return Err(Refusal::Malformed("it has a `crit`"));
        }
        let Some(Value::String(algorithm)) = header.get("alg") else {
            return Err(Refusal::Malformed("it has no `alg`"));
        };
        let algorithm = Algorithm::parse(algorithm).ok_or(Refusal::AlgorithmUnknown)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) if id.len() <= KID_MAX => Some(id.as_str().into()),
            Some(_) => return Err(Refusal::Malformed("its `kid` is not a string, or is too long")),
        };
        // `jwk`, `jku`, `x5u`, `x5c` and the like let a token name its key. They are ignored.
        let signature = Base64UrlUnpadded::decode_vec(signature)
            .map_err(|_| Refusal::Malformed("the signature is not base64url"))?;
        if signature.is_empty() {
            return Err(Refusal::Malformed("it has no signature"));
        }
        Ok(Self { algorithm, key_id, signed, signature, payload })
    }

    /// Returns the claims. To be used after the signature was verified.
    ///
    /// # Errors
    /// The payload is not a JSON object.
    pub fn claims(&self) -> Result<Map<String, Value>, Refusal> {
        object(self.payload).ok_or(Refusal::Malformed("the payload is not a JSON object in base64url"))
    }
}

fn object(part: &str) -> Option<Map<String, Value>> {
    json::object(&Base64UrlUnpadded::decode_vec(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> String {
        Base64UrlUnpadded::encode_string(text.as_bytes())
    }

    fn refusal(header: &str) -> Refusal {
        Token::parse(&format!("{}.{}.AAAA", part(header), part("{}"))).unwrap_err()
    }

    #[test]
    fn a_token_is_distinguished_from_a_password_by_its_form() {
        for header in ["{\"alg\":1}", "{ }", "{\n}", "{}", "{\t\"a\":1}"] {
            assert!(Token::resembles(format!("{}.{}.", part(header), part("{}")).as_bytes()), "{header}");
        }
        for text in
            ["", "e", "eyJ", "eyJ.b", "eyJ.b.c.d", "eyJ.b.c.d.e", "a.b.c", "eyJ.b c.d", "eyJ.b=.c", "ea.b.c"]
        {
            assert!(!Token::resembles(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn headers_that_are_not_understood_are_refused() {
        assert_eq!(refusal(r#"{"alg":"none"}"#), Refusal::AlgorithmUnknown);
        for alg in ["None", "NONE", "hs256", "HS256 ", "ES512", "ES256K", "", "HS256\\u0000"] {
            assert_eq!(refusal(&format!(r#"{{"alg":"{alg}"}}"#)), Refusal::AlgorithmUnknown, "{alg}");
        }
        for header in [
            "{}",
            r#"{"alg":null}"#,
            r#"{"alg":["HS256"]}"#,
            r#"{"alg":"HS256","crit":["exp"]}"#,
            r#"{"alg":"HS256","crit":[]}"#,
            r#"{"alg":"HS256","alg":"HS256"}"#,
            r#"{"alg":"HS256","kid":7}"#,
            r#"{"alg":"HS256","kid":null}"#,
            r#"["alg","HS256"]"#,
        ] {
            assert!(matches!(refusal(header), Refusal::Malformed(_)), "{header}");
        }
        let long = format!(r#"{{"alg":"HS256","kid":"{}"}}"#, "k".repeat(KID_MAX + 1));
        assert!(matches!(refusal(&long), Refusal::Malformed(_)));
    }

    /// base64url has one valid form here: without padding, without other characters, and with unused bits of 0.
    #[test]
    fn a_signature_has_one_valid_form() {
        let header = part(r#"{"alg":"HS256"}"#);
        let parse =
            |signature: &str| Token::parse(&format!("{header}.e30.{signature}")).map(|token| token.signature);
        assert_eq!(parse("AA"), Ok(vec![0]));
        for other in ["", "A", "AB", "AA=", "AA==", "AA\n", " AA", "A+", "A/", "AAAAA", "AAA."] {
            assert!(parse(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_token_has_a_maximum_size() {
        let start = format!("{}.e30.", part(r#"{"alg":"HS256"}"#));
        let room = TOKEN_MAX - start.len();
        let fits = format!("{start}{}", "A".repeat(room - usize::from(room % 4 == 1)));
        assert!(Token::parse(&fits).is_ok());
        let refused = Token::parse(&format!("{start}{}", "A".repeat(room + 1))).unwrap_err();
        assert_eq!(refused, Refusal::TooLong { len: TOKEN_MAX + 1, max: TOKEN_MAX });
    }
}
