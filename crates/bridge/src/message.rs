//! Translation of a message for the other broker.

use mqtt::{Properties, PropertiesBuf, Property, Publish, QoS, Subscription, TopicName, Version};

use crate::counters::Dropped;
use crate::mutation::{Mutation, mutated};
use crate::settings::{Pass, Settings};
use crate::side::{Side, Sides};
use crate::topic_map::TopicMap;

/// User Property with a broker that a message has passed, once for each.
pub const VIA: &str = "meridian-via";

/// User Property with the name of the cluster that a message comes from.
pub const ORIGIN: &str = "meridian-origin";

/// User Property with the shared group that a message is for, `$share/{ShareName}/{filter}`. Only the name that the
/// cluster of the message has put there counts: its Subscription Identifier says so.
pub const GROUP: &str = "meridian-group";

/// Properties of one broker that matter for a message to or from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) version: Version,
    pub(crate) maximum_qos: QoS,
    pub(crate) retain_available: bool,
    pub(crate) packet_size_max: u32,
    /// Maximum number of unacknowledged messages to it.
    pub(crate) receive_maximum: u16,
}

/// Subscription Identifier that a cluster gives to the shared subscriptions of another one.
const GROUP_SUBSCRIPTION: u32 = 1;

/// Rules of the translation.
#[derive(Debug)]
pub(crate) struct Translator {
    map: TopicMap,
    pass: Pass,
    hops_max: usize,
    /// Id of this broker or cluster.
    own_id: String,
    /// Id of the remote broker, if it has announced one, and otherwise one that stands for this bridge.
    remote_id: String,
    origins: Option<Origins>,
    properties: PropertiesBuf,
}

/// Clusters that messages of the remote broker come from.
#[derive(Debug)]
struct Origins {
    own: String,
    /// Name of the remote cluster.
    remote: String,
    /// The only cluster whose messages are taken, if that is not the remote one.
    transit: Option<String>,
}

impl Origins {
    /// Returns the origin that a message is to get; `None` if it has one.
    ///
    /// # Errors
    /// The message comes from this cluster, or from one whose messages are not taken.
    fn check(&self, properties: Properties<'_>) -> Result<Option<&str>, Dropped> {
        let expected = self.transit.as_ref().unwrap_or(&self.remote);
        let mut has_origin = false;
        for (_, origin) in properties.user_properties().filter(|(name, _)| *name == ORIGIN) {
            if origin == self.own {
                return Err(Dropped::OwnOrigin);
            }
            if origin != expected {
                return Err(Dropped::OtherOrigin);
            }
            has_origin = true;
        }
        match (has_origin, &self.transit) {
            (true, _) => Ok(None),
            (false, None) => Ok(Some(&self.remote)),
            (false, Some(_)) => Err(Dropped::OtherOrigin),
        }
    }
}

/// A message for the other broker, without payload.
#[derive(Debug)]
pub(crate) struct Translated {
    pub(crate) topic: String,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) message_expiry: Option<u32>,
}

impl Translator {
    pub(crate) fn new(settings: &Settings, map: TopicMap, own_id: &str) -> Self {
        let remote_id = format!("{own_id}/{}", settings.name);
        Self {
            map,
            pass: settings.pass,
            hops_max: settings.hops_max,
            own_id: own_id.to_owned(),
            remote_id,
            origins: settings.interest.as_ref().map(|interest| Origins {
                own: interest.own.clone(),
                remote: interest.origin.clone(),
                transit: interest.transit.clone(),
            }),
            properties: PropertiesBuf::default(),
        }
    }

    pub(crate) fn map(&self) -> &TopicMap {
        &self.map
    }

    /// Sets the id that the remote broker has announced, or the one that stands for this bridge.
    pub(crate) fn set_remote_id(&mut self, id: String) {
        self.remote_id = id;
    }

