//! Properties to be sent.

use std::fmt;

use super::Properties;
use super::property::Property;

/// A property block under construction.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PropertiesBuf(Vec<u8>);

impl PropertiesBuf {
    /// Appends a property. Returns `false` and appends nothing for a value that no packet can hold: a string or
    /// binary of more than 65,535 bytes, a string with U+0000 [MQTT-1.5.4-2], a Subscription Identifier above
    /// 268,435,455. The caller ensures that the property is allowed in the packet, and whether it may occur twice.
    pub fn push(&mut self, property: Property<'_>) -> bool {
        property.encode(&mut self.0)
    }

    #[inline]
    pub fn as_properties(&self) -> Properties<'_> {
        Properties(&self.0)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all properties but keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<'a> FromIterator<Property<'a>> for PropertiesBuf {
    /// Omits values that [`PropertiesBuf::push`] refuses.
    fn from_iter<I: IntoIterator<Item = Property<'a>>>(properties: I) -> PropertiesBuf {
        let mut buf = PropertiesBuf::default();
        for property in properties {
            buf.push(property);
        }
        buf
    }
}

impl fmt::Debug for PropertiesBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_properties().fmt(f)
    }
}
