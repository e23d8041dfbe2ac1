//! Records on a channel after the handshake. All integers are little endian:
//!
//! ```text
//! kind u8 | lane u8 | 0 u16 | length u32 | number u32 | length bytes
//! 1 frame         number: the low half of the frame's sequence number
//! 2 acknowledged  next u64, limit u64
//! 3 ping          time u64          4 pong  the same time
//! 5 resume        for each lane of the channel: lane u8, next u64, offset u64, limit u64
//! ```
//!
//! Lanes: 0 control, 1 claims, 2 routes, from 3 messages of QoS 1 and 2, from 19 messages of QoS 0. Since version 2
//! there are two more classes: from 35 agreement, from 43 requests.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::error::PeerError;
use crate::frame::Frame;
use crate::lane::Lane;
use crate::output::Output;
use crate::time::Time;

const HEADER: usize = 12;

/// Maximum size of a frame in bytes: the largest MQTT packet and the fields that a node adds. The same for every node.
pub const FRAME_MAX: u32 = 257 << 20;

const FRAME: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;
const RESUME: u8 = 5;

const RESUME_POINT: usize = 25;

/// One received record.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    Frame { lane: Lane, number: u32, frame: Bytes },
    Acknowledged { lane: Lane, next: u64, limit: u64 },
    Ping { time: Time },
    Pong { time: Time },
    Resume { resume_points: Vec<ResumePoint> },
}

/// Position of a receiver on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumePoint {
    pub lane: Lane,
    /// Number of the frame that it expects next.
    pub next: u64,
    /// Bytes of all frames before it.
    pub offset: u64,
    /// Offset limit: a frame may begin below it.
    pub limit: u64,
}

impl Record {
    pub const RESUME: u8 = RESUME;

    /// Returns the byte of the record's kind, for errors.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Frame { .. } => FRAME,
            Self::Acknowledged { .. } => ACKNOWLEDGED,
            Self::Ping { .. } => PING,
            Self::Pong { .. } => PONG,
            Self::Resume { .. } => RESUME,
        }
    }
}

/// Decoder that cuts a stream of bytes into records. It holds at most one incomplete record.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: BytesMut,
}

impl Decoder {
    /// Returns the next record of `input`, and takes the used bytes from it.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Record>, PeerError> {
        if self.pending.is_empty() {
            let Some(header) = Header::read(input)? else {
                return Ok(self.keep(input, HEADER));
            };
            if input.len() < header.whole() {
                return Ok(self.keep(input, header.whole()));
            }
            return header.record(input.split_to(header.whole())).map(Some);
        }
        self.fill(input, HEADER);
        let Some(header) = Header::read(&self.pending)? else { return Ok(None) };
        self.fill(input, header.whole());
        if self.pending.len() < header.whole() {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.pending).freeze();
        header.record(bytes).map(Some)
    }

    fn keep(&mut self, input: &mut Bytes, whole: usize) -> Option<Record> {
        if !input.is_empty() {
            // A length that the peer only announces takes no memory yet.
            self.pending.reserve(whole.min(2 * input.len().max(HEADER)));
            self.pending.extend_from_slice(input);
            input.clear();
        }
        None
    }

    fn fill(&mut self, input: &mut Bytes, until: usize) {
        let missing = until.saturating_sub(self.pending.len()).min(input.len());
        self.pending.extend_from_slice(&input.split_to(missing));
    }
}

/// Checked header of a record.
#[derive(Clone, Copy)]
struct Header {
    kind: u8,
    lane: Lane,
    length: u32,
    number: u32,
}

impl Header {
    /// Returns the header once all of it is there.
    fn read(bytes: &[u8]) -> Result<Option<Self>, PeerError> {
        let Some([kind, lane, zero, zero_too, rest @ ..]) = bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h] = *rest;
        let (kind, lane) = (*kind, *lane);
        let (length, number) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let is_good = match kind {
            FRAME => length <= FRAME_MAX,
            ACKNOWLEDGED => length == 16,
            PING | PONG => length == 8,
            RESUME => {
                (length as usize).is_multiple_of(RESUME_POINT)
                    && length as usize <= RESUME_POINT * Lane::COUNT
            }
            _ => return Err(PeerError::UnknownRecord { kind, lane }),
        };
        if !is_good {
            return Err(PeerError::BadLength { kind, length });
        }
        match Lane::of_byte(lane) {
            Some(lane) if (*zero, *zero_too) == (0, 0) => Ok(Some(Self { kind, lane, length, number })),
            _ => Err(PeerError::UnknownRecord { kind, lane }),
        }
    }

    /// Returns the length of the record with its header.
    fn whole(self) -> usize {
        HEADER + self.length as usize
    }

    /// Decodes the whole record.
    fn record(self, mut bytes: Bytes) -> Result<Record, PeerError> {
        let Self { kind, lane, number, .. } = self;
        bytes.advance(HEADER);
        Ok(match kind {
            FRAME => Record::Frame { lane, number, frame: bytes },
            ACKNOWLEDGED => {
                Record::Acknowledged { lane, next: bytes.get_u64_le(), limit: bytes.get_u64_le() }
            }
            PING => Record::Ping { time: Time(bytes.get_u64_le()) },
            PONG => Record::Pong { time: Time(bytes.get_u64_le()) },
            RESUME => {
                let mut resume_points = Vec::with_capacity(bytes.len() / RESUME_POINT);
                while bytes.len() >= RESUME_POINT {
                    let byte = bytes.get_u8();
                    let lane = Lane::of_byte(byte).ok_or(PeerError::UnknownRecord { kind, lane: byte })?;
                    let (next, offset, limit) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
                    resume_points.push(ResumePoint { lane, next, offset, limit });
                }
                Record::Resume { resume_points }
            }
            _ => return Err(PeerError::UnknownRecord { kind, lane: lane.byte() }),
        })
    }
}

