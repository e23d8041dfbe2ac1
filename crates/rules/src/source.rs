//! Sources of a rule: Topic Filters and events, and the fields that each of them has.

use std::fmt;
use std::sync::Arc;

/// Source of messages or events, named after FROM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Messages whose topic matches this Topic Filter.
    Filter(Arc<str>),
    Event(Event),
}

impl Source {
    /// The event that is evaluated: [`Event::Publish`] for a Topic Filter.
    pub fn event(&self) -> Event {
        match self {
            Self::Filter(_) => Event::Publish,
            Self::Event(event) => *event,
        }
    }
}

/// Declares the fields of the language.
macro_rules! fields {
    ($($variant:ident $name:literal,)*) => {
        /// A field of a message or an event. [`Event::fields`] lists those of each event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $($variant,)*
        }

        impl Field {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

fields! {
    Event "event",
    Id "id",
    ClientId "clientid",
    Username "username",
    Topic "topic",
    QoS "qos",
    Payload "payload",
    Flags "flags",
    PubProps "pub_props",
    Timestamp "timestamp",
    PublishReceivedAt "publish_received_at",
    Node "node",
    Peerhost "peerhost",
    Peername "peername",
    Sockname "sockname",
    Listener "listener",
    ClientAttrs "client_attrs",
    Mountpoint "mountpoint",
    Tenant "tenant",
    FromClientId "from_clientid",
    FromUsername "from_username",
    PubackProps "puback_props",
    Reason "reason",
    ReasonCode "reason_code",
    ProtoName "proto_name",
    ProtoVer "proto_ver",
    Keepalive "keepalive",
    CleanStart "clean_start",
    ExpiryInterval "expiry_interval",
    IsBridge "is_bridge",
    ConnProps "conn_props",
    ConnectedAt "connected_at",
    DisconnProps "disconn_props",
    DisconnectedAt "disconnected_at",
    SubProps "sub_props",
    UnsubProps "unsub_props",
    Action "action",
    Result "result",
    AuthzSource "authz_source",
    IsSuperuser "is_superuser",
    IsAnonymous "is_anonymous",
    Name "name",
    Active "active",
    Severity "severity",
    Message "message",
    Details "details",
    ActivatedAt "activated_at",
    DeactivatedAt "deactivated_at",
}

impl Field {
    /// The field with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|field| field.name() == name)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Declares the events. Each has a variant, a name, its value of the field `event`, and its own fields. All events also
/// have `event`, `timestamp` and `node`.
macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident $name:literal $value:literal $($set:ident)|* { $($field:ident)* })*) => {
        /// Kind of an occurrence: of a message, a client, a session or the system. A rule is evaluated once for each
        /// occurrence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[$doc])* $variant,)*
        }

        impl Event {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name after FROM. A Topic Filter takes the place of that of [`Event::Publish`].
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Value of the field `event`.
            pub fn value(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)*
                }
            }

            /// Fields in the order of `SELECT *`.
            pub fn fields(self) -> impl Iterator<Item = Field> {
                let (sets, own): (&[&[Field]], &[Field]) = match self {
                    $(Self::$variant => (&[$($set),*], &[$(Field::$field),*]),)*
                };
                [Field::Event, Field::Timestamp, Field::Node]
                    .into_iter()
                    .chain(sets.iter().copied().flatten().copied())
                    .chain(own.iter().copied())
            }
        }
    };
}

/// Fields of a message.
const MESSAGE: &[Field] = &[
    Field::Id,
    Field::ClientId,
    Field::Username,
    Field::Topic,
    Field::QoS,
    Field::Payload,
    Field::Flags,
    Field::PubProps,
    Field::PublishReceivedAt,
    Field::Peerhost,
    Field::ClientAttrs,
    Field::Mountpoint,
    Field::Tenant,
];

/// Fields of a client, in events about it.
const CLIENT: &[Field] = &[
    Field::ClientId,
    Field::Username,
    Field::Peerhost,
    Field::Peername,
    Field::Sockname,
    Field::Listener,
    Field::ClientAttrs,
    Field::Mountpoint,
    Field::Tenant,
];

/// Fields of a Network Connection.
const CONNECTION: &[Field] = &[
    Field::ProtoName,
    Field::ProtoVer,
    Field::Keepalive,
    Field::CleanStart,
    Field::ExpiryInterval,
    Field::IsBridge,
    Field::ConnProps,
];

