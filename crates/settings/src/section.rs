//! A section: settings that belong together, declared once.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::value::{Choice, Invalid, Raw, Value};

/// Time at which a change of a setting in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// Takes effect at the next start of the node.
    AtStart,
    /// Takes effect when the running node gets SIGHUP.
    OnReload,
}

/// Declaration of one setting.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub key: &'static str,
    /// The lines of its doc comment.
    pub doc: &'static [&'static str],
    /// Name of the type on the reference page.
    pub type_name: &'static str,
    pub choices: &'static [Choice],
    /// Default value as it would be written in the environment; empty for an unset optional setting and for an empty
    /// string.
    pub default: &'static str,
    pub range: Option<&'static str>,
    pub reload: Reload,
}

/// Declaration of a section.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub name: &'static str,
    /// The lines of its doc comment.
    pub doc: &'static [&'static str],
    pub fields: &'static [Field],
}

/// One section with its values. [`section!`](crate::section) is the only way to write one.
pub trait Section {
    fn description(&self) -> &'static Description;

    /// Reads, checks and stores one value. Errors: [`Invalid`]; the old value stays.
    fn set(&mut self, key: &str, raw: &Raw) -> Result<(), Invalid>;

    /// The value of `key` as TOML text; `None` when it is unset or there is no such key.
    fn show(&self, key: &str) -> Option<String>;
}

/// Reads a value of a setting that has no range.
pub fn read<T: Value>(raw: &Raw) -> Result<T, Invalid> {
    T::from_raw(raw)
}

/// Reads a value and checks it against `range`: `"1..=5"`, `"1.."` or `"..=5"`, with ends written like values.
///
/// # Panics
/// Panics when `range` cannot be read, a mistake of the declaration. A test of the binary reads every range.
pub fn read_within<T: Value + PartialOrd>(raw: &Raw, range: &'static str) -> Result<T, Invalid> {
    let value = T::from_raw(raw)?;
    let end = |text: &str| {
        (!text.is_empty()).then(|| match T::from_raw(&Raw::Text(text.to_owned())) {
            Ok(end) => end,
            Err(error) => panic!("range {range}: {error}"),
        })
    };
    let (low, high) = range.split_once("..").unwrap_or_else(|| panic!("range {range} has no `..`"));
    let high = high.strip_prefix('=').unwrap_or(high);
    if end(low).is_some_and(|low| value < low) || end(high).is_some_and(|high| value > high) {
        return Err(Invalid::Range { found: raw.to_string(), range });
    }
    Ok(value)
}

/// Implements `Deserialize` of sections: the same reading and checking as for the layers, for one section alone.
pub fn deserialize_section<'de, S, D>(deserializer: D) -> Result<S, D::Error>
where
    S: Section + Default,
    D: Deserializer<'de>,
{
    struct Keys<S>(PhantomData<S>);

    impl<'de, S: Section + Default> Visitor<'de> for Keys<S> {
        type Value = S;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a section of settings")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<S, A::Error> {
            let mut section = S::default();
            while let Some((key, raw)) = map.next_entry::<String, Raw>()? {
                section.set(&key, &raw).map_err(|error| A::Error::custom(format_args!("{key}: {error}")))?;
            }
            Ok(section)
        }
    }

    deserializer.deserialize_map(Keys(PhantomData))
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => Self::String(text),
            toml::Value::Integer(number) => Self::Integer(number),
            toml::Value::Boolean(boolean) => Self::Boolean(boolean),
            toml::Value::Float(_) => Self::Other("a number with a fraction"),
            toml::Value::Datetime(_) => Self::Other("a date"),
            toml::Value::Array(_) => Self::Other("an array"),
            toml::Value::Table(_) => Self::Other("a table"),
        })
    }
}

