//! Two nodes prove to each other that they know the cluster's secret, and agree on a version. Little endian:
//!
//! ```text
//! dialer    "MLNK" | length u16 | version_min u16, version_max u16, features u64, cluster 16, link 16, nonce 32,
//!                                 channel u8, channels u8, name (length u8), card (length u16)
//! acceptor  "MLNK" | length u16 | 0 u8, version u16, features u64, cluster 16, link 16, nonce 32, name (length u8),
//!                                 card (length u16) | proof 32
//!       or  "MLNK" | length u16 | reason u8, not 0
//! dialer    proof 32
//!       or  "MLNK" | length u16 | reason u8, not 0
//! ```
//!
//! A proof is HMAC-SHA-256 with the secret over who proves and all that was said before it. Fields that a later version adds behind
//! these are ignored, and a message that ends before its card has an empty one. The secret keeps strangers out; it does not hide what is
//! sent: between sites belongs TLS.
//!
//! Who dials with `channels` 0 wants no channel but an *introduction*: the two learn each other's names and cards, and the connection
//! ends. For that alone the two names may be the same: a node finds its own address so.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use ring::hmac;

use crate::error::{PeerError, Refusal};
use crate::lane::LANES_MAX;
use crate::mutation::{Mutation, mutated};
use crate::output::Output;

/// The newest version of the protocol that this node speaks, and the oldest.
pub const VERSION: u16 = 1;
pub const VERSION_MIN: u16 = 1;

/// Connections of one link: with more, some would carry no lane.
pub const CHANNELS_MAX: u8 = 1 + LANES_MAX;

const MAGIC: &[u8; 4] = b"MLNK";
const NONCE: usize = 32;
const PROOF: usize = 32;
/// Of what follows magic and length.
const BODY_MAX: usize = 1024;
/// Bytes of an [`Identity::descriptor`].
pub const DESCRIPTOR_MAX: usize = 512;
const _: () = assert!(4 + 8 + 16 + 16 + NONCE + 2 + (1 + 255) + (2 + DESCRIPTOR_MAX) <= BODY_MAX);
const PREFIX: usize = 6;

/// Of one [`Link`](crate::Link), random. A peer whose link has another one than before has forgotten all that was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkId(pub u128);

/// What every node of a cluster knows and nobody else. Not shown anywhere.
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

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// 1 to 255 bytes; longer ones are cut at a character.
    pub name: Box<str>,
    pub cluster: [u8; 16],
    /// Bits of what this node can do beyond its version. Both know what both can.
    pub features: u64,
    /// What it says of itself to those who know the secret, who are sure that it is this node's. At most [`DESCRIPTOR_MAX`] bytes, opaque to
    /// this crate. It is no secret: it goes out before the other side has proved anything.
    pub descriptor: Bytes,
}

/// A peer that has proved itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    pub name: Box<str>,
    pub link: LinkId,
    pub version: u16,
    /// What both can do.
    pub features: u64,
    /// Which of how many connections of the link this is; 0 of 0 is an introduction, after which there is none.
    pub channel: u8,
    pub channels: u8,
    /// [`Identity::descriptor`].
    pub descriptor: Bytes,
}

impl Established {
    /// Whether the two only wanted to know who the other is.
    pub fn is_introduction(&self) -> bool {
        self.channels == 0
    }
}

/// The beginning of one connection between two nodes.
#[derive(Debug)]
pub struct Handshake {
    secret: Secret,
    stage: Stage,
    pending: BytesMut,
    /// As whom the dialer has introduced itself, of which nothing is proved.
    claimed_name: Option<Box<str>>,
}