fn header(kind: u8, lane: u8, length: u32, number: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    (header[0], header[1]) = (kind, lane);
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..].copy_from_slice(&number.to_le_bytes());
    header
}

pub fn put_frame(lane: Lane, number: u64, frame: &Frame, out: &mut Output) {
    let (head, mut before) = (frame.head(), [0; HEADER + Frame::HEAD_MAX]);
    before[..HEADER].copy_from_slice(&header(FRAME, lane.byte(), frame.len() as u32, number as u32));
    before[HEADER..HEADER + head.len()].copy_from_slice(head);
    out.put_frame(&before[..HEADER + head.len()], frame.body());
}

pub fn put_acknowledged(lane: Lane, next: u64, limit: u64, out: &mut Output) {
    let mut record = [0; HEADER + 16];
    record[..HEADER].copy_from_slice(&header(ACKNOWLEDGED, lane.byte(), 16, 0));
    record[HEADER..HEADER + 8].copy_from_slice(&next.to_le_bytes());
    record[HEADER + 8..].copy_from_slice(&limit.to_le_bytes());
    out.put(&record);
}

pub fn put_ping(time: Time, out: &mut Output) {
    out.put(&header(PING, 0, 8, 0));
    out.put(&time.0.to_le_bytes());
}

pub fn put_pong(time: Time, out: &mut Output) {
    out.put(&header(PONG, 0, 8, 0));
    out.put(&time.0.to_le_bytes());
}

pub fn put_resume(resume_points: &[ResumePoint], out: &mut Output) {
    out.put(&header(RESUME, 0, (resume_points.len() * RESUME_POINT) as u32, 0));
    for resume_point in resume_points {
        out.put(&[resume_point.lane.byte()]);
        for number in [resume_point.next, resume_point.offset, resume_point.limit] {
            out.put(&number.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(put: impl Fn(&mut Output)) -> Vec<u8> {
        let mut out = Output::default();
        put(&mut out);
        out.take().concat()
    }

    fn all() -> Vec<(Record, Vec<u8>)> {
        let frame = Bytes::from_static(b"hello");
        let resume_point = ResumePoint { lane: Lane::ROUTES, next: 3, offset: 4, limit: 5 };
        vec![
            (
                Record::Frame { lane: Lane::assured(2), number: 7, frame: frame.clone() },
                bytes_of(|out| put_frame(Lane::assured(2), (1 << 32) + 7, &frame.clone().into(), out)),
            ),
            (
                Record::Frame { lane: Lane::assured(2), number: 7, frame: frame.clone() },
                bytes_of(|out| {
                    put_frame(Lane::assured(2), 7, &Frame::new(b"hel", frame.slice(3..)), out);
                }),
            ),
            (
                Record::Acknowledged { lane: Lane::CLAIMS, next: 1, limit: 2 },
                bytes_of(|out| put_acknowledged(Lane::CLAIMS, 1, 2, out)),
            ),
            (Record::Ping { time: Time(9) }, bytes_of(|out| put_ping(Time(9), out))),
            (Record::Pong { time: Time(9) }, bytes_of(|out| put_pong(Time(9), out))),
            (
                Record::Resume { resume_points: vec![resume_point] },
                bytes_of(|out| put_resume(&[resume_point], out)),
            ),
        ]
    }

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn records_keep_their_byte_format() {
        let golden = ["01050000050000000700000068656c6c6f", "020100001000000000000000".to_owned().as_str()]
            .map(str::to_owned);
        let found: Vec<String> = all()
            .iter()
            .take(3)
            .map(|(_, bytes)| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            .collect();
        assert_eq!((&found[0], &found[1]), (&golden[0], &golden[0]), "a head makes no difference");
        assert_eq!(found[2], golden[1].clone() + "0100000000000000" + "0200000000000000");
    }

    #[test]
    fn records_are_found_however_the_bytes_come() {
        let stream: Vec<u8> = all().into_iter().flat_map(|(_, bytes)| bytes).collect();
        for step in [1, 2, 5, 13, stream.len()] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in stream.chunks(step) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(record) = decoder.next(&mut piece).expect("good records") {
                    found.push(record);
                }
                assert!(piece.is_empty(), "an incomplete record is kept");
            }
            let wanted: Vec<Record> = all().into_iter().map(|(record, _)| record).collect();
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn an_invalid_record_is_refused_before_its_bytes_arrive() {
        let refused = |bytes: &[u8]| {
            Decoder::default().next(&mut Bytes::copy_from_slice(bytes)).expect_err("a bad record")
        };
        assert_eq!(
            refused(&[1, 3, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0]),
            PeerError::BadLength { kind: 1, length: 0x2000_0000 }
        );
        assert_eq!(
            refused(&[9, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            PeerError::UnknownRecord { kind: 9, lane: 3 }
        );
        assert_eq!(
            refused(&[1, 99, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            PeerError::UnknownRecord { kind: 1, lane: 99 }
        );
        assert_eq!(
            refused(&[2, 3, 0, 0, 15, 0, 0, 0, 0, 0, 0, 0]),
            PeerError::BadLength { kind: 2, length: 15 }
        );
        assert_eq!(
            refused(&[1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
            PeerError::UnknownRecord { kind: 1, lane: 3 }
        );
    }
}
