//! Server side of SCRAM-SHA-256 (RFC 5802, RFC 7677) without channel binding, from the client's first message to the
//! answer to its last. It has no connection, file or randomness; [`Challenge`] is the state between the two messages.

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};

use crate::link::{ScramRecord, ScramSource};
use crate::password_hash::{SCRAM_KEY_LEN, ScramKeys, equal_in_constant_time, hmac_sha256};

/// Authentication Method.
pub const METHOD: &str = "SCRAM-SHA-256";
/// Maximum size of a client's message in bytes.
pub const MESSAGE_MAX: usize = 4096;
/// Maximum size of a client's nonce in bytes.
pub const NONCE_MAX: usize = 256;

/// Reason why an exchange fails. None of them reveals whether the user exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The message is not a SCRAM message.
    Malformed,
    /// Channel binding, acting as another user, a mandatory extension, or a name that SASLprep refuses.
    Unsupported,
    /// The proof or its channel binding is wrong.
    Wrong,
}

/// Keys of the user who wants to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramUser {
    pub keys: ScramKeys,
    /// False for generated keys, which are never valid.
    pub known: bool,
}

/// Returns the SCRAM keys of this user, and the source; `None` when no user can use SCRAM. The first source that knows
/// the user decides. A user that does not exist, or has another kind of hash, gets a salt like the others and cannot
/// log in.
pub fn user_of<'a>(
    sources: impl Iterator<Item = &'a dyn ScramSource>,
    username: &str,
) -> Option<(ScramUser, Option<&'a dyn ScramSource>)> {
    let (mut decoy_keys, mut record, mut owner) = (None, ScramRecord::UnknownUser, None);
    for source in sources {
        // Both are computed in any case, because the time is observable.
        let (keys, found) = (source.decoy_keys(username), source.scram(username));
        decoy_keys = decoy_keys.or(keys);
        if record == ScramRecord::UnknownUser && found != ScramRecord::UnknownUser {
            (record, owner) = (found, Some(source));
        }
    }
    match record {
        ScramRecord::Keys(keys) => Some((ScramUser { keys, known: true }, owner)),
        ScramRecord::NoScramKeys | ScramRecord::UnknownUser => {
            decoy_keys.map(|keys| (ScramUser { keys, known: false }, None))
        }
    }
}

/// Parsed `client-first-message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst<'a> {
    /// User name after SASLprep.
    pub username: String,
    gs2_header: &'a str,
    bare: &'a str,
    nonce: &'a str,
}

/// Challenge that was sent, until the client answers it.
#[derive(Debug)]
pub struct Challenge {
    user: ScramUser,
    gs2_header: Box<str>,
    /// Nonces of both sides.
    nonce: Box<str>,
    /// `client-first-message-bare "," server-first-message`
    messages: Box<str>,
}

impl<'a> ClientFirst<'a> {
    /// # Errors
    /// [`Failure::Malformed`] and [`Failure::Unsupported`].
    pub fn parse(message: &'a [u8]) -> Result<Self, Failure> {
        let text = text(message)?;
        let (binding, rest) = text.split_once(',').ok_or(Failure::Malformed)?;
        let (authzid, bare) = rest.split_once(',').ok_or(Failure::Malformed)?;
        match binding {
            // With `y` the client would use channel binding if the server supported it, which it does not.
            "n" | "y" => {}
            _ if binding.starts_with("p=") => return Err(Failure::Unsupported),
            _ => return Err(Failure::Malformed),
        }
        if !authzid.is_empty() {
            return Err(if authzid.starts_with("a=") { Failure::Unsupported } else { Failure::Malformed });
        }
        let mut attributes = bare.split(',');
        let name = match attributes.next().and_then(|first| first.split_once('=')) {
            Some(("n", name)) => name,
            Some(("m", _)) => return Err(Failure::Unsupported),
            _ => return Err(Failure::Malformed),
        };
        let nonce =
            attributes.next().and_then(|second| second.strip_prefix("r=")).ok_or(Failure::Malformed)?;
        let printable = nonce.bytes().all(|byte| byte.is_ascii_graphic());
        if nonce.is_empty() || nonce.len() > NONCE_MAX || !printable || !attributes.all(is_attribute) {
            return Err(Failure::Malformed);
        }
        let name = unescaped(name).ok_or(Failure::Malformed)?;
        let username = stringprep::saslprep(&name).map_err(|_| Failure::Unsupported)?.into_owned();
        if username.is_empty() {
            return Err(Failure::Malformed);
        }
        let gs2_header = &text[..text.len() - bare.len()];
        Ok(Self { username, gs2_header, bare, nonce })
    }
}

