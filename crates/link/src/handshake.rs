//! Handshake: two nodes prove to each other that they know the cluster's secret, and agree on a version. All integers
//! are little endian:
//!
//! ```text
//! dialer    "MLNK" | length u16 | version_min u16, version_max u16, features u64, cluster 16, link 16, nonce 32,
//!                                 channel u8, channels u8, name (length u8), descriptor (length u16)
//! acceptor  "MLNK" | length u16 | 0 u8, version u16, features u64, cluster 16, link 16, nonce 32, name (length u8),
//!                                 descriptor (length u16) | proof 32
//!       or  "MLNK" | length u16 | reason u8, not 0
//! dialer    proof 32
//!       or  "MLNK" | length u16 | reason u8, not 0
//! ```
//!
//! A proof is HMAC-SHA-256 with the secret over the role of the prover and all bytes exchanged before it. Fields that a
//! later version appends are ignored. A message that ends before its descriptor has an empty one. The secret keeps
//! unknown nodes out; it does not hide the traffic. Use TLS between sites.
//!
//! A dialer with `channels` 0 wants no channel but an *introduction*: the two nodes learn each other's names and
//! descriptors, and the connection ends. Only in an introduction may the two names be the same: that is how a node
//! finds its own address.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use ring::hmac;

use crate::error::{PeerError, Refusal};
use crate::lane::LANES_MAX;
use crate::mutation::{Mutation, mutated};
use crate::output::Output;

/// Newest version of the protocol that this node speaks, and the oldest. Version 2 has lanes for shards
/// ([`Class::Agreement`](crate::Class::Agreement) and [`Class::Requests`](crate::Class::Requests)).
pub const VERSION: u16 = 2;
pub const VERSION_MIN: u16 = 1;

/// Maximum connections of one link: with more, some would carry no lane.
pub const CHANNELS_MAX: u8 = 1 + LANES_MAX;

const MAGIC: &[u8; 4] = b"MLNK";
const NONCE: usize = 32;
const PROOF: usize = 32;
/// Maximum length of a message after magic and length, in bytes.
const BODY_MAX: usize = 1024;
/// Maximum length of an [`Identity::descriptor`], in bytes.
pub const DESCRIPTOR_MAX: usize = 512;
const _: () = assert!(4 + 8 + 16 + 16 + NONCE + 2 + (1 + 255) + (2 + DESCRIPTOR_MAX) <= BODY_MAX);
const PREFIX: usize = 6;

/// Random id of one [`Link`](crate::Link). A peer whose link has another id than before has forgotten the state of the
/// link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub u128);

/// Secret that all nodes of a cluster share, and nobody else knows. It is never shown.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

impl Secret {
    pub fn new(secret: &[u8]) -> Self {
        Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Identity that a node announces in a handshake.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of 1 to 255 bytes. Longer names are cut at a character.
    pub name: Box<str>,
    pub cluster: [u8; 16],
    /// Bits of the features of this node beyond its version. Each node learns the features that both have.
    pub features: u64,
    /// Node descriptor. It is authenticated: a peer that knows the secret can trust that this node sent it. At most
    /// [`DESCRIPTOR_MAX`] bytes, opaque to this crate. It is not secret: it is sent before the other side has proved
    /// anything.
    pub descriptor: Bytes,
}

/// A peer that has proved that it knows the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    pub name: Box<str>,
    pub link: LinkId,
    pub version: u16,
    /// Features that both nodes have.
    pub features: u64,
    /// Index of the channel, and the number of channels of the link. 0 of 0 is an introduction, which makes no channel.
    pub channel: u8,
    pub channels: u8,
    /// The peer's [`Identity::descriptor`].
    pub descriptor: Bytes,
}

impl Established {
    /// Returns whether the connection is only an introduction.
    pub fn is_introduction(&self) -> bool {
        self.channels == 0
    }
}

/// Handshake of one connection between two nodes.
#[derive(Debug)]
pub struct Handshake {
    secret: Secret,
    stage: Stage,
    pending: BytesMut,
    /// Name that the dialer has announced. Nothing proves it.
    claimed_name: Option<Box<str>>,
}

#[derive(Debug)]
enum Stage {
    /// The dialer has sent its identity.
    Dialed {
        hello: Bytes,
        channel_of_link: (u8, u8),
        identity: Identity,
    },
    /// The acceptor waits for the dialer's identity. Its link is not known before the peer's name.
    Accepting {
        identity: Identity,
        nonce: [u8; NONCE],
    },
    /// The acceptor knows the dialer's announced name, and asks for the link.
    Named {
        established: Established,
        hello: Bytes,
        identity: Identity,
        nonce: [u8; NONCE],
    },
    /// The acceptor has answered and waits for the proof.
    Proving {
        established: Established,
        transcript: Bytes,
    },
    Finished,
}

