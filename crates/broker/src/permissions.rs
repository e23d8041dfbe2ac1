//! Cache of recent answers of access control for one client.

use crate::access::{Action, Permission};

/// The last lasting answers. Topics are compared in full, so no topic gets the answer of another. Answers about
/// receiving replace none about publishing: a client may receive very many topics.
#[derive(Debug, Default)]
pub(crate) struct Permissions {
    /// Generation of the rules that gave the answers.
    generation: u64,
    publish: Remembered,
    receive: Remembered,
}

#[derive(Debug, Default)]
struct Remembered {
    answers: Vec<RememberedAnswer>,
    /// Index of the entry to be replaced next.
    next: usize,
}

#[derive(Debug)]
struct RememberedAnswer {
    action: Action,
    topic: String,
    allowed: bool,
}

/// Maximum number of topics that are remembered for one client, of each kind.
const KNOWN_MAX: usize = 16;
/// Maximum length of a remembered topic. Longer ones are checked each time.
const TOPIC_MAX: usize = 256;

impl Permissions {
    pub fn get(&self, generation: u64, action: Action, topic: &str) -> Option<bool> {
        if self.generation != generation {
            return None;
        }
        let remembered = if action == Action::Receive { &self.receive } else { &self.publish };
        let is_meant = |answer: &&RememberedAnswer| answer.topic == topic && answer.action == action;
        remembered.answers.iter().find(is_meant).map(|answer| answer.allowed)
    }

    pub fn remember(&mut self, generation: u64, action: Action, topic: &str, permission: Permission) {
        if !permission.lasting || topic.len() > TOPIC_MAX {
            return;
        }
        if self.generation != generation {
            self.forget();
            self.generation = generation;
        }
        let remembered = if action == Action::Receive { &mut self.receive } else { &mut self.publish };
        remembered.add(action, topic, permission.allowed);
    }

    /// Empties the cache: the identity of the client has changed.
    pub fn forget(&mut self) {
        for remembered in [&mut self.publish, &mut self.receive] {
            remembered.answers.clear();
            remembered.next = 0;
        }
    }
}

impl Remembered {
    fn add(&mut self, action: Action, topic: &str, allowed: bool) {
        if self.answers.len() < KNOWN_MAX {
            return self.answers.push(RememberedAnswer { action, topic: topic.to_owned(), allowed });
        }
        let oldest = &mut self.answers[self.next];
        (oldest.action, oldest.allowed) = (action, allowed);
        oldest.topic.clear();
        oldest.topic.push_str(topic);
        self.next = (self.next + 1) % KNOWN_MAX;
    }
}

#[cfg(test)]
mod tests {
    use mqtt::QoS;

    use super::*;

    const PUBLISH: Action = Action::Publish { qos: QoS::AtLeastOnce, retain: false };
    const RETAINED: Action = Action::Publish { qos: QoS::AtLeastOnce, retain: true };
    const YES: Permission = Permission { allowed: true, lasting: true };

    #[test]
    fn an_answer_is_valid_for_its_topic_its_action_and_its_rules() {
        let mut permissions = Permissions::default();
        permissions.remember(1, PUBLISH, "a", YES);
        assert_eq!(permissions.get(1, PUBLISH, "a"), Some(true));
        assert_eq!(permissions.get(1, RETAINED, "a"), None);
        assert_eq!(permissions.get(1, PUBLISH, "a/b"), None);
        assert_eq!(permissions.get(2, PUBLISH, "a"), None);
        permissions.remember(2, PUBLISH, "b", Permission { allowed: false, lasting: true });
        assert_eq!(permissions.get(2, PUBLISH, "a"), None, "the new rules were not evaluated for it");
        assert_eq!(permissions.get(2, PUBLISH, "b"), Some(false));
        permissions.forget();
        assert_eq!(permissions.get(2, PUBLISH, "b"), None);
    }

    #[test]
    fn answers_that_do_not_last_or_are_long_are_not_kept_and_the_oldest_is_replaced() {
        let mut permissions = Permissions::default();
        permissions.remember(0, PUBLISH, "a", Permission { allowed: true, lasting: false });
        permissions.remember(0, PUBLISH, &"x".repeat(TOPIC_MAX + 1), YES);
        assert!(permissions.publish.answers.is_empty());
        for number in 0..KNOWN_MAX + 2 {
            permissions.remember(0, PUBLISH, &number.to_string(), YES);
        }
        permissions.remember(0, Action::Receive, "2", Permission { allowed: false, lasting: true });
        assert_eq!((permissions.publish.answers.len(), permissions.receive.answers.len()), (KNOWN_MAX, 1));
        assert_eq!(permissions.get(0, Action::Receive, "2"), Some(false));
        assert_eq!(permissions.get(0, PUBLISH, "1"), None);
        assert_eq!(permissions.get(0, PUBLISH, "2"), Some(true));
        assert_eq!(permissions.get(0, PUBLISH, "17"), Some(true));
    }
}