    /// Properties of the message that was translated last.
    pub(crate) fn properties(&self) -> Properties<'_> {
        self.properties.as_properties()
    }

    /// Translates a message from `from`.
    ///
    /// # Errors
    /// The cause for which the message is not passed on.
    pub(crate) fn translate(
        &mut self,
        from: Side,
        publish: &Publish<'_>,
        terms: &Sides<Terms>,
    ) -> Result<Translated, Dropped> {
        let target = terms.of(from.other());
        // Without User Properties on both sides, the list of hops would be incomplete.
        let has_hops = Side::ALL.iter().all(|side| terms.of(*side).version.has_properties());
        let mapped = TopicName::parse(publish.topic).ok().and_then(|topic| self.map.map(from, topic));
        let mapped = mapped.ok_or(Dropped::NotMapped)?;
        let origins =
            self.origins.as_ref().filter(|_| from == Side::Remote && !mutated(Mutation::IgnoreOrigin));
        let origin = match origins {
            Some(origins) => origins.check(publish.properties)?.map(str::to_owned),
            None => None,
        };
        let group = match origins {
            Some(origins) => group_of(origins, publish, &mapped.topic)?,
            None => None,
        };
        let mut message_expiry = None;
        self.properties.clear();
        if target.version.has_properties() {
            if has_hops {
                self.check_hops(publish.properties)?;
            }
            for property in publish.properties.iter() {
                if let Property::MessageExpiryInterval(seconds) = property {
                    message_expiry = self.pass.message_expiry.then_some(seconds);
                }
                self.pass_on(from, property);
            }
            if has_hops {
                let hop = match from {
                    Side::Local => &self.own_id,
                    Side::Remote => &self.remote_id,
                };
                self.properties.push(Property::UserProperty(VIA, hop));
            }
            if let Some(origin) = &origin {
                self.properties.push(Property::UserProperty(ORIGIN, origin));
            }
            if let Some(group) = &group
                && !self.properties.push(Property::UserProperty(GROUP, group))
            {
                return Err(Dropped::TooLarge);
            }
        }
        Ok(Translated {
            topic: mapped.topic,
            qos: publish.qos.min(mapped.qos).min(target.maximum_qos),
            retain: publish.retain && self.pass.retain && target.retain_available,
            message_expiry,
        })
    }

    /// Refuses a message that has been at either broker before, other than at its origin, or has passed too many.
    fn check_hops(&self, properties: Properties<'_>) -> Result<(), Dropped> {
        let mut count = 0;
        for (_, hop) in properties.user_properties().filter(|(name, _)| *name == VIA) {
            if hop == self.own_id || hop == self.remote_id {
                return Err(Dropped::OwnLoop);
            }
            count += 1;
        }
        if count >= self.hops_max { Err(Dropped::HopLimit) } else { Ok(()) }
    }

    fn pass_on(&mut self, from: Side, property: Property<'_>) {
        let pass = &self.pass;
        let is_passed = match property {
            Property::PayloadFormatIndicator(_) => pass.payload_format,
            Property::ContentType(_) => pass.content_type,
            Property::CorrelationData(_) => pass.correlation_data,
            // A client may have put it there.
            Property::UserProperty(GROUP, _) if self.origins.is_some() => false,
            Property::UserProperty(name, _) => pass.user_properties || name == VIA || name == ORIGIN,
            Property::ResponseTopic(topic) if pass.response_topic => {
                let name = TopicName::parse(topic).ok();
                let mapped = name.and_then(|name| self.map.map_response(from, name));
                self.properties.push(Property::ResponseTopic(mapped.as_deref().unwrap_or(topic)));
                false
            }
            _ => false,
        };
        if is_passed {
            self.properties.push(property);
        }
    }
}