/// Progress of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes must arrive.
    NeedsMore,
    /// The acceptor needs its link to this peer, which has proved nothing yet: [`Handshake::answer`].
    Named(Box<str>),
    /// The handshake is complete. The rest of the input belongs to the channel.
    Done(Box<Established>),
}

impl Handshake {
    /// Starts a connection as number `channel` of `channels` of the link with id `link`, or with 0 of 0 an
    /// introduction. `nonce` is random.
    ///
    /// # Panics
    /// The descriptor is longer than [`DESCRIPTOR_MAX`].
    pub fn dial(
        identity: &Identity,
        secret: Secret,
        link: LinkId,
        channel_of_link: (u8, u8),
        nonce: [u8; NONCE],
        out: &mut Output,
    ) -> Self {
        let mut body = Vec::with_capacity(128);
        body.extend(VERSION_MIN.to_le_bytes());
        body.extend(VERSION.to_le_bytes());
        put_identity(identity, link, &nonce, &mut body);
        body.extend([channel_of_link.0, channel_of_link.1]);
        put_name(&identity.name, &mut body);
        put_descriptor(&identity.descriptor, &mut body);
        let hello = message(&body);
        out.put(&hello);
        let stage = Stage::Dialed { hello, channel_of_link, identity: identity.clone() };
        Self { secret, stage, pending: BytesMut::new(), claimed_name: None }
    }

    /// Creates the acceptor's side, which waits for a dialer. `nonce` is random.
    pub fn accept(identity: &Identity, secret: Secret, nonce: [u8; NONCE]) -> Self {
        let stage = Stage::Accepting { identity: identity.clone(), nonce };
        Self { secret, stage, pending: BytesMut::new(), claimed_name: None }
    }

    /// Handles received bytes. Bytes that belong to the handshake are taken from `input`.
    ///
    /// # Errors
    /// The connection must be closed after `out` was written.
    pub fn input(&mut self, input: &mut Bytes, out: &mut Output) -> Result<Progress, PeerError> {
        match std::mem::replace(&mut self.stage, Stage::Finished) {
            Stage::Dialed { hello, channel_of_link, identity } => {
                let Some(answer) = self.message(input, PROOF)? else {
                    self.stage = Stage::Dialed { hello, channel_of_link, identity };
                    return Ok(Progress::NeedsMore);
                };
                let answered = self.answered(&hello, &answer, channel_of_link, &identity, out);
                match &answered {
                    Err(PeerError::WrongSecret) => out.put(&refusal(Refusal::Secret)),
                    Err(PeerError::Refuses { reason }) => out.put(&refusal(*reason)),
                    _ => {}
                }
                Ok(Progress::Done(Box::new(answered?)))
            }
            Stage::Accepting { identity, nonce } => {
                let hello = match self.message(input, 0) {
                    Ok(Some(hello)) => hello,
                    Ok(None) => {
                        self.stage = Stage::Accepting { identity, nonce };
                        return Ok(Progress::NeedsMore);
                    }
                    Err(error) => {
                        if error == PeerError::SpeaksTls {
                            out.put(&refusal(Refusal::NoTls));
                        }
                        return Err(error);
                    }
                };
                let established = match said_by_dialer(&hello, &identity, &mut self.claimed_name) {
                    Ok(established) => established,
                    Err(error) => {
                        if let PeerError::Refuses { reason } = &error {
                            out.put(&refusal(*reason));
                        }
                        return Err(error);
                    }
                };
                let name = established.name.clone();
                self.stage = Stage::Named { established, hello, identity, nonce };
                Ok(Progress::Named(name))
            }
            named @ Stage::Named { .. } => {
                self.stage = named;
                Ok(Progress::NeedsMore)
            }
            Stage::Proving { established, transcript } => {
                self.fill(input, PROOF);
                // A proof is longer, and begins like this only by chance: this message is the dialer's reason for not
                // sending a proof.
                if let [said @ .., reason] = &self.pending[..]
                    && said == [&MAGIC[..], &[1, 0]].concat()
                    && let Some(reason) = Refusal::of_byte(*reason)
                {
                    return Err(PeerError::RefusedBy { reason });
                }
                if self.pending.len() < PROOF {
                    self.stage = Stage::Proving { established, transcript };
                    return Ok(Progress::NeedsMore);
                }
                self.verify(b"dialer", &transcript, &self.pending)?;
                Ok(Progress::Done(Box::new(established)))
            }
            Stage::Finished => Err(PeerError::BadHandshake { what: "bytes after its end" }),
        }
    }

    /// Returns the name that the dialer has announced, even if the handshake failed.
    pub fn claimed_name(&self) -> Option<&str> {
        self.claimed_name.as_deref()
    }

