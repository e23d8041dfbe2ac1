//! Error codes of Kafka: their names, and what follows from them.

use std::fmt;

/// Error code in an answer; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i16);

/// Consequence of an error code for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// The records are stored.
    Written,
    /// The records are never accepted.
    Refused,
    /// The same records can be accepted later. The reason is not in the records.
    Later,
    /// The server failed, perhaps because of a record. The records may be stored.
    Failed,
    /// The server does not store the records, perhaps because of one of them.
    NotStored,
    /// The server has lost the sequence of this producer; a new producer begins.
    NewProducer,
}

impl Code {
    pub const NONE: Self = Self(0);
    pub const CLUSTER_AUTHORIZATION_FAILED: Self = Self(31);

    pub fn is_error(self) -> bool {
        self != Self::NONE
    }

    pub fn consequence(self) -> Consequence {
        match self.0 {
            // 46: the batch was stored at the first attempt.
            0 | 46 => Consequence::Written,
            10 | 17 | 18 | 32 | 87 => Consequence::Refused,
            45 | 47 | 49 | 59 => Consequence::NewProducer,
            // The batch is damaged or invalid for the server, or its policy refuses it. Another batch may be accepted.
            2 | 42 | 43 | 44 => Consequence::NotStored,
            // Leaders, replicas, logins, rights, disks and quotas.
            3
            | 5..=9
            | 13..=16
            | 19
            | 20
            | 29
            | 31
            | 33..=35
            | 41
            | 51
            | 56..=58
            | 60
            | 74
            | 75
            | 78
            | 89
            | 100 => Consequence::Later,
            // An unexpected error of the server (-1), and codes whose meaning is not known here.
            _ => Consequence::Failed,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            -1 => "the server had an unexpected error",
            2 => "the batch arrived damaged",
            3 => "the topic or partition does not exist; create it",
            5 => "the partition has no leader now",
            6 => "the node is no longer the leader of the partition",
            7 => "the replicas did not answer in time",
            8 | 9 => "a node or replica is not available",
            10 => "the record or batch is larger than max.message.bytes of the topic",
            13 => "the node lost its connection to the cluster",
            14..=16 => "the coordinator is not available",
            17 => "the name of the topic is invalid",
            18 => "the batch is larger than a segment of the topic",
            19 => "fewer replicas are in sync than min.insync.replicas",
            20 => "fewer replicas were in sync than min.insync.replicas when the batch was written",
            29 => "the user may not write to the topic; allow the operation Write",
            31 => "the user may not do this in the cluster",
            32 => "the time of the record is out of the range of the topic",
            33 => "the server does not support this SASL mechanism; change `sasl`",
            34 => "a login was expected; set `username` and `password_file`",
            35 => "the server does not support this version of the request",
            41 => "the node is not the controller",
            42 => "the server says that the request is invalid",
            43 => "the format of the topic's messages is too old for the record",
            44 => "a policy of the server refuses the request",
            45 => "the sequence of batches has a gap",
            47 | 49 => "the server does not accept the producer any more",
            56 => "the disk of the node failed",
            58 => "user name or password is wrong",
            59 => "the server has forgotten the producer",
            87 => "the topic does not accept the record; a compacted topic needs a key",
            89 => "the quota of the user is used up",
            other => return write!(f, "error {other} of Kafka"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_consequence_and_a_sentence() {
        for (code, consequence) in [
            (0, Consequence::Written),
            (46, Consequence::Written),
            (10, Consequence::Refused),
            (17, Consequence::Refused),
            (18, Consequence::Refused),
            (87, Consequence::Refused),
            (45, Consequence::NewProducer),
            (59, Consequence::NewProducer),
            (3, Consequence::Later),
            (6, Consequence::Later),
            (7, Consequence::Later),
            (19, Consequence::Later),
            (20, Consequence::Later),
            (29, Consequence::Later),
            (2, Consequence::NotStored),
            (44, Consequence::NotStored),
            (-1, Consequence::Failed),
            (999, Consequence::Failed),
        ] {
            assert_eq!(Code(code).consequence(), consequence, "{code}");
        }
        assert_eq!(Code(999).to_string(), "error 999 of Kafka");
    }
}