#[derive(Debug)]
enum Stage {
    /// The dialer has said who it is.
    Dialed {
        hello: Bytes,
        channel_of_link: (u8, u8),
        identity: Identity,
    },
    /// The acceptor waits for the dialer to say who it is. Its link is known only when the peer's name is.
    Accepting {
        identity: Identity,
        nonce: [u8; NONCE],
    },
    /// The acceptor knows who the dialer says to be, and asks for the link.
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

/// How far a handshake is.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes have to come.
    NeedsMore,
    /// The acceptor needs its link to this peer, which has proved nothing yet: [`Handshake::answer`].
    Named(Box<str>),
    /// What is left of the input belongs to the channel.
    Done(Box<Established>),
}

impl Handshake {
    /// Begins a connection as the `channel`th of `channels` of the link with the id `link`, or with 0 of 0 an introduction. `nonce` is
    /// random.
    ///
    /// # Panics
    /// The card is longer than [`DESCRIPTOR_MAX`].
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

    /// Waits for a peer that dials. `nonce` is random.
    pub fn accept(identity: &Identity, secret: Secret, nonce: [u8; NONCE]) -> Self {
        let stage = Stage::Accepting { identity: identity.clone(), nonce };
        Self { secret, stage, pending: BytesMut::new(), claimed_name: None }
    }

    /// Bytes have come; those that belong to the handshake are taken from `input`.
    ///
    /// # Errors
    /// The connection is to be closed, after `out` was written.
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
                // No proof is as short, and none begins so but by chance: the dialer says why it sends none.
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

    /// The name that the dialer has said, whatever came of it.
    pub fn claimed_name(&self) -> Option<&str> {
        self.claimed_name.as_deref()
    }

    /// What the dialer that was named said of itself, of which nothing is proved yet.
    pub fn named(&self) -> Option<&Established> {
        match &self.stage {
            Stage::Named { established, .. } => Some(established),
            Stage::Dialed { .. } | Stage::Accepting { .. } | Stage::Proving { .. } | Stage::Finished => None,
        }
    }

    /// The acceptor wants none of the peer that was named: tells it so. The connection is to be closed, after `out` was written.
    pub fn refuse(&mut self, reason: Refusal, out: &mut Output) -> PeerError {
        out.put(&refusal(reason));
        self.pending.clear();
        PeerError::Refuses { reason }
    }

    /// The acceptor's side of the link to the peer that was named: it answers, and goes on with what has come meanwhile.
    ///
    /// # Errors
    /// As for [`Self::input`].
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

    /// A whole message, with what follows its body unless it is a refusal.
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
            return Err(PeerError::BadHandshake { what: "a length that cannot be" });
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

/// Whether a connection that begins with these bytes is one of this protocol, as far as they tell.
pub fn is_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Whether these are the first bytes of TLS: who has dialed says hello, and who was dialed by somebody without TLS sends an alert.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 3, ..])
}

/// What says in place of an answer or a proof that none comes.
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
    assert!(descriptor.len() <= DESCRIPTOR_MAX, "a card of {} bytes", descriptor.len());
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

    /// Features, cluster, link; the nonce only makes the proof a new one.
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
        let name =
            std::str::from_utf8(bytes).map_err(|_| PeerError::BadHandshake { what: "a name not UTF-8" })?;
        if name.is_empty() {
            return Err(PeerError::BadHandshake { what: "an empty name" });
        }
        self.0 = &self.0[usize::from(length)..];
        Ok(name.into())
    }

    fn descriptor(&mut self) -> Result<Bytes, PeerError> {
        // Whoever knows of no cards says nothing behind its name.
        if self.0.is_empty() {
            return Ok(Bytes::new());
        }
        let length = usize::from(u16::from_le_bytes(self.take()?));
        if length > DESCRIPTOR_MAX {
            return Err(PeerError::BadHandshake { what: "a card longer than any can be" });
        }
        let (descriptor, rest) =
            self.0.split_at_checked(length).ok_or(PeerError::BadHandshake { what: "too little" })?;
        self.0 = rest;
        Ok(Bytes::copy_from_slice(descriptor))
    }
}

#[cfg(test)]
mod tests;