events! {
    /// A message whose topic matches a Topic Filter of the rule.
    Publish "" "message.publish" MESSAGE {}
    Connected "$events/client/connected" "client.connected" CLIENT | CONNECTION { ConnectedAt }
    Disconnected "$events/client/disconnected" "client.disconnected" CLIENT {
        ProtoName ProtoVer Reason ReasonCode DisconnProps ConnectedAt DisconnectedAt
    }
    /// The server sends CONNACK, with success or not.
    ConnAck "$events/client/connack" "client.connack" CLIENT | CONNECTION { ReasonCode }
    /// An authentication has ended.
    Authn "$events/client/authn" "client.authn" CLIENT { Result Reason IsSuperuser IsAnonymous }
    /// An action of a client was allowed or denied.
    Authz "$events/client/authz" "client.authz" CLIENT { Topic Action Result AuthzSource }
    Subscribed "$events/session/subscribed" "session.subscribed" CLIENT { Topic QoS SubProps }
    Unsubscribed "$events/session/unsubscribed" "session.unsubscribed" CLIENT { Topic UnsubProps }
    /// A message was sent to a subscriber. `clientid` is the subscriber.
    Delivered "$events/message/delivered" "message.delivered" MESSAGE { FromClientId FromUsername }
    /// A subscriber has acknowledged a message of QoS 1 or 2.
    Acked "$events/message/acked" "message.acked" MESSAGE { FromClientId FromUsername PubackProps }
    /// A message was dropped before it was routed to a subscriber.
    Dropped "$events/message/dropped" "message.dropped" MESSAGE { Reason }
    /// A message for one subscriber was dropped.
    DeliveryDropped "$events/message/delivery_dropped" "message.delivery_dropped" MESSAGE {
        FromClientId FromUsername Reason
    }
    /// An alarm of the node was activated or deactivated.
    Alarm "$events/sys/alarm" "sys.alarm" { Name Active Severity Message Details ActivatedAt DeactivatedAt }
}

impl Event {
    /// The event with this name after FROM.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::named().find(|event| event.name() == name)
    }

    /// Returns whether occurrences have this field.
    pub fn has(self, field: Field) -> bool {
        self.fields().any(|own| own == field)
    }

    /// The event that an unknown name most probably means.
    pub(crate) fn nearest(name: &str) -> Self {
        let renamed = FORMER.iter().find(|(former, _)| *former == name).map(|(_, event)| *event);
        let nearest = || settings::nearest(name, Self::named().map(Self::name)).and_then(Self::of_name);
        renamed.or_else(nearest).unwrap_or(Self::Connected)
    }

    fn named() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|event| !event.name().is_empty())
    }
}

/// First characters of the names of all events.
pub const EVENTS: &str = "$events/";

/// Names that other brokers use for some events, where the nearest name would be another event.
const FORMER: &[(&str, Event)] = &[
    ("$events/client_connack", Event::ConnAck),
    ("$events/client_check_authn_complete", Event::Authn),
    ("$events/client_check_authz_complete", Event::Authz),
    ("$events/auth/check_authn_complete", Event::Authn),
    ("$events/auth/check_authz_complete", Event::Authz),
    ("$events/alarm_activated", Event::Alarm),
    ("$events/alarm_deactivated", Event::Alarm),
    ("$events/sys/alarm_activated", Event::Alarm),
    ("$events/sys/alarm_deactivated", Event::Alarm),
    ("$events/delivery_dropped", Event::DeliveryDropped),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_event_has_a_field_twice() {
        for event in Event::ALL {
            let fields: Vec<Field> = event.fields().collect();
            for (index, field) in fields.iter().enumerate() {
                assert!(!fields[..index].contains(field), "{event:?} {field}");
            }
        }
    }

    #[test]
    fn some_event_has_each_field() {
        for field in Field::ALL {
            assert!(Event::ALL.iter().any(|event| event.has(*field)), "{field}");
        }
    }

    #[test]
    fn former_names_of_events_are_near() {
        for (former, event) in [
            ("$events/client_connected", Event::Connected),
            ("$events/session_unsubscribed", Event::Unsubscribed),
            ("$events/message_delivered", Event::Delivered),
            ("$events/message_dropped", Event::Dropped),
            ("$events/message/deliverd", Event::Delivered),
            ("$events/client_check_authz_complete", Event::Authz),
            ("$events/", Event::Alarm),
        ] {
            assert_eq!(Event::nearest(former), event, "{former}");
        }
    }
}
