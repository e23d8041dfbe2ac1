//! Operations on a node, as bytes. Any bytes are a program, so that a mutator may change them.

/// One operation. Indexes of connections wrap around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A client connects to a worker.
    Open { worker: u8 },
    /// Bytes arrive from a client, in one piece.
    Send { peer: u8, bytes: Vec<u8> },
    /// A client answers the packets that it has received, as the protocol requires.
    Answer { peer: u8 },
    /// Time passes; the lowest bits say how much, the highest whether timers are late.
    Pass { time: u8 },
    /// The connection of a client is lost.
    Lose { peer: u8 },
    /// A client stops reading, or starts again.
    Turn { peer: u8 },
    /// A client that has stopped reads some bytes.
    Read { peer: u8 },
    /// One batch between workers arrives.
    Step { wire: u8 },
    /// All batches arrive.
    Run,
    /// Access control gives an answer.
    AuthResult { allow: u8 },
    /// A worker is stopped.
    Stop { worker: u8 },
}

/// Decodes a program: the first byte chooses settings, then one operation follows another.
pub fn decode(input: &[u8]) -> (u8, Vec<Op>) {
    let Some((&variant, mut rest)) = input.split_first() else { return (0, Vec::new()) };
    let mut ops = Vec::new();
    while let [code, argument, after @ ..] = rest {
        rest = after;
        let peer = *argument;
        ops.push(match code % 32 {
            0 => Op::Open { worker: peer },
            1 => Op::Answer { peer },
            2 => Op::Pass { time: peer },
            3 => Op::Lose { peer },
            4 => Op::Turn { peer },
            5 => Op::Read { peer },
            6 => Op::Step { wire: peer },
            7 => Op::Run,
            8 => Op::AuthResult { allow: peer },
            9 => Op::Stop { worker: peer },
            _ => {
                let [low, high, after @ ..] = rest else { break };
                let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
                let (bytes, after) = after.split_at(length);
                rest = after;
                Op::Send { peer, bytes: bytes.to_vec() }
            }
        });
    }
    (variant, ops)
}
