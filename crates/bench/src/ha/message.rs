//! The payload of a message, which identifies its sender and number.

use super::checker::Lane;

/// Bytes at the start of every payload: run, publisher, lane, sequence number, time.
pub const HEADER: usize = 28;

/// Format of the payloads of a run.
pub struct Payloads {
    run: u32,
    size: usize,
    pattern: Vec<u8>,
}

/// Contents of a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    pub of: Lane,
    pub number: u64,
    /// Time at which the message was due, in nanoseconds of CLOCK_MONOTONIC.
    pub due: u64,
}

/// Reason why a payload does not belong to this run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InvalidPayload {
    /// A payload of another run, or of another program.
    Foreign,
    /// A changed payload of this run.
    Corrupt,
}

impl Payloads {
    /// A format for payloads of `size` bytes, [`HEADER`] at least.
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

    /// Decodes a payload.
    ///
    /// # Errors
    /// A payload that differs in any byte from those of this run.
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
    fn a_payload_identifies_itself() {
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
    fn a_changed_bit_of_the_body_is_detected() {
        let payloads = Payloads::new(7, 100);
        let message = Message { of: Lane { publisher: 0, lane: 0 }, number: 5, due: 0 };
        let mut bytes = vec![];
        payloads.put(&mut bytes, &message);
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(payloads.read(&bytes), Err(InvalidPayload::Corrupt));
    }
}
