//! The messages between the node that leads the checkpoints and the others.

use checkpoint::SegmentEntry;

use super::keeper::KeeperReport;

/// Characters of a reason in a message at most.
const WHY_CHARS_MAX: usize = 1000;

/// The messages between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// To all: a round ends. The checkpoint `stored`, and earlier ones, are in the chain.
    EndRound { round: u64, stored: u64 },
    /// To all: sources read nothing behind this round, with which the job is stopped.
    Rest { round: u64 },
    /// To the leader: the sources of a node will rest.
    Rests,
    /// To all: the job is stopped.
    Stop,
    /// To the leader: all workers of a node have saved a round, and its part is being stored.
    Saved { round: u64 },
    /// To the leader: a node's part is stored.
    Part { round: u64, entry: SegmentEntry },
    /// To the leader: a node's part could not be stored.
    NoPart { round: u64, why: String },
    /// To the leader: all workers of a node have ended.
    Ended,
}

impl Message {
    /// The message to the leader about a report of a node's checkpoint thread.
    pub(super) fn of(kept: KeeperReport) -> Self {
        match kept {
            KeeperReport::Saved { round } => Self::Saved { round },
            KeeperReport::Part { round, stored: Ok(entry) } => Self::Part { round, entry },
            KeeperReport::Part { round, stored: Err(why) } => {
                Self::NoPart { round, why: why.to_string() }
            }
            KeeperReport::Ended | KeeperReport::Failed(_) | KeeperReport::Checkpoint { .. } => {
                Self::Ended
            }
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = match self {
            Self::EndRound { round, stored } => format!("end\t{round}\t{stored}"),
            Self::Rest { round } => format!("rest\t{round}"),
            Self::Rests => "rests".into(),
            Self::Stop => "stop".into(),
            Self::Saved { round } => format!("saved\t{round}"),
            Self::Part { round, entry: SegmentEntry { file, bytes, crc } } => {
                format!("part\t{round}\t{file}\t{bytes}\t{crc}")
            }
            Self::NoPart { round, why } => {
                let why: String = why.chars().take(WHY_CHARS_MAX).collect();
                format!("none\t{round}\t{}", why.replace('\t', " "))
            }
            Self::Ended => "ended".into(),
        };
        text.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let fields: Vec<&str> = text.split('\t').collect();
        Some(match fields[..] {
            ["end", round, stored] => {
                Self::EndRound { round: round.parse().ok()?, stored: stored.parse().ok()? }
            }
            ["rest", round] => Self::Rest { round: round.parse().ok()? },
            ["rests"] => Self::Rests,
            ["stop"] => Self::Stop,
            ["saved", round] => Self::Saved { round: round.parse().ok()? },
            ["part", round, file, bytes, crc] => {
                let (bytes, crc) = (bytes.parse().ok()?, crc.parse().ok()?);
                let entry = SegmentEntry { file: file.into(), bytes, crc };
                Self::Part { round: round.parse().ok()?, entry }
            }
            ["none", round, why] => Self::NoPart { round: round.parse().ok()?, why: why.into() },
            ["ended"] => Self::Ended,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_again_and_others_refused() {
        let entry = SegmentEntry { file: "g1-n0-000007.seg".into(), bytes: 7, crc: 9 };
        let messages = [
            Message::EndRound { round: 7, stored: 6 },
            Message::Rest { round: 7 },
            Message::Rests,
            Message::Stop,
            Message::Saved { round: 7 },
            Message::Part { round: 7, entry },
            Message::NoPart { round: 7, why: "no room".into() },
            Message::Ended,
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bytes in [&b""[..], b"end\t1", b"part\t1\tf\tx\t1", b"\xff", b"stop\t"] {
            assert_eq!(Message::decode(bytes), None);
        }
    }
}