    /// Returns the identity of the dialer that was named. Nothing proves it yet.
    pub fn named(&self) -> Option<&Established> {
        match &self.stage {
            Stage::Named { established, .. } => Some(established),
            Stage::Dialed { .. } | Stage::Accepting { .. } | Stage::Proving { .. } | Stage::Finished => None,
        }
    }

    /// Refuses the peer that was named, and writes the reason to `out`. The connection must be closed after `out` was
    /// written.
    pub fn refuse(&mut self, reason: Refusal, out: &mut Output) -> PeerError {
        out.put(&refusal(reason));
        self.pending.clear();
        PeerError::Refuses { reason }
    }

    /// Sets the acceptor's side of the link to the peer that was named. The acceptor answers, and handles the bytes
    /// that arrived meanwhile.
    ///
    /// # Errors
    /// The same as [`Self::input`].
    pub fn answer(
        &mut self,
        link: LinkId,
        input: &mut Bytes,
        out: &mut Output,
    ) -> Result<Progress, PeerError> {
        match std::mem::replace(&mut self.stage, Stage::Finished) {
            Stage::Named { established, hello, identity, nonce } => {
                let mut body = Vec::with_capacity(128);
                body.push(0);
                body.extend(established.version.to_le_bytes());
                put_identity(&identity, link, &nonce, &mut body);
                put_name(&identity.name, &mut body);
                put_descriptor(&identity.descriptor, &mut body);
                let answer = message(&body);
                let transcript = Bytes::from([&hello[..], &answer[..]].concat());
                out.put(&answer);
                out.put(self.proof(b"acceptor", &transcript).as_ref());
                self.stage = Stage::Proving { established, transcript };
            }
            other => self.stage = other,
        }
        self.input(input, out)
    }

    fn answered(
        &self,
        hello: &Bytes,
        answer: &Bytes,
        (channel, channels): (u8, u8),
        identity: &Identity,
        out: &mut Output,
    ) -> Result<Established, PeerError> {
        // A refusal carries no proof.
        let reason = answer[PREFIX];
        if reason != 0 {
            let reason = Refusal::of_byte(reason).ok_or(PeerError::BadHandshake { what: "no reason" })?;
            return Err(PeerError::RefusedBy { reason });
        }
        let (said, proof) = answer.split_at(answer.len() - PROOF);
        let transcript = [&hello[..], said].concat();
        self.verify(b"acceptor", &transcript, proof)?;
        let mut reader = Reader(&said[PREFIX + 1..]);
        let version = u16::from_le_bytes(reader.take()?);
        let (theirs, cluster, link) = reader.identity()?;
        let (name, descriptor) = (reader.name()?, reader.descriptor()?);
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(PeerError::Refuses { reason: Refusal::Version });
        }
        if cluster != identity.cluster {
            return Err(PeerError::Refuses { reason: Refusal::Cluster });
        }
        if name == identity.name && channels > 0 {
            return Err(PeerError::Refuses { reason: Refusal::OwnName });
        }
        out.put(self.proof(b"dialer", &transcript).as_ref());
        let features = identity.features & theirs;
        Ok(Established { name, link, version, features, channel, channels, descriptor })
    }

    fn proof(&self, who: &[u8], transcript: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.secret.0);
        context.update(who);
        context.update(transcript);
        context.sign()
    }

    fn verify(&self, who: &[u8], transcript: &[u8], proof: &[u8]) -> Result<(), PeerError> {
        if mutated(Mutation::SkipProof) {
            return Ok(());
        }
        let said = [who, transcript].concat();
        hmac::verify(&self.secret.0, &said, proof).map_err(|_| PeerError::WrongSecret)
    }

    /// Takes a whole message, with the bytes after its body unless it is a refusal.
    fn message(&mut self, input: &mut Bytes, tail: usize) -> Result<Option<Bytes>, PeerError> {
        self.fill(input, PREFIX);
        let known = self.pending.len().min(MAGIC.len());
        if self.pending[..known] != MAGIC[..known] {
            return Err(if is_tls(&self.pending) { PeerError::SpeaksTls } else { PeerError::NotALink });
        }
        if self.pending.len() < PREFIX {
            return Ok(None);
        }
        let length = usize::from(u16::from_le_bytes([self.pending[4], self.pending[5]]));
        if length == 0 || length > BODY_MAX {
            return Err(PeerError::BadHandshake { what: "a length out of range" });
        }
        self.fill(input, PREFIX + 1);
        let is_refusal = tail > 0 && self.pending.get(PREFIX).is_some_and(|reason| *reason != 0);
        let whole = PREFIX + length + if is_refusal { 0 } else { tail };
        self.fill(input, whole);
        if self.pending.len() < whole {
            return Ok(None);
        }
        Ok(Some(std::mem::take(&mut self.pending).freeze()))
    }

    fn fill(&mut self, input: &mut Bytes, until: usize) {
        let missing = until.saturating_sub(self.pending.len()).min(input.len());
        self.pending.extend_from_slice(&input[..missing]);
        input.advance(missing);
    }
}

