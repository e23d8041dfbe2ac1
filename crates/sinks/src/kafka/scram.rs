//! Client side of SCRAM (RFC 5802, RFC 7677) without channel binding.

use std::num::NonZeroU32;

use base64ct::{Base64, Encoding as _};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac, pbkdf2};

/// Range of iterations. A server with fewer wants a weak proof, and one with more occupies the processor.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;
const NONCE_LEN: usize = 24;
/// Header without channel binding, and its Base64 form.
const GS2_HEADER: &str = "n,,";
const GS2_HEADER_BASE64: &str = "biws";

/// Hash function.
#[derive(Clone, Copy)]
pub enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }
}

/// A login whose first message is sent.
pub struct Scram<'a> {
    hash: Hash,
    password: &'a str,
    nonce: String,
    first_bare: String,
}

/// Expected proof of the server, which knows the password, too.
pub struct ServerProof {
    key: hmac::Key,
    message: String,
}

impl<'a> Scram<'a> {
    /// Begins a login with a random nonce.
    ///
    /// # Errors
    /// A sentence.
    pub fn new(hash: Hash, username: &str, password: &'a str) -> Result<Self, String> {
        let mut random = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut random).map_err(|_| "no random numbers from the system".to_owned())?;
        Self::with_nonce(hash, username, password, Base64::encode_string(&random))
    }

    fn with_nonce(hash: Hash, username: &str, password: &'a str, nonce: String) -> Result<Self, String> {
        let username = stringprep::saslprep(username).map_err(|error| format!("username: {error}"))?;
        let username = username.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={username},r={nonce}");
        Ok(Self { hash, password, nonce, first_bare })
    }

    pub fn first(&self) -> String {
        format!("{GS2_HEADER}{}", self.first_bare)
    }

    /// Returns the last message of the client.
    ///
    /// # Errors
    /// A sentence about the message of the server.
    pub fn last(&self, server_first: &[u8]) -> Result<(String, ServerProof), String> {
        let text = std::str::from_utf8(server_first).map_err(|_| malformed())?;
        let mut parts = text.split(',');
        let mut part =
            |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or_else(malformed);
        let (nonce, salt, iterations) = (part("r=")?, part("s=")?, part("i=")?);
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the server answered another login (wrong nonce)".to_owned());
        }
        let salt = Base64::decode_vec(salt).map_err(|_| malformed())?;
        let iterations = iterations.parse::<u32>().map_err(|_| malformed())?;
        if !ITERATIONS.contains(&iterations) {
            return Err(format!(
                "the server asks for {iterations} iterations of SCRAM; set from {} to {} there",
                ITERATIONS.start(),
                ITERATIONS.end()
            ));
        }
        let without_proof = format!("c={GS2_HEADER_BASE64},r={nonce}");
        let message = format!("{},{text},{without_proof}", self.first_bare);
        let (proof, server) = self.proofs(&salt, iterations, &message)?;
        Ok((format!("{without_proof},p={}", Base64::encode_string(&proof)), server))
    }

    /// Returns the proofs of client and server.
    fn proofs(&self, salt: &[u8], iterations: u32, message: &str) -> Result<(Vec<u8>, ServerProof), String> {
        let iterations = NonZeroU32::new(iterations).ok_or_else(malformed)?;
        let password = stringprep::saslprep(self.password)
            .map_err(|_| "password_file: the password has characters that SASLprep forbids".to_owned())?;
        let algorithm = self.hash.hmac();
        let mut salted = vec![0; algorithm.digest_algorithm().output_len()];
        pbkdf2::derive(self.hash.pbkdf2(), iterations, salt, password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(algorithm, &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(algorithm.digest_algorithm(), client_key.as_ref());
        let signature = hmac::sign(&hmac::Key::new(algorithm, stored_key.as_ref()), message.as_bytes());
        let proof =
            client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, bits)| key ^ bits).collect();
        let server_key = hmac::sign(&salted, b"Server Key");
        let key = hmac::Key::new(algorithm, server_key.as_ref());
        Ok((proof, ServerProof { key, message: message.to_owned() }))
    }
}

impl ServerProof {
    /// Checks the last message of the server.
    ///
    /// # Errors
    /// The server does not know the password, or has refused the login.
    pub fn check(&self, server_last: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(server_last).map_err(|_| malformed())?;
        if let Some(error) = text.strip_prefix("e=") {
            return Err(format!("the server refuses the login: {}", error.escape_debug()));
        }
        let proof = text.split(',').next().and_then(|part| part.strip_prefix("v=")).ok_or_else(malformed)?;
        let proof = Base64::decode_vec(proof).map_err(|_| malformed())?;
        hmac::verify(&self.key, self.message.as_bytes(), &proof).map_err(|_| {
            "the server does not know the password of the user; it may be another server".to_owned()
        })
    }
}

fn malformed() -> String {
    "the server sent a message that is not SCRAM".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Example of RFC 7677, section 3.
    #[test]
    fn the_example_of_the_standard_is_reproduced() {
        let scram =
            Scram::with_nonce(Hash::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO".to_owned()).unwrap();
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let first = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let (last, server) = scram.last(first.as_bytes()).unwrap();
        let expected = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(last, expected);
        server.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
        assert!(server.check(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").is_err());
        assert!(server.check(b"e=invalid-proof").unwrap_err().contains("invalid-proof"));
    }

    #[test]
    fn messages_of_a_wrong_server_are_refused() {
        let scram = Scram::with_nonce(Hash::Sha512, "a,b=c", "x", "abc".to_owned()).unwrap();
        assert_eq!(scram.first(), "n,,n=a=2Cb=3Dc,r=abc");
        for message in [
            &b""[..],
            b"\xff",
            b"r=abcd",
            b"r=abc,s=W22Z,i=4096",
            b"r=xyzabc,s=W22Z,i=4096",
            b"r=abcd,s=!,i=4096",
            b"r=abcd,s=W22Z,i=x",
            b"r=abcd,s=W22Z,i=1",
            b"r=abcd,s=W22Z,i=4000000000",
            b"m=ext,r=abcd,s=W22Z,i=4096",
        ] {
            assert!(scram.last(message).is_err(), "{}", message.escape_ascii());
        }
    }
}
