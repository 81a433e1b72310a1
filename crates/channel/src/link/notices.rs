//! What an end tells the other one beside frames: that there are some, credit, and that it sleeps.

use fabric::{Completion, OpId, Publish, RemoteRange, Src};

use super::{FRAME, Failure, HINT, KIND_BITS, Link, NOTICE, READ, refused};
use crate::Transfer;
use crate::protocol::Notice;

impl Link {
    /// Posts the notices that are due and fit.
    pub(super) fn ring_doorbells(&mut self) {
        if self.peer.is_none() || self.failure.is_some() {
            return;
        }
        if let Some(count) = self.producer.unannounced() {
            if self.announces() && self.notice(Notice::Frames(count)) {
                self.producer.announce();
                self.peer_sleeps = false;
                self.wake_due = false;
                self.flushing = false;
            }
        } else {
            self.flushing = false;
        }
        if let Some(credit) = self.consumer.credit_due()
            && self.notice(Notice::Credit(credit as u16))
        {
            self.consumer.returned(credit);
            self.stats.credit_notices_sent += 1;
        }
    }

    /// Whether frames that were published have to be announced.
    pub(super) fn announces(&self) -> bool {
        let due = match self.publish {
            Publish::InOrderPoll => self.wake_due,
            Publish::Notify => self.flushing,
            Publish::NotifyCounted => false,
        };
        due && self.producer.unannounced().is_some()
    }

    /// Tells the peer that frames must be announced from now on. False when that cannot be posted
    /// now.
    pub(super) fn announce_sleep(&mut self) -> bool {
        let seen = self.consumer.accepted();
        if self.publish != Publish::InOrderPoll
            || self.peer.is_none()
            || self.slept_at == Some(seen)
        {
            return true;
        }
        let posted = self.notice(Notice::Sleep(seen as u16));
        if posted {
            self.slept_at = Some(seen);
            self.stats.sleep_notices_sent += 1;
        }
        posted
    }

    /// Posts a notice if the queue and the peer's receives allow it.
    fn notice(&mut self, notice: Notice) -> bool {
        let budget = self.endpoint.budget();
        let Some(peer) = self.peer else { return false };
        if budget.ops == 0 || budget.notices == 0 {
            self.cramped = Some(budget);
            return false;
        }
        self.signal_next();
        // Where the peer keeps its frames until they are read, its last ones wait for credit.
        let of_frames = matches!(notice, Notice::Frames(_) | Notice::Frame(_))
            || self.config.transfer != Transfer::Write;
        let (id, flags) = self.operation(if of_frames { NOTICE } else { HINT });
        let dst = RemoteRange { key: peer, offset: 0 };
        match self.endpoint.write_notify(Src::Empty, dst, notice.encode(), id, flags) {
            Ok(()) => {
                self.notices_open += u32::from(of_frames);
                self.unsubmitted = true;
                self.stats.notices_sent += 1;
                true
            }
            Err(error) => {
                self.fail(refused(error));
                false
            }
        }
    }

    /// Takes what the endpoint says: an operation has completed, or a notice has come.
    pub(super) fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        match completion {
            Completion::Local { id: OpId(name) } => {
                let (published, kind) = (name >> KIND_BITS, name & ((1 << KIND_BITS) - 1));
                if kind == READ && self.config.transfer == Transfer::Region {
                    return self.has_read(published);
                } else if kind == READ {
                    return self.fetched(published);
                }
                if self.caps.ordered_completions {
                    self.producer.retire_below(published);
                } else if kind == FRAME {
                    self.producer.retire(published - 1);
                }
                self.notices_open -= u32::from(kind == NOTICE);
                Ok(())
            }
            Completion::Notify { imm } => {
                self.recvs_used += 1;
                self.stats.notices_received += 1;
                match Notice::decode(imm)? {
                    Notice::Frames(count) => self.consumer.frames_notice(count)?,
                    Notice::Frame(count) => self.consumer.frame_notice(count)?,
                    Notice::Credit(count) => {
                        self.producer.credit_notice(count)?;
                        self.lent.read_below(self.producer.released_below());
                    }
                    Notice::Sleep(seen) => {
                        self.peer_sleeps = true;
                        let unseen = self.producer.is_beyond(seen);
                        self.wake_due = unseen && self.producer.unannounced().is_some();
                    }
                }
                Ok(())
            }
            Completion::Recv { .. } => Err(Failure::Protocol("a message on a link".into())),
            Completion::Error { kind, .. } => Err(Failure::Disconnected(kind)),
        }
    }
}
