//! The payload of a message, which says who sent it and which it is.

use super::checker::Lane;

/// Bytes at the start of every payload: run, publisher, lane, sequence number, time.
pub const HEADER: usize = 28;

/// How the payloads of a run look.
pub struct Payloads {
    run: u32,
    size: usize,
    pattern: Vec<u8>,
}

/// What a payload says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    pub of: Lane,
    pub number: u64,
    /// When it was due, in nanoseconds of CLOCK_MONOTONIC.
    pub due: u64,
}

/// Why a payload is none of this run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InvalidPayload {
    /// Of another run, or of no run at all.
    Foreign,
    /// Of this run, and changed.
    Corrupt,
}

impl Payloads {
    /// `size` is raised to [`HEADER`] bytes.
    pub fn new(run: u32, size: usize) -> Payloads {
        let size = size.max(HEADER);
        let pattern =
            (0..size - HEADER + 256).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8).collect();
        Payloads { run, size, pattern }
    }

    pub fn size(&self) -> usize {
        self.size
    }

    fn body(&self, message: &Message) -> &[u8] {
        let from = (message.number & 255) as usize;
        &self.pattern[from..from + self.size - HEADER]
    }

    pub fn put(&self, out: &mut Vec<u8>, message: &Message) {
        out.extend_from_slice(&self.run.to_be_bytes());
        out.extend_from_slice(&(message.of.publisher as u32).to_be_bytes());
        out.extend_from_slice(&(message.of.lane as u32).to_be_bytes());
        out.extend_from_slice(&message.number.to_be_bytes());
        out.extend_from_slice(&message.due.to_be_bytes());
        out.extend_from_slice(self.body(message));
    }

    /// # Errors
    /// What is not a payload of this run, byte for byte.
    pub fn read(&self, payload: &[u8]) -> Result<Message, InvalidPayload> {
        let (run, rest) = payload.split_first_chunk::<4>().ok_or(InvalidPayload::Foreign)?;
        if u32::from_be_bytes(*run) != self.run {
            return Err(InvalidPayload::Foreign);
        }
        if payload.len() != self.size {
            return Err(InvalidPayload::Corrupt);
        }
        let (publisher, rest) = rest.split_first_chunk::<4>().ok_or(InvalidPayload::Corrupt)?;
        let (lane, rest) = rest.split_first_chunk::<4>().ok_or(InvalidPayload::Corrupt)?;
        let (number, rest) = rest.split_first_chunk::<8>().ok_or(InvalidPayload::Corrupt)?;
        let (due, body) = rest.split_first_chunk::<8>().ok_or(InvalidPayload::Corrupt)?;
        let of = Lane {
            publisher: u32::from_be_bytes(*publisher) as usize,
            lane: u32::from_be_bytes(*lane) as usize,
        };
        let message = Message { of, number: u64::from_be_bytes(*number), due: u64::from_be_bytes(*due) };
        if body == self.body(&message) { Ok(message) } else { Err(InvalidPayload::Corrupt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_says_what_it_is() {
        for size in [0, HEADER, 100, 70_000] {
            let payloads = Payloads::new(7, size);
            let message = Message { of: Lane { publisher: 3, lane: 1 }, number: 1 << 40, due: 99 };
            let mut bytes = vec![];
            payloads.put(&mut bytes, &message);
            assert_eq!((bytes.len(), payloads.read(&bytes)), (size.max(HEADER), Ok(message)));
            assert_eq!(Payloads::new(8, size).read(&bytes), Err(InvalidPayload::Foreign));
            bytes.pop();
            assert_eq!(payloads.read(&bytes), Err(InvalidPayload::Corrupt));
        }
        assert_eq!(Payloads::new(7, 100).read(b"abc"), Err(InvalidPayload::Foreign));
    }

    #[test]
    fn a_changed_bit_of_the_body_is_seen() {
        let payloads = Payloads::new(7, 100);
        let message = Message { of: Lane { publisher: 0, lane: 0 }, number: 5, due: 0 };
        let mut bytes = vec![];
        payloads.put(&mut bytes, &message);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(payloads.read(&bytes), Err(InvalidPayload::Corrupt));
    }
}