impl Challenge {
    /// Returns the challenge and its message. `nonce` is the server's half: printable, new for each exchange, and
    /// unpredictable.
    pub fn new(first: &ClientFirst<'_>, user: ScramUser, nonce: &str) -> (Self, Vec<u8>) {
        let nonce = format!("{}{nonce}", first.nonce);
        let salt = Base64::encode_string(&user.keys.salt);
        let server_first = format!("r={nonce},s={salt},i={}", user.keys.iterations);
        let challenge = Self {
            user,
            gs2_header: first.gs2_header.into(),
            nonce: nonce.into(),
            messages: format!("{},{server_first}", first.bare).into(),
        };
        (challenge, server_first.into_bytes())
    }

    pub fn user(&self) -> &ScramUser {
        &self.user
    }

    /// Checks the answer and returns `server-final-message`. Unknown users cost the same work.
    ///
    /// # Errors
    /// [`Failure::Malformed`] and [`Failure::Wrong`].
    pub fn finish(&self, message: &[u8]) -> Result<Vec<u8>, Failure> {
        let text = text(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(Failure::Malformed)?;
        let mut attributes = without_proof.split(',');
        let binding =
            attributes.next().and_then(|first| first.strip_prefix("c=")).ok_or(Failure::Malformed)?;
        let nonce =
            attributes.next().and_then(|second| second.strip_prefix("r=")).ok_or(Failure::Malformed)?;
        if !attributes.all(is_attribute) {
            return Err(Failure::Malformed);
        }
        let binding = Base64::decode_vec(binding).map_err(|_| Failure::Malformed)?;
        let mut proof_bytes = [0; SCRAM_KEY_LEN];
        match Base64::decode(proof, &mut proof_bytes) {
            Ok(bytes) if bytes.len() == SCRAM_KEY_LEN => {}
            _ => return Err(Failure::Malformed),
        }
        let keys = &self.user.keys;
        let auth_message: [&[u8]; 3] = [self.messages.as_bytes(), b",", without_proof.as_bytes()];
        let mut client_key = hmac_sha256(&keys.stored_key, &auth_message);
        client_key.iter_mut().zip(proof_bytes).for_each(|(byte, proof)| *byte ^= proof);
        let stored_key: [u8; SCRAM_KEY_LEN] = Sha256::digest(client_key).into();
        let server_signature = hmac_sha256(&keys.server_key, &auth_message);
        let proven = equal_in_constant_time(&stored_key, &keys.stored_key);
        let bound = binding == self.gs2_header.as_bytes();
        if proven && bound && nonce == &*self.nonce && self.user.known {
            Ok(format!("v={}", Base64::encode_string(&server_signature)).into_bytes())
        } else {
            Err(Failure::Wrong)
        }
    }
}

fn text(message: &[u8]) -> Result<&str, Failure> {
    if message.len() > MESSAGE_MAX {
        return Err(Failure::Malformed);
    }
    std::str::from_utf8(message).map_err(|_| Failure::Malformed)
}

/// Returns whether `text` is `ALPHA "=" value`: unknown extensions are ignored.
fn is_attribute(text: &str) -> bool {
    matches!(text.as_bytes(), [name, b'=', _, ..] if name.is_ascii_alphabetic()) && !text.contains('\0')
}

/// Decodes a `saslname`: `=2C` is a comma and `=3D` is `=`, which cannot occur otherwise.
fn unescaped(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(2)? {
            ("2C", rest) => (',', rest),
            ("3D", rest) => ('=', rest),
            _ => return None,
        };
        out.push(character);
        out.push_str(rest);
    }
    Some(out)
}

#[cfg(test)]
mod tests;
