//! Settings that take one of a few words.

/// Declares an enum as the type of a setting. Each variant has a doc comment and the word that a file writes for it;
/// the first variant is the default.
///
/// ```
/// settings::choices! {
///     /// Message that a full queue drops.
///     pub enum Full {
///         /// The oldest message.
///         DropOldest = "drop_oldest",
///         /// The arriving message.
///         DropNewest = "drop_newest",
///     }
/// }
/// assert_eq!(Full::default(), Full::DropOldest);
/// ```
#[macro_export]
macro_rules! choices {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Enum:ident {
            $(#[doc = $first_doc:literal])+
            $First:ident = $first:literal,
            $($(#[doc = $doc:literal])+ $Variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        $vis enum $Enum {
            $(#[doc = $first_doc])+
            #[default]
            $First,
            $($(#[doc = $doc])+ $Variant,)*
        }

        impl $crate::Value for $Enum {
            const TYPE: &'static str = "choice";
            const CHOICES: &'static [$crate::Choice] = &[
                $crate::Choice { name: $first, doc: concat!($($first_doc),+) },
                $($crate::Choice { name: $name, doc: concat!($($doc),+) },)*
            ];

            fn from_raw(raw: &$crate::Raw) -> Result<Self, $crate::Invalid> {
                match raw {
                    $crate::Raw::Text(text) | $crate::Raw::String(text) if text == $first => Ok(Self::$First),
                    $($crate::Raw::Text(text) | $crate::Raw::String(text) if text == $name => Ok(Self::$Variant),)*
                    _ => Err(raw.expected(concat!("one of ", $first, $(", ", $name),*))),
                }
            }

            fn to_toml(&self) -> Option<String> {
                Some(match self {
                    Self::$First => concat!("\"", $first, "\""),
                    $(Self::$Variant => concat!("\"", $name, "\""),)*
                }.to_owned())
            }
        }
    };
}