/// Returns whether a connection that begins with these bytes can be one of this protocol.
pub fn is_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Returns whether these are the first bytes of TLS. A dialer with TLS sends a hello; an acceptor with TLS sends an
/// alert to a dialer without it.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 3, ..])
}

/// Encodes the message that replaces an answer or a proof when the peer is refused.
pub fn refusal(reason: Refusal) -> Bytes {
    message(&[reason.byte()])
}

fn said_by_dialer(
    hello: &Bytes,
    identity: &Identity,
    claimed_name: &mut Option<Box<str>>,
) -> Result<Established, PeerError> {
    let mut reader = Reader(&hello[PREFIX..]);
    let (oldest, newest) = (u16::from_le_bytes(reader.take()?), u16::from_le_bytes(reader.take()?));
    let refuse = |reason| Err(PeerError::Refuses { reason });
    if oldest > VERSION || newest < VERSION_MIN || oldest > newest {
        return refuse(Refusal::Version);
    }
    let (features, cluster, link) = reader.identity()?;
    let [channel, channels] = reader.take()?;
    let (name, descriptor) = (reader.name()?, reader.descriptor()?);
    *claimed_name = Some(name.clone());
    let is_introduction = (channel, channels) == (0, 0);
    if cluster != identity.cluster {
        return refuse(Refusal::Cluster);
    }
    if name == identity.name && !is_introduction {
        return refuse(Refusal::OwnName);
    }
    if (channel >= channels && !is_introduction) || channels > CHANNELS_MAX {
        return refuse(Refusal::Channel);
    }
    let (version, features) = (newest.min(VERSION), features & identity.features);
    Ok(Established { name, link, version, features, channel, channels, descriptor })
}

fn put_identity(identity: &Identity, link: LinkId, nonce: &[u8; NONCE], body: &mut Vec<u8>) {
    body.extend(identity.features.to_le_bytes());
    body.extend(identity.cluster);
    body.extend(link.0.to_le_bytes());
    body.extend(nonce);
}

fn put_name(name: &str, body: &mut Vec<u8>) {
    let end = name.floor_char_boundary(255);
    body.push(end as u8);
    body.extend(&name.as_bytes()[..end]);
}

fn put_descriptor(descriptor: &[u8], body: &mut Vec<u8>) {
    assert!(descriptor.len() <= DESCRIPTOR_MAX, "a descriptor of {} bytes", descriptor.len());
    body.extend((descriptor.len() as u16).to_le_bytes());
    body.extend(descriptor);
}

fn message(body: &[u8]) -> Bytes {
    let mut message = Vec::with_capacity(PREFIX + body.len());
    message.extend(MAGIC);
    message.extend((body.len() as u16).to_le_bytes());
    message.extend(body);
    message.into()
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], PeerError> {
        let (taken, rest) =
            self.0.split_first_chunk::<N>().ok_or(PeerError::BadHandshake { what: "too little" })?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Reads features, cluster and link. The nonce is skipped: it only makes each proof unique.
    fn identity(&mut self) -> Result<(u64, [u8; 16], LinkId), PeerError> {
        let features = u64::from_le_bytes(self.take()?);
        let cluster = self.take()?;
        let link = LinkId(u128::from_le_bytes(self.take()?));
        self.take::<NONCE>()?;
        Ok((features, cluster, link))
    }

    fn name(&mut self) -> Result<Box<str>, PeerError> {
        let [length] = self.take()?;
        let bytes =
            self.0.get(..usize::from(length)).ok_or(PeerError::BadHandshake { what: "too little" })?;
        let name = std::str::from_utf8(bytes)
            .map_err(|_| PeerError::BadHandshake { what: "a name that is not UTF-8" })?;
        if name.is_empty() {
            return Err(PeerError::BadHandshake { what: "an empty name" });
        }
        self.0 = &self.0[usize::from(length)..];
        Ok(name.into())
    }

    fn descriptor(&mut self) -> Result<Bytes, PeerError> {
        // Nodes that have no descriptors send nothing after the name.
        if self.0.is_empty() {
            return Ok(Bytes::new());
        }
        let length = usize::from(u16::from_le_bytes(self.take()?));
        if length > DESCRIPTOR_MAX {
            return Err(PeerError::BadHandshake { what: "a descriptor longer than the maximum" });
        }
        let (descriptor, rest) =
            self.0.split_at_checked(length).ok_or(PeerError::BadHandshake { what: "too little" })?;
        self.0 = rest;
        Ok(Bytes::copy_from_slice(descriptor))
    }
}

#[cfg(test)]
mod tests;