/// Declares a section: the struct, its `Default`, `Deserialize` and [`Section`].
///
/// A field is `pub name: Type = "default"`, then `in "low..=high"` when it has a range, then `at start` or `on
/// reload`: the time at which a change takes effect. Fields in `and { .. }` belong to the struct but are not
/// settings.
///
/// ```
/// settings::section! {
///     /// Contents of a basket.
///     [demo]
///     pub struct Demo {
///         /// Maximum number of apples.
///         pub apples: u8 = "3" in "1..=9", at start;
///         /// Name, if any.
///         pub name: Option<String> = "", on reload;
///     }
/// }
/// assert_eq!(Demo::default().apples, 3);
/// ```
#[macro_export]
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        [$name:ident]
        pub struct $Struct:ident {
            $(
                $(#[doc = $field_doc:literal])+
                pub $field:ident: $type:ty = $default:literal $(in $range:literal)?, $when:ident $event:ident;
            )+
        }
        $(and { $( $(#[doc = $more_doc:literal])+ pub $more:ident: $more_type:ty = $more_default:expr; )+ })?
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Struct {
            $( $(#[doc = $field_doc])+ pub $field: $type, )+
            $( $( $(#[doc = $more_doc])+ pub $more: $more_type, )+ )?
        }

        impl Default for $Struct {
            fn default() -> Self {
                Self {
                    $(
                        $field: match $crate::section!(
                            @read $type, &$crate::Raw::Text($default.to_owned()) $(, $range)?
                        ) {
                            Ok(value) => value,
                            Err(error) => panic!(
                                concat!("default of ", stringify!($name), ".", stringify!($field), ": {}"), error
                            ),
                        },
                    )+
                    $( $( $more: $more_default, )+ )?
                }
            }
        }

        impl $crate::Section for $Struct {
            fn description(&self) -> &'static $crate::Description {
                static DESCRIPTION: $crate::Description = $crate::Description {
                    name: stringify!($name),
                    doc: &[$($doc),+],
                    fields: &[$(
                        $crate::Field {
                            key: stringify!($field),
                            doc: &[$($field_doc),+],
                            type_name: <$type as $crate::Value>::TYPE,
                            choices: <$type as $crate::Value>::CHOICES,
                            default: $default,
                            range: $crate::section!(@range $($range)?),
                            reload: $crate::section!(@reload $when $event),
                        },
                    )+],
                };
                &DESCRIPTION
            }

            fn set(&mut self, key: &str, raw: &$crate::Raw) -> Result<(), $crate::Invalid> {
                $(
                    if key == stringify!($field) {
                        self.$field = $crate::section!(@read $type, raw $(, $range)?)?;
                        return Ok(());
                    }
                )+
                Err($crate::Invalid::UnknownKey)
            }

            fn show(&self, key: &str) -> Option<String> {
                $(
                    if key == stringify!($field) {
                        return $crate::Value::to_toml(&self.$field);
                    }
                )+
                None
            }
        }

        impl<'de> $crate::serde::Deserialize<'de> for $Struct {
            fn deserialize<D: $crate::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::deserialize_section(deserializer)
            }
        }
    };
    (@read $type:ty, $raw:expr) => { $crate::read::<$type>($raw) };
    (@read $type:ty, $raw:expr, $range:literal) => { $crate::read_within::<$type>($raw, $range) };
    (@range) => { None };
    (@range $range:literal) => { Some($range) };
    (@reload at start) => { $crate::Reload::AtStart };
    (@reload on reload) => { $crate::Reload::OnReload };
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ByteSize;

    crate::choices! {
        /// Colours of apples.
        pub enum Colour {
            /// Like a stop sign.
            Red = "red",
            /// Like grass.
            DarkGreen = "dark_green",
        }
    }

    crate::section! {
        /// Contents of the basket.
        [basket]
        pub struct Basket {
            /// Number of apples. Never none.
            pub apples: u8 = "3" in "1..=9", at start;
            /// Room for apples.
            pub room: ByteSize = "1MiB" in "64B..", at start;
            /// Time until the basket is emptied.
            pub rest: Duration = "5s", at start;
            /// Colour of the apples.
            pub colour: Colour = "red", on reload;
            /// Name of the owner.
            pub owner: Option<String> = "", at start;
        }
        and {
            /// A field that is not a setting.
            pub holes: Vec<u8> = vec![7];
        }
    }

    #[test]
    fn a_declaration_sets_the_defaults_of_the_struct() {
        let basket = Basket::default();
        assert_eq!((basket.apples, basket.room, basket.rest), (3, ByteSize::mib(1), Duration::from_secs(5)));
        assert_eq!((basket.colour, basket.owner, basket.holes), (Colour::Red, None, vec![7]));
    }

    #[test]
    fn a_declaration_sets_the_description() {
        let description = Basket::default().description();
        assert_eq!(description.name, "basket");
        assert_eq!(description.doc, [" Contents of the basket."]);
        let [apples, .., colour, owner] = description.fields else { panic!("five fields") };
        assert_eq!((apples.key, apples.type_name, apples.default), ("apples", "integer", "3"));
        assert_eq!(apples.doc, [" Number of apples. Never none."]);
        assert_eq!((apples.range, apples.reload), (Some("1..=9"), Reload::AtStart));
        assert_eq!((colour.type_name, colour.reload), ("choice", Reload::OnReload));
        assert_eq!(colour.choices[1], Choice { name: "dark_green", doc: " Like grass." });
        assert_eq!((owner.type_name, owner.default), ("string", ""));
    }

    #[test]
    fn a_value_is_checked_before_it_is_stored() {
        let mut basket = Basket::default();
        assert_eq!(basket.set("apples", &Raw::Integer(9)), Ok(()));
        let error = basket.set("apples", &Raw::Integer(10)).unwrap_err();
        assert_eq!(error.to_string(), "the number 10 is out of range, allowed is 1 to 9");
        let error = basket.set("room", &Raw::String("63B".into())).unwrap_err();
        assert_eq!(error.to_string(), "the string \"63B\" is out of range, allowed is 64B or more");
        let error = basket.set("colour", &Raw::Text("blue".into())).unwrap_err();
        assert_eq!(error.to_string(), "expected one of red, dark_green, found `blue`");
        assert_eq!(basket.set("pears", &Raw::Integer(1)), Err(Invalid::UnknownKey));
        assert_eq!((basket.apples, basket.room), (9, ByteSize::mib(1)));
    }

    #[test]
    fn values_are_printed_as_toml() {
        let mut basket = Basket::default();
        basket.set("colour", &Raw::Text("dark_green".into())).unwrap();
        assert_eq!(basket.show("colour").as_deref(), Some("\"dark_green\""));
        assert_eq!(basket.show("room").as_deref(), Some("\"1MiB\""));
        assert_eq!(basket.show("rest").as_deref(), Some("\"5s\""));
        assert_eq!(basket.show("owner"), None);
    }

    #[test]
    fn a_section_deserialises_with_the_same_checks() {
        let basket: Basket = toml::from_str("apples = 2\nrest = \"1m\"").unwrap();
        assert_eq!((basket.apples, basket.rest), (2, Duration::from_secs(60)));
        let error = toml::from_str::<Basket>("apples = 0").unwrap_err().to_string();
        assert!(error.contains("allowed is 1 to 9"), "{error}");
        assert!(toml::from_str::<Basket>("pears = 0").is_err());
    }
}
