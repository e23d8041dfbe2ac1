//! Moves a state to another clock: that of a node alone is not the wall clock that the nodes of a cluster use.

use std::sync::Arc;

use crate::error::{Malformed, RestoreError};
use crate::message::MessageView;
use crate::shard::Shard;

impl Shard {
    /// Returns the same state with a clock that is `ms` ahead, and with all its times. Its next checkpoint contains all
    /// parts. `hash_key`: see [`Self::new`]. `will_properties` returns the properties of a Will with the times that the
    /// owner of the shard has put in front of them.
    ///
    /// Messages in the log keep their times: see [`MessageView::shifted`]. A Will has an interval in place of the time
    /// at which it expires, which starts when it is published (MQTT 5.0, 3.1.3.2.4).
    ///
    /// # Panics
    /// Panics while a record [is applied in part](Self::is_midway).
    ///
    /// # Errors
    /// The state contradicts itself, which is a fault of this program.
    pub fn shifted(
        &self,
        ms: u64,
        hash_key: [u8; 16],
        will_properties: &dyn Fn(&[u8]) -> Vec<u8>,
    ) -> Result<Self, RestoreError> {
        assert!(!self.is_midway(), "a state is copied between records");
        let mut copy = Self::new(self.id, hash_key);
        for bucket in self.buckets() {
            let decoded = copy.decode_part(bucket, &self.encode_part(bucket));
            decoded
                .map_err(|Malformed { what }| RestoreError::Malformed { part: u32::from(bucket), what })?;
            copy.parts.renew(bucket);
        }
        copy.shift(ms, will_properties);
        copy.complete(self.applied)?;
        Ok(copy)
    }

    fn shift(&mut self, ms: u64, will_properties: &dyn Fn(&[u8]) -> Vec<u8>) {
        let later = |at: u64| crate::message::later(at, ms);
        let shift_will = |message: &mut Arc<[u8]>| {
            if let Ok(view) = MessageView::decode(message) {
                let properties = will_properties(view.properties);
                *message = MessageView { properties: &properties, ..view }.to_bytes().into();
            }
        };
        self.now = later(self.now);
        let slots: Vec<u32> = self.sessions.from(0).map(|session| session.uid.slot()).collect();
        for slot in slots {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            session.ends = later(session.ends);
            if let Some(will) = session.extra.as_mut().and_then(|extra| extra.will.as_mut()) {
                will.due = later(will.due);
                shift_will(&mut will.message);
            }
        }
        self.wills.values_mut().for_each(shift_will);
        for slot in self.ephemerals.from(0).map(|session| session.uid.slot()).collect::<Vec<_>>() {
            let session = self.ephemerals.at_mut(slot);
            if let Some(will) = session.and_then(|session| session.will.as_mut()) {
                shift_will(&mut will.0);
            }
        }
        self.bodies.shift(later);
        self.retained.shift(ms);
        self.eras.shift(later);
    }

    /// Returns whether the state has something that outlives its node: sessions, retained messages, Wills or orphans.
    pub fn has_content(&self) -> bool {
        let sessions = self.sessions.len() + self.retained.len();
        sessions + self.wills.len() + self.orphans.len() > 0
    }
}
