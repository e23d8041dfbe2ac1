//! Values of the language.

mod compare;
mod extent;
mod object;

use std::fmt;
use std::sync::Arc;

pub use compare::{equal, number, order};
pub use extent::Extent;
pub use object::Object;

/// A value. A clone copies no text and no elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// Also the value of everything that is missing.
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    /// A finite number.
    Float(f64),
    Text(Arc<str>),
    /// Bytes that are not UTF-8. [`Value::of_bytes`] decides between `Text` and `Bytes`.
    Bytes(Arc<[u8]>),
    Array(Arc<Array>),
    Object(Arc<Object>),
}

/// Elements of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    elements: Vec<Value>,
    extent: Extent,
}

impl Array {
    pub fn elements(&self) -> &[Value] {
        &self.elements
    }
}

impl Value {
    /// The text, or the bytes when they are not UTF-8.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Bytes(bytes.into()),
        }
    }

    pub fn array(elements: Vec<Self>) -> Self {
        let extent = elements.iter().map(Self::extent).fold(Extent::EMPTY, Extent::with);
        Self::Array(Arc::new(Array { elements, extent }))
    }

    /// An object with these members. The last one of several with one name counts.
    pub fn object<N: Into<Arc<str>>>(members: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Object(Arc::new(members.into_iter().map(|(name, value)| (name.into(), value)).collect()))
    }

    pub fn extent(&self) -> Extent {
        match self {
            Self::Array(array) => array.extent,
            Self::Object(object) => object.extent(),
            _ => Extent::LEAF,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Bool(_) => Kind::Bool,
            Self::Int(_) => Kind::Integer,
            Self::Float(_) => Kind::Float,
            Self::Text(_) => Kind::String,
            Self::Bytes(_) => Kind::Bytes,
            Self::Array(_) => Kind::Array,
            Self::Object(_) => Kind::Object,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub fn as_elements(&self) -> Option<&[Value]> {
        match self {
            Self::Array(array) => Some(array.elements()),
            _ => None,
        }
    }

    /// The member of an object with this name.
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.as_object()?.get(name)
    }

    /// The element of an array at an index that counts from 1, or from -1 at the end.
    pub fn element(&self, index: i64) -> Option<&Value> {
        let elements = self.as_elements()?;
        let len = i64::try_from(elements.len()).ok()?;
        let at = if index < 0 { len.checked_add(index)? } else { index.checked_sub(1)? };
        elements.get(usize::try_from(at).ok()?)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Bool(is)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

/// Converts a float. What is not finite becomes null.
impl From<f64> for Value {
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Float(number) } else { Self::Null }
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Integer,
    Float,
    String,
    Bytes,
    Array,
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Integer => "an integer",
            Self::Float => "a float",
            Self::String => "a string",
            Self::Bytes => "bytes that are not UTF-8",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

const _: () = assert!(size_of::<Value>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_count_from_one_and_from_the_end() {
        let array = Value::array(vec![10.into(), 20.into(), 30.into()]);
        for (index, expected) in
            [(1, Some(10)), (3, Some(30)), (-1, Some(30)), (-3, Some(10)), (0, None), (4, None), (-4, None)]
        {
            assert_eq!(array.element(index), expected.map(Value::Int).as_ref(), "{index}");
        }
        assert_eq!(array.element(i64::MIN), None);
        assert_eq!(array.element(i64::MAX), None);
    }

    #[test]
    fn an_extent_counts_all_parts() {
        let inner = Value::array(vec![]);
        assert_eq!(inner.extent(), Extent { depth: 1, size: 1 });
        let outer = Value::object([("a", 1.into()), ("b", inner.clone()), ("c", inner)]);
        assert_eq!(outer.extent(), Extent { depth: 2, size: 4 });
        assert_eq!(Value::from("text").extent(), Extent { depth: 0, size: 1 });
    }

    #[test]
    fn bytes_that_are_utf_8_are_a_string() {
        assert_eq!(Value::of_bytes(b"ab"), Value::from("ab"));
        assert_eq!(Value::of_bytes(&[0xFF]).kind(), Kind::Bytes);
    }
}