/// Returns the shared group here that a message is for, if the remote cluster has given it to one. `mapped` is the
/// topic here.
///
/// # Errors
/// The name of the group is missing, or it is none that gets the topic.
fn group_of(origins: &Origins, publish: &Publish<'_>, mapped: &str) -> Result<Option<String>, Dropped> {
    let is_for_group = publish.properties.subscription_identifier() == Some(GROUP_SUBSCRIPTION);
    if !is_for_group || origins.transit.is_some() {
        return Ok(None);
    }
    let named = publish.properties.user_properties().filter(|(name, _)| *name == GROUP).last();
    let group = named.and_then(|(_, text)| Subscription::parse(text).ok());
    let (Some(Subscription { share: Some(share), filter }), Ok(topic)) =
        (group, TopicName::parse(publish.topic))
    else {
        return Err(Dropped::NotMapped);
    };
    let prefix = mapped.strip_suffix(publish.topic).filter(|_| filter.matches(topic));
    let prefix = prefix.ok_or(Dropped::NotMapped)?;
    Ok(Some(format!("$share/{share}/{prefix}{}", filter.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Direction, Topic};

    const TERMS: Terms = Terms {
        version: Version::V5,
        maximum_qos: QoS::ExactlyOnce,
        retain_available: true,
        packet_size_max: u32::MAX,
        receive_maximum: u16::MAX,
    };

    const V5: Sides<Terms> = Sides { local: TERMS, remote: TERMS };

    fn translator(change: impl Fn(&mut Settings)) -> Translator {
        let mut settings = Settings::new("b", "remote");
        settings.topics = vec![Topic::prefixed("#", Direction::Both, QoS::AtLeastOnce, "", "site/")];
        change(&mut settings);
        let map = settings.check().expect("valid settings");
        Translator::new(&settings, map, "own")
    }

    fn publish(properties: Properties<'_>) -> Publish<'_> {
        Publish {
            dup: false,
            qos: QoS::ExactlyOnce,
            retain: true,
            topic: "a",
            packet_id: mqtt::PacketId::new(1),
            properties,
            payload: b"p",
        }
    }

    const ALL: [Property<'static>; 7] = [
        Property::PayloadFormatIndicator(1),
        Property::MessageExpiryInterval(9),
        Property::ContentType("text"),
        Property::ResponseTopic("reply"),
        Property::CorrelationData(b"1"),
        Property::SubscriptionIdentifier(4),
        Property::UserProperty("name", "value"),
    ];

    #[test]
    fn properties_are_passed_on_with_the_response_topic_of_the_other_side() {
        let mut translator = translator(|_| ());
        let properties = PropertiesBuf::from_iter(ALL);
        let translated =
            translator.translate(Side::Local, &publish(properties.as_properties()), &V5).expect("passed on");
        assert_eq!((translated.topic.as_str(), translated.qos), ("site/a", QoS::AtLeastOnce));
        assert_eq!((translated.retain, translated.message_expiry), (true, Some(9)));
        let passed: Vec<_> = translator.properties().iter().collect();
        assert_eq!(
            passed,
            [
                Property::PayloadFormatIndicator(1),
                Property::ContentType("text"),
                Property::ResponseTopic("site/reply"),
                Property::CorrelationData(b"1"),
                Property::UserProperty("name", "value"),
                Property::UserProperty(VIA, "own"),
            ]
        );
    }

    #[test]
    fn each_part_can_be_left_out() {
        let mut translator = translator(|settings| {
            settings.pass = Pass {
                retain: false,
                user_properties: false,
                content_type: false,
                response_topic: false,
                correlation_data: false,
                payload_format: false,
                message_expiry: false,
            };
        });
        let properties = PropertiesBuf::from_iter(ALL);
        let publish = publish(properties.as_properties());
        let old = Terms { version: Version::V3_1_1, ..TERMS };
        let terms = Sides { local: old, remote: TERMS };
        let translated = translator.translate(Side::Local, &publish, &terms).expect("passed on");
        assert_eq!((translated.retain, translated.message_expiry), (false, None));
        assert!(translator.properties().is_empty());
    }

    #[test]
    fn loops_end_at_a_known_hop_or_at_the_limit() {
        let hops = |ids: &[&str]| -> PropertiesBuf {
            ids.iter().map(|id| Property::UserProperty(VIA, id)).collect()
        };
        let mut translator = translator(|settings| settings.hops_max = 3);
        let mut translate = |from, ids: &[&str]| {
            let properties = hops(ids);
            let mut publish = publish(properties.as_properties());
            publish.topic = if from == Side::Local { "a" } else { "site/a" };
            translator.translate(from, &publish, &V5).map(|translated| translated.topic)
        };
        assert_eq!(translate(Side::Local, &["x", "y"]), Ok("site/a".into()));
        assert_eq!(translate(Side::Local, &["x", "own"]), Err(Dropped::OwnLoop));
        assert_eq!(translate(Side::Remote, &["own", "x"]), Err(Dropped::OwnLoop));
        assert_eq!(translate(Side::Remote, &["own/b"]), Err(Dropped::OwnLoop));
        assert_eq!(translate(Side::Local, &["x", "y", "z"]), Err(Dropped::HopLimit));
        assert_eq!(translate(Side::Remote, &[]), Ok("a".into()));
    }

    /// The cluster of origin names the group, and nobody else. The group must get the topic.
    #[test]
    fn a_message_for_a_group_names_it_as_it_is_called_here() {
        let mut settings = Settings::new("b", "remote");
        settings.topics = vec![Topic::prefixed("#", Direction::In, QoS::ExactlyOnce, "far/", "")];
        settings.interest = Some(crate::InterestSettings::new("own", "far", None));
        let map = settings.check().expect("valid settings");
        let mut translator = Translator::new(&settings, map, "own");
        let mut translate = |properties: &[Property<'_>]| {
            let properties = PropertiesBuf::from_iter(properties.iter().copied());
            let publish = publish(properties.as_properties());
            translator.translate(Side::Remote, &publish, &V5).map(|_| {
                let properties = translator.properties();
                let named = properties.user_properties().filter(|(name, _)| *name == GROUP);
                named.map(|(_, group)| group.to_owned()).collect::<Vec<_>>()
            })
        };
        let of_group = Property::SubscriptionIdentifier(GROUP_SUBSCRIPTION);
        let forged = Property::UserProperty(GROUP, "$share/forged/#");
        let named = Property::UserProperty(GROUP, "$share/linked:g/+");
        let known = Ok(vec!["$share/linked:g/far/+".to_owned()]);
        assert_eq!(translate(&[of_group, named]), known);
        assert_eq!(translate(&[of_group, forged, named]), known);
        assert_eq!(translate(&[forged]), Ok(vec![]), "a client has put it there");
        assert_eq!(translate(&[]), Ok(vec![]));
        for wrong in ["$share/linked:g/b", "a", "$share/g"] {
            let named = Property::UserProperty(GROUP, wrong);
            assert_eq!(translate(&[of_group, named]), Err(Dropped::NotMapped), "{wrong}");
        }
        assert_eq!(translate(&[of_group]), Err(Dropped::NotMapped));
    }
}
